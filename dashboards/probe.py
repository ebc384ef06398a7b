"""The dashboard "Kneewatch / Probe": is the instrument itself healthy, and what does it cost?

In: the configuration, and where the other dashboards and the runbooks are. Out: the dashboard's JSON text. What is
about one target filters by $target; the rest is about the process, or as of now.
"""

from alerts.links import CAPACITY, FLEET, PROBE, TARGET, Links
from alerts.windows import duration
from dashboards import layout, marks, panels, variables
from dashboards.pieces import GREEN, GREY, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import RATE, age, counted, largest, pace, percentiles, quantile
from dashboards.queries import TARGET as ONE
from exporters import names
from probe.config.models import Config

TITLE = "Kneewatch / Probe"


def probe_dashboard(config: Config, links: Links) -> str:
    """The dashboard as JSON text; it depends on the configuration only by how often canaries run."""
    step = duration(max(target.canary.every for target in config.targets))
    return layout.dashboard(
        TITLE,
        PROBE,
        "Kneewatch itself: whether its numbers can be trusted, and what they cost.",
        variables=[variables.target()],
        rows=[
            PanelRow("Does all of it run?", _all()),
            PanelRow("Is its timing true?", _timing(step)),
            PanelRow("Does it do its work for the target?", _tasks()),
            PanelRow("Can it read the server?", _readings()),
            PanelRow("Which servers are there, and who watches them?", _found()),
            PanelRow("What does it cost?", _footprint(step)),
        ],
        annotations=marks.marks(ONE),
        others=[("Fleet", FLEET), ("Target", TARGET), ("Capacity", CAPACITY)],
        links=links,
    )


def _all() -> list[PlacedPanel]:
    late = f"time() - min by (task, target) ({names.TASK_LAST_SUCCESS.name})"
    overdue = f"({late}) > bool on (task, target) 5 * max by (task, target) ({names.TASK_INTERVAL.name})"
    failures = f"round(sum(increase({names.TASK_FAILURES.name}[1h])))"
    return [
        panels.stat(
            "Configuration file",
            "Whether what is watched is what the file says. Good: taken. Refused, the one before stands, and the next"
            " restart fails.",
            unit="none",
            queries=[Query(f"min({names.CONFIG_TAKEN.name})", "taken")],
            steps=[(None, RED), (1, GREEN)],
            texts={"0": ("REFUSED", RED), "1": ("taken", GREEN)},
            no_value="Kneewatch is gone",
            alerts=["KneewatchConfigRefused", "KneewatchProbeGone"],
        ),
        panels.stat(
            "Overdue tasks",
            "Canaries, readings and the like, of all targets, that have not run for five times their interval. Good:"
            " none.",
            unit="none",
            queries=[Query(f"sum({overdue})", "overdue")],
            steps=[(None, GREEN), (1, RED)],
            alerts=["KneewatchProbeSilent"],
        ),
        panels.stat(
            "Failed tasks, 1 h",
            "Tasks of all targets that failed, were late or were skipped in the last hour. Good: none; a few at a"
            " restart. A canary that fails because its server is down is a task that worked.",
            unit="none",
            queries=[Query(failures, "failed")],
            steps=[(None, GREEN), (1, YELLOW), (20, RED)],
            alerts=["KneewatchTaskFailing"],
        ),
        panels.stat(
            "Unreadable servers",
            "Targets whose metrics page could not be read at the last attempt. Good: none.",
            unit="none",
            queries=[Query(f"sum(max by (target) ({names.SERVER_UP.name}) == bool 0)", "unreadable")],
            steps=[(None, GREEN), (1, RED)],
            alerts=["KneewatchServerMetricsUnreadable"],
        ),
        panels.stat(
            "Running for",
            "Since the youngest Kneewatch began. Good: since the last deploy. Counters begin anew with it.",
            unit="s",
            queries=[Query(f"time() - max({names.STARTED.name})", "up for")],
            steps=[(None, YELLOW), (900, GREEN)],
            no_value="Kneewatch is gone",
            alerts=["KneewatchProbeGone"],
        ),
        panels.stat(
            "Version",
            "Of every Kneewatch that is scraped. Good: one.",
            unit="none",
            queries=[Query(largest(names.BUILD_INFO, "", "version"), "{{version}}")],
            steps=[(None, GREY)],
            names=True,
            no_value="Kneewatch is gone",
        ),
    ]


def _timing(step: str) -> list[PlacedPanel]:
    total, count = (f"sum by (task) (rate({names.TASK_LATENESS.name}_{part}[{RATE}]))" for part in ("sum", "count"))
    return [
        panels.timeseries(
            "Schedule lag",
            "From our turning to a request to its being sent, for the target. Good: p95 under 10 ms. This lag is"
            " inside the latencies; how late we turn to requests is the event loop's lag.",
            unit="s",
            queries=percentiles(names.SCHEDULE_LAG, ONE),
            min_step=step,
            no_value="nothing is sent to it",
            alerts=["KneewatchClientBound"],
        ),
        panels.timeseries(
            "Event loop lag",
            "How late the monitor itself woke, for all targets. Good: p95 under 10 ms. More means that the monitor"
            " lacks CPU, and that its latencies read too high.",
            unit="s",
            queries=[*percentiles(names.LOOP_LAG, ""), Query(quantile(0.99, names.LOOP_LAG, ""), "p99")],
            alerts=["KneewatchClientBound"],
        ),
        panels.timeseries(
            "Lateness of tasks",
            "How late scheduled tasks began, for all targets, the mean of each kind. Good: under 0.1 s."
            " More, on all of them, is a monitor with too many targets for its CPU.",
            unit="s",
            queries=[Query(f"{total} / ({count} > 0)", "{{task}}")],
            min_step=step,
            alerts=["KneewatchTaskFailing"],
        ),
    ]


def _tasks() -> list[PlacedPanel]:
    steps = names.CAPACITY_STEPS.name
    bound = f'sum(increase({steps}{{{ONE},verdict="client_bound"}}[1d])) / (sum(increase({steps}{{{ONE}}}[1d])) > 0)'
    failures = f"sum by (task) (rate({names.TASK_FAILURES.name}{{{ONE}}}[{RATE}]))"
    return [
        panels.timeseries(
            "Time since each task ran",
            "Kneewatch's heartbeat for the target. Good: a saw tooth no higher than twice the task's interval. A line"
            " that climbs is a task that hangs, and what it measures is old.",
            unit="s",
            queries=[Query(age(names.TASK_LAST_SUCCESS, ONE, "task"), "{{task}}")],
            alerts=["KneewatchProbeSilent", "KneewatchProbeGone", "KneewatchTargetVanished"],
        ),
        panels.timeseries(
            "Failures of tasks",
            "Tasks of the target that failed, were late or were skipped, per second. Good: zero.",
            unit="ops",
            queries=[Query(failures, "{{task}}")],
            no_value="no task has failed",
            alerts=["KneewatchTaskFailing"],
        ),
        panels.timeseries(
            "Steps that judge nothing",
            "Share of the steps of a day's capacity runs that were client_bound: our own machine was what was slow."
            " Good: zero. Give Kneewatch more CPU, or run from elsewhere.",
            unit="percentunit",
            queries=[Query(bound, "client_bound")],
            maximum=1,
            no_value="no capacity run in a day",
            alerts=["KneewatchClientBound"],
        ),
        panels.stat(
            "Steps of capacity runs",
            "In the time shown: steps of runs on the target, by whether they judge anything. Good: nearly all valid."
            " too_few and cut_short come of a budget or a guard that ends them.",
            unit="none",
            queries=[Query(counted(names.CAPACITY_STEPS, ONE, "verdict"), "{{verdict}}")],
            steps=[(None, GREEN)],
            width=24,
            alerts=["KneewatchClientBound"],
        ),
    ]


def _readings() -> list[PlacedPanel]:
    errors = f"max by (reason) (rate({names.SERVER_SCRAPE_ERRORS.name}{{{ONE}}}[{RATE}]))"
    return [
        panels.timeseries(
            "Failed readings by reason",
            "Attempts to read the server's metrics that failed, per second, by why. Good: none. The panels of the"
            " server on the other dashboards have gaps where there are any.",
            unit="ops",
            queries=[Query(f"{errors} > 0", "{{reason}}")],
            no_value="no reading has failed",
            alerts=["KneewatchServerMetricsUnreadable"],
        ),
        panels.timeseries(
            "Time of a reading",
            "How long the last reading of the server's metrics took. Good: tens of milliseconds, and flat. A server"
            " whose front end is overloaded answers late here too.",
            unit="s",
            queries=[Query(largest(names.SERVER_SCRAPE_SECONDS, ONE), "reading")],
            no_value="the server cannot be read",
            alerts=["KneewatchServerMetricsUnreadable"],
        ),
        panels.timeseries(
            "Size of the server's page",
            "Bytes of the server's metrics page. Good: flat. One that grows has a label without bounds, and slows its"
            " server down.",
            unit="bytes",
            queries=[Query(largest(names.SERVER_SCRAPE_BYTES, ONE), "page")],
            no_value="the server cannot be read",
        ),
    ]


def _found() -> list[PlacedPanel]:
    there = f'count(count_values("shard", {names.SHARD.name}))'
    return [
        panels.timeseries(
            "Servers found",
            "How many servers each discovery has found. Good: as many as there are replicas. Zero is an outage or a"
            " selector that fits nothing.",
            unit="none",
            queries=[Query(f"max by (target) ({names.DISCOVERED.name})", "{{target}}")],
            no_value="all targets have an address in the configuration",
            alerts=["KneewatchNothingFound"],
        ),
        panels.timeseries(
            "Discoveries that fail",
            "1 while a discovery cannot be asked, or leaves something out. Good: zero. What it found before is watched"
            " on.",
            unit="none",
            queries=[Query(f"max by (target) ({names.DISCOVERY_FAILING.name})", "{{target}}")],
            maximum=1,
            no_value="all targets have an address in the configuration",
            alerts=["KneewatchDiscoveryFailing"],
        ),
        panels.stat(
            "Configuration taken",
            "Since the file was last taken, by the Kneewatch that took it longest ago. Good: as long ago as its last"
            " change, or as the last restart.",
            unit="s",
            queries=[Query(f"time() - min({names.CONFIG_TAKEN_AT.name})", "ago")],
            steps=[(None, GREY)],
            no_value="Kneewatch is gone",
            alerts=["KneewatchConfigRefused"],
        ),
        panels.stat(
            "Shards",
            "How many shards there are, of how many. Good: all. The targets of one that is missing are nobody's.",
            unit="none",
            queries=[Query(there, "there"), Query(f"max({names.SHARDS.name})", "of")],
            steps=[(None, GREY)],
            no_value="one Kneewatch has all targets",
            alerts=["KneewatchShardsMismatch"],
        ),
    ]


def _footprint(step: str) -> list[PlacedPanel]:
    tokens = f"sum by (traffic, kind) (rate({names.TOKENS.name}{{{ONE}}}[{RATE}]))"
    return [
        panels.timeseries(
            "CPU",
            "Cores that the monitor's own process uses; forecasts and load come from processes of their own. Good: a"
            " small part of one. Near one core the event loop lags, and latencies read too high.",
            unit="short",
            queries=[Query(pace(names.CPU, ""), "cores")],
            no_value="Kneewatch is gone",
        ),
        panels.timeseries(
            "Memory",
            "Resident memory of the monitor's process. Good: flat after the first two hours, in which readings for"
            " forecasts are gathered.",
            unit="bytes",
            queries=[Query(largest(names.MEMORY, ""), "memory")],
            no_value="Kneewatch is gone",
        ),
        panels.timeseries(
            "Our tokens",
            "Tokens per second that our own requests cost the target, by why they were sent. Good: canaries' few, and"
            " capacity runs at their hours only.",
            unit="short",
            queries=[Query(tokens, "{{traffic}} {{kind}}")],
            min_step=step,
            no_value="nothing is sent to it",
        ),
    ]
