"""The dashboard "Kneewatch / Target": one server, in the order in which an engineer on call asks.

In: the configuration and the links. Out: the dashboard's JSON text. Every query filters by $target and, where they
matter, $model and $workload.
"""

from alerts.headroom import LOW
from alerts.links import TARGET, Links
from dashboards import layout, marks, panels, queries
from dashboards.intervals import Intervals
from dashboards.pieces import GREEN, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import WORKLOAD, age, largest, user_requests
from dashboards.target_causes import causes
from dashboards.target_gpus import gpus
from dashboards.target_health import health
from dashboards.target_users import users
from dashboards.variables import chosen
from exporters import names

TITLE = "Kneewatch / Target"


def target_dashboard(links: Links, intervals: Intervals, *, has_gpus: bool) -> str:
    """Return the dashboard as JSON text. `has_gpus`: whether any target has GPUs that are read."""
    return layout.dashboard(
        TITLE,
        TARGET,
        "One model server: latency of users, its causes, GPUs and remaining capacity.",
        variables=chosen(),
        rows=[
            PanelRow("Is it slow or broken, for users?", health()),
            PanelRow("User traffic and latency", users()),
            PanelRow("Why?", causes()),
            PanelRow("GPUs", gpus(), is_collapsed=not has_gpus),
            PanelRow("How much more can it take?", _capacity()),
        ],
        annotations=marks.marks(queries.TARGET),
        links=links,
        intervals=intervals,
    )


def _capacity() -> list[PlacedPanel]:
    by = "mode, workload"
    return [
        panels.timeseries(
            "Capacity",
            "Requests per second that the server sustains within every objective, measured and forecast. Good: at its"
            " baseline. The Capacity dashboard has the bounds, the knee, the bottleneck and the cost.",
            unit="reqps",
            queries=[
                Query(largest(names.CAPACITY_RPS, WORKLOAD, by), "{{mode}} {{workload}}"),
                Query(user_requests(), "users now"),
            ],
            width=10,
            no_value="neither measured nor forecast",
        ),
        panels.timeseries(
            "Headroom",
            f"The share of capacity that user traffic leaves free. Good: above {LOW:.0%} at the day's peak. Below zero,"
            " user traffic exceeds the capacity.",
            unit="percentunit",
            queries=[Query(largest(names.HEADROOM, WORKLOAD, by), "{{mode}} {{workload}}")],
            width=10,
            minimum=None,
            maximum=1,
            no_value="capacity or user traffic is unknown",
        ),
        panels.stat(
            "Age",
            "Time since capacity was last measured or forecast. Good: less than the schedule's period.",
            unit="s",
            queries=[Query(age(names.CAPACITY_LAST_SUCCESS, WORKLOAD, "mode, workload"), "{{mode}} {{workload}}")],
            steps=[(None, GREEN), (2 * 86400, YELLOW), (8 * 86400, RED)],
            no_value="never",
        ),
    ]
