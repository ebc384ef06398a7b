"""PromQL that several dashboards share. Pure.

Selectors filter by the dashboard's variables. Several Kneewatches may watch one server: values that each measured
itself are summed, and values that all read from the server's metrics count once (max).
"""

from alerts import trends
from alerts.sli import Sli
from dashboards.pieces import Query
from exporters import names
from exporters.names import Series
from probe.gpu.fields import PROGRAM_XIDS

TARGET = 'target="$target"'
MODEL = f'{TARGET},model=~"$model"'
WORKLOAD = f'{MODEL},workload=~"$workload"'
CANARY = f'{WORKLOAD},traffic="canary"'
MEASURED = f'{WORKLOAD},mode!="forecast"'
# Grafana's own variables: at least four scrapes and at least one point; and the whole time range.
RATE = "$__rate_interval"
RANGE = "$__range"


def largest(series: Series, selector: str = TARGET, by: str = "", function: str = "max") -> str:
    """Return the gauge, the highest of several Kneewatches, or merged by `function`."""
    return f"{function}{_by(by)}({series.name}{_in(selector)})"


# The value for a server that sleeps; 1 is up and 0 is down.
ASLEEP = 2


def or_asleep(up: str, asleep: str) -> str:
    """Return ASLEEP where `asleep` is 1, and else `up`."""
    return f"{ASLEEP} * ({asleep} == 1) or {up}"


def capacity(series: Series, selector: str) -> str:
    """Return a capacity series by mode, model and workload."""
    return largest(series, selector, "mode, model, workload")


def lowest_headroom() -> str:
    """Return the headroom by mode and workload."""
    return largest(names.HEADROOM, WORKLOAD, "mode, workload", "min")


def of_alerts(selector: str = "", by: str = "") -> str:
    """Return 2 where an alert fires that pages, and 1 where one fires that opens a ticket, by labels."""
    return f"max{_by(by)}(2 * {paging(selector)} or {_alerts(selector)})"


def paging(selector: str = "") -> str:
    """Return the alerts that page: by their severity or, where a site has renamed that, by their urgency."""
    return "(" + " or ".join(_alerts(selector, f'{label}="page"') for label in ("severity", "urgency")) + ")"


def no_alert(selector: str = "") -> str:
    """Return 0 if no alert fires although the rules are loaded: without them nothing can fire."""
    return f"0 * max({trends.UP}{_in(selector)})\nunless on () {of_alerts(selector)}"


def _alerts(selector: str, *more: str) -> str:
    wanted = ('alertname=~"Kneewatch.*"', 'alertstate="firing"', 'severity!="none"', *more, selector)
    return f"ALERTS{{{','.join(each for each in wanted if each)}}}"


def pace(series: Series, selector: str = TARGET, by: str = "", function: str = "max") -> str:
    """Return the counter's rate per second."""
    return f"{function}{_by(by)}(rate({series.name}{_in(selector)}[{RATE}]))"


def user_requests() -> str:
    """Return the user requests per second that ended, whatever became of them."""
    return f"sum({pace(names.USERS_REQUESTS, by='outcome')})"


def counted(series: Series, selector: str = TARGET, by: str = "") -> str:
    """Return the number of events in the time range, 0 if there were none."""
    return f"round(sum{_by(by)}(increase({series.name}{_in(selector)}[{RANGE}]))) or on() vector(0)"


def quantile(q: float, histogram: Series, selector: str = TARGET, by: str = "", window: str = RATE) -> str:
    """Return a percentile of a histogram over `window`."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({histogram.bucket}{_in(selector)}[{window}])))"


def percentiles(histogram: Series, selector: str = TARGET, who: str = "") -> list[Query]:
    """Return queries for the median and the 95th percentile."""
    return [Query(quantile(q, histogram, selector), f"{who}p{q * 100:.0f}") for q in (0.5, 0.95)]


def buckets(histogram: Series, selector: str = TARGET) -> str:
    """Return the counts by bucket, for a heat map."""
    return f"sum by (le) (increase({histogram.bucket}{_in(selector)}[{RATE}]))"


def mean(histogram: Series, selector: str = TARGET) -> str:
    """Return the mean of a histogram."""
    total, count = (f"sum(rate({histogram.name}_{part}{_in(selector)}[{RATE}]))" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def objective(kind: str, series: Series = names.OBJECTIVE_SECONDS, legend: str = "objective") -> Query:
    """Return the query of a dashed limit: an objective of the target."""
    return Query(f'max({series.name}{{{TARGET},objective="{kind}"}})', legend)


def age(series: Series, selector: str = TARGET, by: str = "") -> str:
    """Return the seconds since the newest of the timestamps."""
    return f"time() - max{_by(by)}({series.name}{_in(selector)} > 0)"


def age_when_scraped(series: Series, selector: str = "", by: str = "") -> str:
    """Return the seconds since the oldest of the timestamps at the last scrape, however long ago that was."""
    stamps = f"{series.name}{_in(selector)}"
    return f"max{_by(by)}(timestamp({stamps}) - {stamps})"


def burn(sli: Sli, selector: str = "", window: str = "1h") -> str:
    """Return the burn rate of the error budget by target, of its worst workload."""
    wanted = f'objective="{sli.objective}"' + (f",{TARGET}" if selector else "")
    allowed = f"(1 - max by (target) ({names.OBJECTIVE_RATIO.name}{{{wanted}}}))"
    return f"max by (target) ({sli.error_ratio(window, selector)})\n/ on (target) {allowed}"


def spread(expr: str) -> list[Query]:
    """Return queries for the highest and the lowest of several GPUs or engines.

    Eight lines of each are unreadable, and what matters is the one that differs.
    """
    return [Query(f"{function}({expr})", name) for function, name in (("max", "most"), ("min", "least"))]


def gpu_value(field: str) -> str:
    """Return the selector of a GPU's value of the target; `field` is its name at dcgm-exporter after DCGM_FI_."""
    return f"{names.gpu(f'DCGM_FI_{field}').name}{_in(TARGET)}"


def faulty_gpus(selector: str = "") -> str:
    """Return the number of GPUs by target with a last XID error from the GPU, not from a program."""
    last = f"max by (target, UUID) ({names.gpu('DCGM_FI_DEV_XID_ERRORS').name}{_in(selector)})"
    faults = " ".join(f"!= {xid}" for xid in (0, *PROGRAM_XIDS))
    return f"(count by (target) ({last} {faults})\nor 0 * count by (target) ({last}))"


def at_capacity(series: Series) -> list[Query]:
    """Return queries for a series of the capacity. "At least": the last result has no upper bound, as no load broke an
    objective.
    """
    value, upper = capacity(series, WORKLOAD), _at_the_end(capacity(names.CAPACITY_RPS_UPPER, WORKLOAD))
    return [
        Query(f"{value}\nand {upper}", "{{mode}} {{workload}}"),
        Query(f"{value}\nunless {upper}", "at least, {{mode}} {{workload}}"),
    ]


def capacity_over_time(selector: str) -> list[Query]:
    """Return queries for capacity and its bounds, each with the label `bound`.

    An upper bound that is not in the last result has another name: the legend shows it next to a newer capacity.
    """
    upper = capacity(names.CAPACITY_RPS_UPPER, selector)
    last = _at_the_end(upper)
    parts = (
        (capacity(names.CAPACITY_RPS, selector), "capacity"),
        (capacity(names.CAPACITY_RPS_LOWER, selector), "lower bound"),
        (f"{upper} and {last}", "upper bound"),
        (f"{upper} unless {last}", "earlier upper bound"),
    )
    expr = "\nor ".join(named("bound", bound, part) for part, bound in parts)
    return [Query(expr, "{{bound}} {{mode}} {{workload}}")]


def _at_the_end(selector: str) -> str:
    """Return an aggregated selector at the end of the range, for every point of the range."""
    return selector.replace("})", "} @ end())")


def gpu_rate(field: str) -> str:
    """Return the rate of a counter of every GPU."""
    return f"rate({gpu_value(field)}[{RATE}])"


def named(label: str, value: str, expr: str) -> str:
    """Return `expr` with one more label, which distinguishes it from others in one query."""
    return f'label_replace({expr}, "{label}", "{value}", "", "")'


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""


def _in(selector: str) -> str:
    return f"{{{selector}}}" if selector else ""
