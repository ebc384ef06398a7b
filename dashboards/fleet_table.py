"""The table of the Fleet dashboard: every target in a row, the worst first."""

from alerts import sli, trends
from alerts.headroom import FALLING_BELOW, LOW
from alerts.links import CAPACITY, TARGET, Links
from dashboards import panels
from dashboards.pieces import GREEN, GREY, OVERSPENT_TEXTS, PAGES, RED, YELLOW, Column, PlacedPanel, Steps
from dashboards.queries import ASLEEP, burn, faulty_gpus, named, or_asleep, quantile
from exporters import names
from exporters.names import Series
from probe.capacity.trend.reference import DROP_RATIO
from probe.observe.kv_pressure import FULL

_CANARY = 'traffic="canary"'
_UP = {"0": ("DOWN", RED), "1": ("up", GREEN), str(ASLEEP): ("asleep", GREY)}
_NOW = "15m"  # window of the percentiles: sixty canaries, at one every 15 s
_BURNING: Steps = [(None, GREEN), (1, YELLOW), (6, RED)]
_LEFT: Steps = [(None, RED), (0, YELLOW), (0.25, GREEN)]
_OF_OBJECTIVE: Steps = [(None, GREEN), (0.8, YELLOW), (1, RED)]
_HEADROOM: Steps = [(None, RED), (LOW, YELLOW), (FALLING_BELOW, GREEN)]
_FULL: Steps = [(None, GREEN), (0.75, YELLOW), (FULL, RED)]
_PREEMPTED: Steps = [(None, GREEN), (0.005, YELLOW), (0.1, RED)]
_SHIFTED: Steps = [(None, RED), (-DROP_RATIO, YELLOW), (-0.05, GREEN)]


def table(links: Links) -> PlacedPanel:
    return panels.table(
        "Targets, worst first",
        "Targets that are down come first, then those with the highest burn rate, then those with least headroom."
        " Good: only green. Percentiles cover the last 15 minutes, preemptions the last 5, burn the last hour, and the"
        " budget the objective's window, each by its worst objective. Shift is the capacity against its baseline; GPU"
        " faults counts GPUs whose last XID error is not a program's. An empty cell means unknown, such as user TTFT"
        " without users. Click a name for its dashboards.",
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
    preemptions = f"max by (target) (rate({names.SERVER_PREEMPTIONS.name}[5m]))"
    return [
        Column("Headroom", trends.headroom(), unit="percentunit", steps=_HEADROOM, decimals=0),
        Column("Shift", trends.shift(), unit="percentunit", steps=_SHIFTED, width=80, decimals=0),
        Column("KV cache", trends.kv_cache(), unit="percentunit", steps=_FULL, decimals=0),
        Column("Waiting", trends.waiting(), steps=[(None, GREEN), (1, YELLOW), (16, RED)], width=84, decimals=0),
        Column("Preempt./s", preemptions, steps=_PREEMPTED, decimals=2),
        Column("GPU faults", faulty_gpus(), steps=[(None, GREEN), (1, RED)], decimals=0),
    ]


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
