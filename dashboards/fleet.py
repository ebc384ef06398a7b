"""The dashboard "Kneewatch / Fleet": all watched targets, the worst first.

In: the links. Out: the dashboard's JSON text. Queries over all targets use only gauges, recorded ratios and, for the
current values, short windows: a month of fifty targets' histograms would take a minute.
"""

from alerts import trends
from alerts.headroom import LOW
from alerts.links import FLEET, Links
from dashboards import layout, marks, panels
from dashboards.fleet_table import highest_burn, table
from dashboards.intervals import Intervals
from dashboards.pieces import GREEN, GREY, OVERSPENT, OVERSPENT_TEXTS, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.scope import IN_GROUP
from dashboards.variables import places
from probe.capacity.trend.reference import DROP_RATIO

TITLE = "Kneewatch / Fleet"

_SHOWN = 5  # targets in a line chart


def fleet_dashboard(links: Links, intervals: Intervals) -> str:
    """Return the dashboard as JSON text."""
    return layout.dashboard(
        TITLE,
        FLEET,
        "All watched targets, the worst first.",
        variables=places(),
        rows=[
            PanelRow("Is any target in trouble?", _counts()),
            PanelRow("Which one?", [table(links)]),
            PanelRow("Since when?", _over_time()),
        ],
        annotations=marks.kneewatch(),
        links=links,
        intervals=intervals,
        since="now-24h",
        scope=IN_GROUP,
    )


def _counts() -> list[PlacedPanel]:
    return [
        panels.stat(
            "Targets",
            "Number of watched servers. Good: as many as you run. A server that is missing here is not monitored.",
            unit="none",
            queries=[Query(f"count({trends.up()})", "targets")],
            steps=[(None, GREY)],
            width=6,
        ),
        panels.stat(
            "Down",
            "Targets whose last canary failed. Good: none. A server may answer /health and still be down here.",
            unit="none",
            queries=[Query(f"sum({trends.up()} == bool 0)", "down")],
            steps=[(None, GREEN), (1, RED)],
            width=6,
        ),
        panels.stat(
            "Burning",
            "Targets that spent an error budget faster than allowed in the last hour. Good: none.",
            unit="none",
            queries=[Query(f"sum({highest_burn()} > bool 1)", "burning")],
            steps=[(None, GREEN), (1, YELLOW)],
            width=6,
        ),
        panels.stat(
            "Low headroom",
            f"Targets with less than {LOW:.0%} of their capacity free. Good: none. Targets without a measured or"
            " forecast capacity are not counted.",
            unit="none",
            queries=[Query(f"sum({trends.headroom()} < bool {LOW:g})", "low headroom")],
            steps=[(None, GREEN), (1, YELLOW)],
            width=6,
        ),
    ]


def _worst(record: str, choose: str, lowest: float | None = None) -> Query:
    """Return lines for the targets that are worst at the end of the time range; fifty lines would be unreadable.

    Lines end at `lowest`.
    """
    worst = f"{record}\nand on (target) {choose}({_SHOWN}, {record} @ end())"
    return Query(worst if lowest is None else f"clamp_min({worst}, {lowest:g})", "{{target}}")


def _over_time() -> list[PlacedPanel]:
    return [*_budget_and_capacity(), *_server_state()]


def _budget_and_capacity() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Lowest error budget left",
            "The five targets with the least error budget, by their worst objective. Good: flat, or falling by less"
            " than 100 % in the objective's window. Below zero the objective is missed. Lines end at -100 %, where the"
            " budget is spent twice.",
            unit="percentunit",
            queries=[_worst(trends.BUDGET, "bottomk", OVERSPENT)],
            minimum=None,
            maximum=1,
            texts=OVERSPENT_TEXTS,
            no_value="none yet: it takes the recording rules 40 minutes",
        ),
        panels.timeseries(
            "Lowest headroom",
            f"The five targets with the least headroom. Good: above {LOW:.0%} at the day's peak. Below zero, user"
            " traffic exceeds the capacity.",
            unit="percentunit",
            queries=[_worst(trends.HEADROOM, "bottomk")],
            minimum=None,
            maximum=1,
            no_value="no capacity is known, or the recording rules are not loaded",
        ),
        panels.timeseries(
            "Capacity against its baseline, lowest",
            "The last measured capacity relative to its baseline, minus 1, of the five targets that lost most. Good:"
            f" about zero. Runs differ by a few percent; at {-DROP_RATIO:.0%}, confirmed by two more runs, an alert"
            f" pages.",
            unit="percentunit",
            queries=[_worst(trends.SHIFT, "bottomk")],
            minimum=None,
            no_value="no capacity has a baseline yet, or the recording rules are not loaded",
        ),
    ]


def _server_state() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Fullest KV caches",
            "Share of the KV cache in use, of the five targets where it is highest. A full cache is good use of memory"
            " as long as no request waits.",
            unit="percentunit",
            queries=[_worst(trends.KV_CACHE, "topk")],
            maximum=1,
            no_value="no server exports it, or the recording rules are not loaded",
        ),
        panels.timeseries(
            "Most waiting requests",
            "Requests in the server's queue, of the five targets with most. Good: zero, or short spikes.",
            unit="short",
            queries=[_worst(trends.WAITING, "topk")],
            no_value="no server exports it, or the recording rules are not loaded",
        ),
        panels.states(
            "Downtime",
            "When a target's canaries failed, or for a target without canaries, when its metrics could not be read."
            " Good: empty, or short at deploys.",
            queries=[Query(f"{trends.UP} == 0", "{{target}}")],
            texts={"0": ("down", RED)},
            width=8,
            no_value="no target was down",
        ),
    ]
