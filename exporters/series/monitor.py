"""Series of Kneewatch itself. The label is `task`, because Prometheus adds its own `job` to every series."""

from functools import partial

from exporters.series.declaration import LAG_BUCKETS, Series, declare

_LATENESS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_declare = partial(declare, "monitor")

BUILD_INFO = _declare(
    "gauge",
    "build_info",
    "1, labelled with Kneewatch's version, and with `simulator`: `compiled`, or `interpreted`: slower forecasts",
    ("version", "simulator"),
)
CONFIG_HASH = _declare("gauge", "config_hash_info", "1, labelled with a digest of the configuration", ("hash",))
LINKS = _declare(
    "gauge",
    "links_info",
    "1, labelled with the addresses that alerts link: this Kneewatch's pages and Grafana; absent without either",
    ("pages", "grafana"),
)
CONFIG_TAKEN = _declare(
    "gauge",
    "config_last_reload_successful",
    "1 if the last reload of the configuration file succeeded, 0 if it was refused",
)
CONFIG_TAKEN_AT = _declare(
    "gauge", "config_last_reload_success_timestamp_seconds", "Time of the last successful reload of the configuration"
)
DISCOVERED = _declare(
    "gauge", "discovered_targets", "Servers that a discovery has found, including other shards' servers", ("discovery",)
)
DISCOVERY_LEAST = _declare(
    "gauge",
    "discovery_min_targets",
    "Fewest servers that a discovery must find; with fewer an alert fires",
    ("discovery",),
)
DISCOVERY_FAILING = _declare(
    "gauge",
    "discovery_failing",
    "1 while a discovery fails (its last result stays in effect), or could not use some of its servers",
    ("discovery",),
)
SHARD = _declare("gauge", "shard", "Index of this Kneewatch's shard, from 0; absent without sharding")
SHARDS = _declare("gauge", "shards", "Number of shards; absent without sharding")
TARGET_INFO = _declare(
    "gauge",
    "target_info",
    "1, labelled with what discovery found: label_... for each label of the target's pod",
    ("target", "discovery"),
)
CPU = _declare("counter", "process_cpu_seconds_total", "CPU time of the monitor's process, without child processes")
FORECAST_CPU = _declare(
    "counter",
    "forecast_cpu_seconds_total",
    "CPU time of the processes that compute forecasts, at most forecast_cores a second",
)
MEMORY = _declare("gauge", "process_resident_memory_bytes", "Resident memory of the monitor's process")
STARTED = _declare("gauge", "process_start_time_seconds", "Start time of the monitor")
# Prometheus' own names for a process, as every client library exports them: dashboards and alerts of all processes.
STANDARD_PROCESS = tuple(
    Series(f"process_{name}", kind, help_, source="monitor")
    for kind, name, help_ in (
        ("counter", "cpu_seconds_total", f"As {CPU.name}, under Prometheus' own name"),
        ("gauge", "resident_memory_bytes", f"As {MEMORY.name}, under Prometheus' own name"),
        ("gauge", "virtual_memory_bytes", "Virtual memory of the monitor's process"),
        ("gauge", "start_time_seconds", f"As {STARTED.name}, under Prometheus' own name"),
        ("gauge", "open_fds", "Open file descriptors of the monitor's process"),
        ("gauge", "max_fds", "Most file descriptors that the process may open"),
    )
)
TASK_FAILURES = _declare(
    "counter", "task_failures_total", "Scheduled tasks that failed, started late or were skipped", ("task", "target")
)
TASK_LAST_SUCCESS = _declare(
    "gauge", "task_last_success_timestamp_seconds", "Time when a scheduled task last completed", ("task", "target")
)
TASK_INTERVAL = _declare("gauge", "task_interval_seconds", "Interval of a scheduled task", ("task", "target"))
CANARY_TIMEOUT = _declare("gauge", "canary_timeout_seconds", "Time limit of a canary", ("target",))
OTLP_FAILURES = _declare(
    "counter", "otlp_failures_total", "Attempts to send canaries to the OpenTelemetry collector that failed"
)
TASK_LATENESS = _declare(
    "histogram", "task_lateness_seconds", "How late a scheduled task started", ("task",), _LATENESS_BUCKETS
)
LOOP_STALLS = _declare(
    "counter",
    "event_loop_stalls_total",
    "Times that the monitor's event loop stood for over a second: `held` by a call, which the log names, or `starved`"
    " of a processor",
    ("cause",),
)
LOST_LOG_LINES = _declare(
    "counter", "log_lines_lost_total", "Log lines given up because standard error was full or could not be written"
)
LOOP_LAG = _declare("histogram", "event_loop_lag_seconds", "How late the monitor's event loop woke up", (), LAG_BUCKETS)
