"""The PromQL that several dashboards share. Pure.

Selectors filter by the dashboard's variables. Several Kneewatches may watch one server: what they measured themselves
is added up, and what they all read from the server's page is taken once (max).
"""

from alerts.sli import Sli
from dashboards.pieces import Query
from exporters import names
from exporters.names import Series

TARGET = 'target="$target"'
MODEL = f'{TARGET},model=~"$model"'
WORKLOAD = f'{MODEL},workload=~"$workload"'
CANARY = f'{WORKLOAD},traffic="canary"'
MEASURED, FORECAST = f'{WORKLOAD},mode!="forecast"', f'{WORKLOAD},mode="forecast"'
# At least four scrapes, and at least a point: Grafana's own choice. And all the time that the dashboard shows.
RATE = "$__rate_interval"
RANGE = "$__range"


def largest(series: Series, selector: str = TARGET, by: str = "", function: str = "max") -> str:
    """The gauge, as the highest of several Kneewatches has it, or by `function`."""
    return f"{function}{_by(by)}({series.name}{_in(selector)})"


def figure(series: Series, selector: str) -> str:
    """What is known of a capacity, by how it is known and what for."""
    return largest(series, selector, "mode, model, workload")


def pace(series: Series, selector: str = TARGET, by: str = "", function: str = "max") -> str:
    """The counter, per second."""
    return f"{function}{_by(by)}(rate({series.name}{_in(selector)}[{RATE}]))"


def counted(series: Series, selector: str = TARGET, by: str = "") -> str:
    """How often, in all the time shown. 0 where nothing was counted."""
    return f"round(sum{_by(by)}(increase({series.name}{_in(selector)}[{RANGE}]))) or on() vector(0)"


def quantile(q: float, histogram: Series, selector: str = TARGET, by: str = "", window: str = RATE) -> str:
    """A percentile of what a histogram saw in `window`."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({histogram.bucket}{_in(selector)}[{window}])))"


def percentiles(histogram: Series, selector: str = TARGET, who: str = "") -> list[Query]:
    """The median and the 95th percentile."""
    return [Query(quantile(q, histogram, selector), f"{who}p{q * 100:.0f}") for q in (0.5, 0.95)]


def buckets(histogram: Series, selector: str = TARGET) -> str:
    """The histogram itself, for a heat map: how many, by bucket."""
    return f"sum by (le) (increase({histogram.bucket}{_in(selector)}[{RATE}]))"


def mean(histogram: Series, selector: str = TARGET) -> str:
    """The mean of what a histogram saw."""
    total, count = (f"sum(rate({histogram.name}_{part}{_in(selector)}[{RATE}]))" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def objective(kind: str, series: Series = names.OBJECTIVE_SECONDS, legend: str = "objective") -> Query:
    """A dashed limit: an objective of the target."""
    return Query(f'max({series.name}{{{TARGET},objective="{kind}"}})', legend)


def age(series: Series, selector: str = TARGET, by: str = "") -> str:
    """Seconds since the newest of some times."""
    return f"time() - max{_by(by)}({series.name}{_in(selector)} > 0)"


def burn(sli: Sli, selector: str = "", window: str = "1h") -> str:
    """How many times faster than allowed the error budget is spent, by target: the worst of its workloads."""
    wanted = f'objective="{sli.objective}"' + (f",{TARGET}" if selector else "")
    allowed = f"(1 - max by (target) ({names.OBJECTIVE_RATIO.name}{{{wanted}}}))"
    return f"max by (target) ({sli.error_ratio(window, selector)})\n/ on (target) {allowed}"


def spread(expr: str) -> list[Query]:
    """The most and the least of several GPUs or engines.

    Eight lines of each would be read by nobody, and one that differs from the others is what to look for.
    """
    return [Query(f"{function}({expr})", name) for function, name in (("max", "most"), ("min", "least"))]


def named(label: str, value: str, expr: str) -> str:
    """`expr` with one more label, to tell it from others in one query."""
    return f'label_replace({expr}, "{label}", "{value}", "", "")'


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""


def _in(selector: str) -> str:
    return f"{{{selector}}}" if selector else ""
