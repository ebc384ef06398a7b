"""The track record of forecasts: what later runs with load say about them corrects the next one. Pure.

In: for one fingerprint, the errors of its forecasts, oldest first. Replicas with the same fingerprint share a record,
since they share what a forecast does not know. Out: the bias of the forecasts, and by what factor their intervals were
too narrow.

The bias is the median error of the last 14, times n / (n + 3): Bühlmann's credibility (1967), where 3 is the variance
of one setup's errors over the variance between setups. On simulated servers it is below 1
(docs/evidence/method.md); live nights differ more, and an error that was not there costs more than one that is found a
few nights later. One error moves the bias by less than its stated half-width.

The interval follows adaptive conformal inference (Gibbs and Candes, 2021): after each judged forecast
`alpha += gamma * (0.1 - missed)`, and the next interval is the one that misses with probability alpha. The quantile
comes from a normal distribution: the forecast's own interval holds 90 % of it. A record with a few dozen errors has no
tail to take quantiles from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median

from probe.capacity.trend.fingerprint import is_comparable
from probe.core.result import Capacity, CapacityResult, Correction, PriorForecast

KEEP = 60  # errors of one fingerprint; older ones say little about today's versions of Kneewatch and of the traffic
_BIAS_OF = 14  # errors: two weeks of nights
_CREDIBILITY = 3.0  # errors that the assumption of no bias is worth
_NO_MEDIAN = 2  # errors; the median of more withstands a wild one
_OUTLIER = 3.0  # half-widths beyond which one of the first errors counts no further
_MISSES = 0.1  # a stated interval holds nine of ten
# One miss widens the interval by 17 %, ten hits narrow it by 12 %. Gibbs and Candes take 0.005 for thousands of
# errors. A server has one a night, and theirs would take months. Above 0.1 one miss would double the interval.
_GAMMA = 0.05
_NO_MISSES = 1e-6
_MAX_ALPHA = 0.5
_NARROWEST, _WIDEST = 0.5, 3.0  # of the factor
_JUDGES = 0.1  # the widest half-width of a capacity that judges a forecast
_WORTH_SAYING = 0.01
_MOST_LOG_RATIO = math.log(1e4)  # no forecast is that wrong


@dataclass(frozen=True, slots=True)
class ForecastError:
    """A forecast before any correction, judged by a later run with load.

    `log_ratio`: logarithm of the forecast over the capacity measured. `half_width`: half of the forecast's interval,
    relative; `measured_half_width`: half of the measured interval.
    """

    at_s: float  # wall time of the run
    log_ratio: float
    half_width: float
    measured_half_width: float

    @property
    def is_plausible(self) -> bool:
        """Return whether a forecast and a run can have these values. A damaged file may have values of another type."""
        values = (self.at_s, self.log_ratio, self.half_width, self.measured_half_width)
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            return False
        is_ratio = abs(self.log_ratio) <= _MOST_LOG_RATIO
        return is_ratio and 0 < self.half_width <= 1 and 0 <= self.measured_half_width <= 1


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """What the errors so far show. `bias`: of a forecast, as a logarithm. `floor`: the least half-width."""

    count: int = 0
    recent: tuple[float, ...] = ()
    floors: tuple[float, ...] = ()
    alpha: float = _MISSES

    @property
    def bias(self) -> float:
        counted = len(self.recent)
        return counted / (counted + _CREDIBILITY) * median(self.recent) if self.recent else 0.0

    @property
    def factor(self) -> float:
        """Return the factor for a forecast's half-width."""
        if self.alpha <= _NO_MISSES:
            return _WIDEST
        usual, quantile = (NormalDist().inv_cdf(1 - alpha / 2) for alpha in (_MISSES, self.alpha))
        return min(max(quantile / usual, _NARROWEST), _WIDEST)

    def half_width(self, stated: float) -> float:
        """Return the half-width of a forecast's interval, at least as wide as the measured capacities' own."""
        return max(stated * self.factor, median(self.floors)) if self.floors else stated

    def add(self, error: ForecastError) -> "TrackRecord":
        """Return the record with one more error."""
        most = _OUTLIER * error.half_width if self.count < _NO_MEDIAN else math.inf
        measured = math.exp(self.bias - error.log_ratio)  # relative to the corrected forecast
        is_missed = abs(measured - 1) > self.half_width(error.half_width)
        return TrackRecord(
            count=self.count + 1,
            recent=(*self.recent, min(max(error.log_ratio, -most), most))[-_BIAS_OF:],
            floors=(*self.floors, error.measured_half_width)[-_BIAS_OF:],
            alpha=min(max(self.alpha + _GAMMA * (_MISSES - is_missed), -_GAMMA), _MAX_ALPHA),
        )


def track_record(errors: Sequence[ForecastError]) -> TrackRecord:
    """Return the record of these errors, oldest first."""
    record = TrackRecord()
    for error in errors:
        record = record.add(error)
    return record


def correct(forecast: Capacity, record: TrackRecord) -> Capacity:
    """Return the forecast with its bias removed and its interval adapted."""
    rps, upper = forecast.requests_per_second, forecast.upper
    if rps is None or upper is None or not record.count:
        return forecast
    stated, ratio = upper / rps - 1, math.exp(-record.bias)
    half, tokens = record.half_width(stated), forecast.output_tokens_per_second
    return replace(
        forecast,
        requests_per_second=rps * ratio,
        lower=rps * ratio * (1 - min(half, 1.0)),
        upper=rps * ratio * (1 + half),
        output_tokens_per_second=tokens * ratio if tokens is not None else None,
        correction=Correction(len(record.recent), ratio - 1, PriorForecast(rps, stated)),
    )


def is_worth_saying(correction: Correction | None) -> bool:
    """Return whether a correction is large enough to be shown to people."""
    return correction is not None and abs(correction.ratio) >= _WORTH_SAYING


def prior_forecast(forecast: CapacityResult | None, run: CapacityResult) -> PriorForecast | None:
    """Return the forecast of the same setup from before a run, without its correction; None if there is none.

    A run that repeats another one judges nothing: the first one has judged the same forecast.
    """
    if forecast is None or run.confirms is not None:
        return None
    if not is_comparable(forecast, run):
        return None
    found = forecast.capacity
    if found.correction is not None:
        return found.correction.uncorrected
    if not found.requests_per_second or found.upper is None:
        return None
    return PriorForecast(found.requests_per_second, found.upper / found.requests_per_second - 1)


def forecast_error(run: CapacityResult) -> ForecastError | None:
    """Return the error of the forecast from before a run; None unless the run measured it.

    A capacity judges a forecast if its interval is within a tenth to each side, as every verified one's is.
    """
    prior, found = run.prior_forecast, run.capacity
    rps, lower, upper = found.requests_per_second, found.lower, found.upper
    if prior is None or found.mode == "forecast" or not rps or lower is None or upper is None:
        return None
    half = max(upper / rps - 1, 1 - lower / rps)
    if half > _JUDGES:
        return None
    error = ForecastError(run.ended_s, math.log(prior.requests_per_second / rps), prior.half_width, half)
    return error if error.is_plausible else None
