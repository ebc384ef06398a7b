"""The dashboard "Kneewatch / Probe": is Kneewatch itself healthy, and what does it cost?

In: the configuration and the links. Out: the dashboard's JSON text. Panels about one target filter by $target; the
others show the process, or current values of all targets.
"""

from alerts.links import PROBE, Links
from dashboards import layout, marks, panels, variables
from dashboards.layout import Intervals
from dashboards.pieces import GREEN, GREY, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import RATE, age_when_scraped, counted, largest, pace, percentiles, quantile
from dashboards.queries import TARGET as ONE
from exporters import names
from probe.core.reasons import CLIENT_BOUND

TITLE = "Kneewatch / Probe"


def probe_dashboard(links: Links, intervals: Intervals) -> str:
    """Return the dashboard as JSON text."""
    return layout.dashboard(
        TITLE,
        PROBE,
        "Kneewatch itself: whether its numbers can be trusted, and what they cost.",
        variables=[*variables.places(), variables.target()],
        rows=[
            PanelRow("Is everything running?", _running()),
            PanelRow("Is its timing accurate?", _timing()),
            PanelRow("Do its tasks run for the target?", tasks()),
            PanelRow("Can it read the server?", scrapes()),
            PanelRow("Which servers are discovered, and which shards watch them?", discovery()),
            PanelRow("What does it cost?", _footprint()),
        ],
        annotations=marks.marks(ONE),
        links=links,
        intervals=intervals,
    )


def _running() -> list[PlacedPanel]:
    return [*_configuration_and_tasks(), *_failures_now(), *_instances()]


def _configuration_and_tasks() -> list[PlacedPanel]:
    late = age_when_scraped(names.TASK_LAST_SUCCESS, by="task, target")
    overdue = f"{late} > bool on (task, target) 5 * max by (task, target) ({names.TASK_INTERVAL.name})"
    return [
        panels.stat(
            "Configuration file",
            "Whether the configuration file is in use. Good: loaded. If refused, the previous configuration stays in"
            " use, and the next restart fails.",
            unit="none",
            queries=[Query(f"min({names.CONFIG_TAKEN.name})", "loaded")],
            steps=[(None, RED), (1, GREEN)],
            texts={"0": ("REFUSED", RED), "1": ("loaded", GREEN)},
            no_value="Kneewatch is down",
        ),
        panels.stat(
            "Overdue tasks",
            "Tasks of all targets, such as canaries and scrapes, that have not run for five times their interval. Good:"
            " none.",
            unit="none",
            queries=[Query(f"sum({overdue})", "overdue")],
            steps=[(None, GREEN), (1, RED)],
        ),
    ]


def _failures_now() -> list[PlacedPanel]:
    failures = f"round(sum(increase({names.TASK_FAILURES.name}[1h])))"
    return [
        panels.stat(
            "Failed tasks, 1 h",
            "Tasks of all targets that failed, started late or were skipped in the last hour. Good: none; a few at a"
            " restart. A canary that fails because its server is down does not count.",
            unit="none",
            queries=[Query(failures, "failed")],
            steps=[(None, GREEN), (1, YELLOW), (20, RED)],
        ),
        panels.stat(
            "Unreadable servers",
            "Targets whose last metrics scrape failed. Good: none.",
            unit="none",
            queries=[Query(f"sum(max by (target) ({names.SERVER_UP.name}) == bool 0)", "unreadable")],
            steps=[(None, GREEN), (1, RED)],
        ),
    ]


def _instances() -> list[PlacedPanel]:
    return [
        panels.stat(
            "Uptime",
            "Time since the last start of a Kneewatch. Good: since the last deploy. Counters restart with it.",
            unit="s",
            queries=[Query(f"time() - max({names.STARTED.name})", "up for")],
            steps=[(None, YELLOW), (900, GREEN)],
            no_value="Kneewatch is down",
        ),
        panels.stat(
            "Version",
            "Versions of all scraped Kneewatch instances. Good: one.",
            unit="none",
            queries=[Query(largest(names.BUILD_INFO, "", "version"), "{{version}}")],
            steps=[(None, GREY)],
            only_names=True,
            no_value="Kneewatch is down",
        ),
    ]


def _timing() -> list[PlacedPanel]:
    total, count = (f"sum by (task) (rate({names.TASK_LATENESS.name}_{part}[{RATE}]))" for part in ("sum", "count"))
    return [
        panels.timeseries(
            "Schedule lag",
            "Time from handling a probe request until it is sent, for the target. Good: p95 under 10 ms. Measured"
            " latencies include this lag; the event loop lag comes on top.",
            unit="s",
            queries=percentiles(names.SCHEDULE_LAG, ONE),
            no_value="no probe requests",
        ),
        panels.timeseries(
            "Event loop lag",
            "How late the monitor's event loop wakes up, for all targets. Good: p95 under 10 ms. More means that the"
            " monitor lacks CPU, and that its latencies are too high.",
            unit="s",
            queries=[*percentiles(names.LOOP_LAG, ""), Query(quantile(0.99, names.LOOP_LAG, ""), "p99")],
        ),
        panels.timeseries(
            "Streams held back",
            "Share of a canary's tokens that came together with the first one, for the target. Good: near 0. Above 0.5"
            " a proxy buffers streams, or the server does not stream: TPOT is unknown, and TTFT too long.",
            unit="percentunit",
            queries=[Query(largest(names.HELD_BACK, ONE), "held back")],
            no_value="no canaries",
        ),
        panels.timeseries(
            "Task lateness",
            "How late scheduled tasks start, for all targets, the mean of each kind. Good: under 0.1 s. More, for all"
            " kinds, means too many targets for the monitor's CPU.",
            unit="s",
            queries=[Query(f"{total} / ({count} > 0)", "{{task}}")],
        ),
    ]


def _footprint() -> list[PlacedPanel]:
    tokens = f"sum by (traffic, kind) (rate({names.TOKENS.name}{{{ONE}}}[{RATE}]))"
    return [
        panels.timeseries(
            "CPU",
            "Cores used by the monitor's process, and beside it by forecasts, at most forecast_cores; load runs in"
            " processes of its own. Good: a small part of one. Near one core the event loop lags, and measured"
            " latencies are too high.",
            unit="short",
            queries=[Query(pace(names.CPU, ""), "monitor"), Query(pace(names.FORECAST_CPU, ""), "forecasts")],
            no_value="Kneewatch is down",
        ),
        panels.timeseries(
            "Memory",
            "Resident memory of the monitor's process. Good: flat after the first two hours, in which it collects"
            " snapshots for forecasts.",
            unit="bytes",
            queries=[Query(largest(names.MEMORY, ""), "memory")],
            no_value="Kneewatch is down",
        ),
        panels.timeseries(
            "Probe tokens",
            "Tokens per second of probe requests, by kind of traffic. Good: few for canaries, and capacity runs at"
            " their hours only.",
            unit="short",
            queries=[Query(tokens, "{{traffic}} {{kind}}")],
            no_value="no probe requests",
        ),
    ]


def tasks() -> list[PlacedPanel]:
    return [*_task_runs(), *_load_levels()]


def _task_runs() -> list[PlacedPanel]:
    failures = f"sum by (task) (rate({names.TASK_FAILURES.name}{{{ONE}}}[{RATE}]))"
    return [
        panels.timeseries(
            "Time since each task ran",
            "Kneewatch's heartbeat for the target, as old as it was when Prometheus scraped it. Good: no higher than"
            " twice the task's interval. A line that climbs is a task that hangs; its values are out of date.",
            unit="s",
            queries=[Query(age_when_scraped(names.TASK_LAST_SUCCESS, ONE, "task"), "{{task}}")],
        ),
        panels.timeseries(
            "Task failures",
            "Tasks of the target that failed, started late or were skipped, per second. Good: zero.",
            unit="ops",
            queries=[Query(failures, "{{task}}")],
            no_value="no task has failed",
        ),
    ]


def _load_levels() -> list[PlacedPanel]:
    steps = names.CAPACITY_STEPS.name
    late = f'{ONE},verdict="{CLIENT_BOUND.verdict}"'
    bound = f"sum(increase({steps}{{{late}}}[1d])) / (sum(increase({steps}{{{ONE}}}[1d])) > 0)"
    return [
        panels.timeseries(
            "Steps lost to the client",
            "Share of the steps in a day's capacity runs that were client_bound: Kneewatch's machine was too"
            " slow. Good: zero. Give Kneewatch more CPU, or run the load from another machine.",
            unit="percentunit",
            queries=[Query(bound, "client_bound")],
            maximum=1,
            no_value="no capacity run in a day",
        ),
        panels.stat(
            "Steps of capacity runs",
            "In the time range: steps of capacity runs, by verdict. Good: nearly all valid. A budget or the guard"
            " that ends a run early causes too_few and cut_short.",
            unit="none",
            queries=[Query(counted(names.CAPACITY_STEPS, ONE, "verdict"), "{{verdict}}")],
            steps=[(None, GREEN)],
            width=24,
        ),
    ]


def scrapes() -> list[PlacedPanel]:
    errors = f"max by (reason) (rate({names.SERVER_SCRAPE_ERRORS.name}{{{ONE}}}[{RATE}]))"
    return [
        panels.timeseries(
            "Failed scrapes by reason",
            "Failed scrapes of the server's metrics, per second, by reason. Good: none. They leave gaps in the server's"
            " panels on the other dashboards.",
            unit="ops",
            queries=[Query(f"{errors} > 0", "{{reason}}")],
            no_value="no scrape has failed",
        ),
        panels.timeseries(
            "Scrape duration",
            "Duration of the last scrape of the server's metrics. Good: tens of milliseconds, and flat. A server with"
            " an overloaded front end answers late here too.",
            unit="s",
            queries=[Query(largest(names.SERVER_SCRAPE_SECONDS, ONE), "scrape")],
            no_value="the server cannot be read",
        ),
        panels.timeseries(
            "Size of the metrics page",
            "Bytes of the server's metrics page. Good: flat. A growing page has a label with unbounded values, and"
            " slows the server down.",
            unit="bytes",
            queries=[Query(largest(names.SERVER_SCRAPE_BYTES, ONE), "page")],
            no_value="the server cannot be read",
        ),
    ]


def discovery() -> list[PlacedPanel]:
    return [*_discoveries(), *_shards()]


def _discoveries() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Discovered servers",
            "Servers that each discovery has found. Good: as many as there are replicas. Zero is an outage, or a"
            " selector without a match.",
            unit="none",
            queries=[Query(f"max by (discovery) ({names.DISCOVERED.name})", "{{discovery}}")],
            no_value="all targets have an address in the configuration",
        ),
        panels.timeseries(
            "Failing discoveries",
            "1 while a discovery fails, or cannot use some of its servers. Good: zero. Known servers are still"
            " watched.",
            unit="none",
            queries=[Query(f"max by (discovery) ({names.DISCOVERY_FAILING.name})", "{{discovery}}")],
            maximum=1,
            no_value="all targets have an address in the configuration",
        ),
    ]


def _shards() -> list[PlacedPanel]:
    running = f'count(count_values("shard", {names.SHARD.name}))'
    return [
        panels.stat(
            "Configuration loaded",
            "Time since the configuration file was last loaded, by the Kneewatch that loaded it first. Good: since its"
            " last change, or since the last restart.",
            unit="s",
            queries=[Query(f"time() - min({names.CONFIG_TAKEN_AT.name})", "ago")],
            steps=[(None, GREY)],
            no_value="Kneewatch is down",
        ),
        panels.stat(
            "Shards",
            "Running shards, and the expected number. Good: equal. The targets of a missing shard are not watched.",
            unit="none",
            queries=[Query(running, "running"), Query(f"max({names.SHARDS.name})", "expected")],
            steps=[(None, GREY)],
            no_value="no sharding",
        ),
    ]
