"""The dashboard "Kneewatch / Fleet": all watched targets, the worst first.

In: the links. Out: the dashboard's JSON text. Queries over all targets use only gauges, recorded ratios and, for the
current values, short windows: a month of fifty targets' histograms would take a minute.
"""

from alerts import sli, trends
from alerts.headroom import FALLING_BELOW, LOW
from alerts.links import CAPACITY, FLEET, TARGET, Links
from dashboards import layout, marks, panels, signs
from dashboards.layout import Intervals
from dashboards.pieces import (
    GREEN,
    GREY,
    OVERSPENT,
    OVERSPENT_TEXTS,
    PAGES,
    RED,
    YELLOW,
    Column,
    PanelRow,
    PlacedPanel,
    Query,
    Steps,
    Texts,
)
from dashboards.queries import ASLEEP, burn, faulty_gpus, named, of_alerts, or_asleep, paging, quantile
from dashboards.variables import IN_GROUP, places
from exporters import names
from exporters.names import Series
from probe.capacity.trend.reference import DROP_RATIO
from probe.observe.kv_pressure import FULL

TITLE = "Kneewatch / Fleet"

_SHOWN = 5  # targets in a line chart

_CANARY = 'traffic="canary"'
# Of a headroom that is not known: without any value in it, the column would be missing.
_UNKNOWN = -1000
_UNKNOWN_TEXTS: Texts = {f"<={_UNKNOWN}": ("not known", GREY)}
_ALERTS: Texts = {"0": ("none", GREEN), "1": ("ticket", YELLOW), "2": ("page", RED)}
_UP = {"0": ("DOWN", RED), "1": ("up", GREEN), str(ASLEEP): ("asleep", GREY)}
_NOW = "15m"  # window of the percentiles: sixty canaries, at one every 15 s
_BURNING: Steps = [(None, GREEN), (1, YELLOW), (6, RED)]
_LEFT: Steps = [(None, RED), (0, YELLOW), (0.25, GREEN)]
_OF_OBJECTIVE: Steps = [(None, GREEN), (0.8, YELLOW), (1, RED)]
_HEADROOM: Steps = [(None, RED), (LOW, YELLOW), (FALLING_BELOW, GREEN)]
_FULL: Steps = [(None, GREEN), (0.75, YELLOW), (FULL, RED)]
_PREEMPTED: Steps = [(None, GREEN), (0.005, YELLOW), (0.1, RED)]
_SHIFTED: Steps = [(None, RED), (-DROP_RATIO, YELLOW), (-0.05, GREEN)]


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
            width=4,
        ),
        panels.stat(
            "Down",
            "Targets whose last canary failed. Good: none. A server may answer /health and still be down here.",
            unit="none",
            queries=[Query(f"sum({trends.up()} == bool 0)", "down")],
            steps=[(None, GREEN), (1, RED)],
            width=5,
            no_value="no target has had a canary or a scrape",
        ),
        panels.stat(
            "Burning",
            "Targets that spent an error budget faster than allowed in the last hour. Good: none.",
            unit="none",
            queries=[Query(f"sum({highest_burn()} > bool 1)", "burning")],
            steps=[(None, GREEN), (1, YELLOW)],
            width=5,
            no_value="no canaries or users for an hour",
        ),
        panels.stat(
            "Low headroom",
            f"Targets with less than {LOW:.0%} of their capacity free. Good: none. Targets without a measured or"
            " forecast capacity are not counted.",
            unit="none",
            queries=[Query(f"sum({trends.headroom()} < bool {LOW:g})", "low headroom")],
            steps=[(None, GREEN), (1, YELLOW)],
            width=5,
            no_value="not known: no capacity run or forecast so far",
        ),
        panels.stat(
            "Alerts that page",
            "Kneewatch's alerts that fire in this Prometheus and page. Good: none. The table says of which targets.",
            unit="none",
            queries=[Query(f"count({paging()}) or 0 * max({trends.UP})", "page")],
            steps=[(None, GREEN), (1, RED)],
            width=5,
            no_value="not known: the rules are not loaded in this Prometheus",
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
            no_value="no capacity run or forecast so far, or the recording rules are not loaded",
        ),
        panels.timeseries(
            "Capacity against its baseline, lowest",
            "The last measured capacity relative to its baseline, minus 1, of the five targets that lost most. Good:"
            f" about zero. Runs differ by a few percent; at {-DROP_RATIO:.0%}, confirmed by two more runs, an alert"
            f" pages.",
            unit="percentunit",
            queries=[_worst(trends.SHIFT, "bottomk")],
            minimum=None,
            no_value="no target has had three capacity runs of one setup, or the recording rules are not loaded",
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


def table(links: Links) -> PlacedPanel:
    return panels.table(
        "Targets, worst first",
        "Targets that are down come first, then those with the highest burn rate, then those with least headroom."
        " Good: only green. Cause is the strongest sign that the metrics show, late or not. Percentiles cover the last"
        " 15 minutes, preemptions the last 5, burn the last hour, and the"
        " budget the objective's window, each by its worst objective. Shift is the capacity against its baseline; GPU"
        " faults counts GPUs whose last XID error came from the GPU, not from a program. An empty cell means unknown,"
        " such as user TTFT without users. Click a name for its dashboards.",
        key=("target", "Target"),
        columns=[*_objective_columns(), *_cause_columns()],
        rank=_rank(),
        links=_links(links),
        height=14,
        no_value="no target is watched",
    )


def _links(links: Links) -> list[tuple[str, str]]:
    """Return titles and addresses for a target's name: its dashboards and, if their address is known, its page."""
    chosen = "var-datasource=${datasource}&${cluster:queryparam}&${namespace:queryparam}&var-target=${__value.raw}"
    dashboards = [
        (title, f"/d/{links.uid_prefix}{uid}?{chosen}&${{__url_time_range}}")
        for title, uid in (("Target", TARGET), ("Capacity", CAPACITY))
    ]
    return dashboards + ([(PAGES, links.page_of("targets/${__value.raw}"))] if links.pages else [])


def _objective_columns() -> list[Column]:
    canary, users = names.OBJECTIVE_SECONDS, names.USERS_OBJECTIVE_SECONDS
    seconds = [
        ("TTFT", names.TTFT, _CANARY, canary, "ttft"),
        ("TPOT", names.TPOT, _CANARY, canary, "tpot"),
        ("User TTFT", names.USERS_TTFT, "", users, "ttft"),
    ]
    asleep = f"max by (target) ({names.SERVER_ASLEEP.name})"
    columns = [
        Column("Up", or_asleep(trends.up(), asleep), unit="none", texts=_UP, width=76),
        Column("Alerts", _alerts(), unit="none", texts=_ALERTS, width=76),
        Column("Cause", signs.strongest(), unit="none", texts=signs.TEXTS, width=150),
        Column("Headroom", _headroom(), "percentunit", steps=_HEADROOM, texts=_UNKNOWN_TEXTS, decimals=0),
        Column("Burn", highest_burn(), steps=_BURNING, width=70, decimals=1),
        Column("Budget left", trends.budget(), "percentunit", steps=_LEFT, texts=OVERSPENT_TEXTS, decimals=0),
    ]
    for title, histogram, selector, limits, objective in seconds:
        share = _share(histogram, selector, limits, objective)
        columns += [
            Column(f"{title} p95", _p95(histogram, selector), unit="s", width=118),
            Column(f"{title} / limit", share, unit="percentunit", steps=_OF_OBJECTIVE, width=122, decimals=0),
        ]
    return columns


def _cause_columns() -> list[Column]:
    preemptions = f"max by (target) (rate({names.SERVER['preemptions'].name}[5m]))"
    return [
        Column("Shift", trends.shift(), unit="percentunit", steps=_SHIFTED, width=80, decimals=0),
        Column("KV cache", trends.kv_cache(), unit="percentunit", steps=_FULL, decimals=0),
        Column("Waiting", trends.waiting(), steps=[(None, GREEN), (1, YELLOW), (16, RED)], width=84, decimals=0),
        Column("Preempt./s", preemptions, steps=_PREEMPTED, decimals=2),
        Column("GPU faults", faulty_gpus(), steps=[(None, GREEN), (1, RED)], decimals=0),
    ]


def _headroom() -> str:
    """Return the lowest headroom of each target, _UNKNOWN where there is none."""
    return f"{trends.headroom()}\nor on (target) 0 * {trends.up()} - {-_UNKNOWN}"


def _alerts() -> str:
    """Return 2 for targets of which an alert pages, 1 for those of which one opens a ticket, else 0."""
    firing = of_alerts('target!=""', "target")
    return f"{firing}\nor on (target) 0 * max by (target) ({trends.UP})"


def highest_burn() -> str:
    """Return the highest burn rate of each target's error budgets."""
    each = "\n  or ".join(named("slo", one.objective, f"({burn(one)})") for one in sli.ALL)
    users = (named("slo", f"users' {one.objective}", f"({burn(one)})") for one in sli.USERS)
    return f"max by (target) (\n  {each}\n  or " + "\n  or ".join(users) + "\n)"


def _share(histogram: Series, selector: str, limits: Series, objective: str) -> str:
    """Return the 95th percentile relative to the objective."""
    limit = f'max by (target) ({limits.name}{{objective="{objective}"}})'
    return f"{_p95(histogram, selector)}\n/ on (target) {limit}"


def _p95(histogram: Series, selector: str) -> str:
    """Return the 95th percentile by target; no sample, rather than NaN, without requests."""
    return f"({quantile(0.95, histogram, selector, 'target', _NOW)} >= 0)"


def _rank() -> str:
    """Return the order of the rows: down, then burning, then low headroom. A missing value counts as no problem.

    A GPU fault counts as much as a burn rate of 6, which is red.
    """
    nothing = f"0 * {trends.up()}"
    return (
        f"1000 * (1 - {trends.up()})\n"
        f"+ on (target) ({highest_burn()} or on (target) {nothing})\n"
        f"+ on (target) (6 * clamp_max({faulty_gpus()}, 1) or on (target) {nothing})\n"
        f"+ on (target) ((1 - clamp({trends.headroom()}, 0, 1)) or on (target) {nothing})"
    )
