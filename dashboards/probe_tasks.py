"""Rows of the Probe dashboard: the tasks of one target, and the scrapes of its server."""

from dashboards import panels
from dashboards.pieces import GREEN, PlacedPanel, Query
from dashboards.queries import RATE, age_when_scraped, counted, largest
from dashboards.queries import TARGET as ONE
from exporters import names


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
    bound = f'sum(increase({steps}{{{ONE},verdict="client_bound"}}[1d])) / (sum(increase({steps}{{{ONE}}}[1d])) > 0)'
    return [
        panels.timeseries(
            "Load levels lost to the client",
            "Share of the load levels in a day's capacity runs that were client_bound: Kneewatch's machine was too"
            " slow. Good: zero. Give Kneewatch more CPU, or run the load from another machine.",
            unit="percentunit",
            queries=[Query(bound, "client_bound")],
            maximum=1,
            no_value="no capacity run in a day",
        ),
        panels.stat(
            "Load levels of capacity runs",
            "In the time range: load levels of capacity runs, by verdict. Good: nearly all valid. A budget or the guard"
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
