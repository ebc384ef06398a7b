"""The load of the next trial, in requests/s: without a model of the server, and towards its forecast. Pure.

`held_rps`: the highest load that held; `failed_rps`: the lowest that was too high.
"""

import math

from probe.capacity.search.search_state import TOP_SHARE, SearchState
from probe.capacity.search.verdict import CLIMB_FACTOR

# Shares of the forecast to try: half, for a guess that is up to twice too high, and so near the knee that nothing
# unexpected lies beyond it. _MAX_GROWTH puts a trial between them.
_FORECAST_SHARES = (0.5, TOP_SHARE)
# Of the guess without pulses. By the unloaded baseline alone it was 0.5 to 2.2 times the capacity of 12 simulated
# servers whose TPOT objective was 1.15, 1.3 or 1.5 times their unloaded TPOT.
_UNPULSED_SHARE = 1 / 3
# The most by which a trial's load exceeds the last that held, since the forecast may be wrong: from half of it the knee
# is two steps away. Early, far below the forecast, it may be more.
_MAX_GROWTH, _MAX_EARLY_GROWTH, _EARLY_SHARE = 1.45, 1.7, 0.4
_MORE_RUNNING = 0.7  # requests at a time by which a climb without any guess rises at least: few steps from one to many
_MIN_GROWTH = 1.2  # the least: a trial nearer to it shows little new
_MIN_INFORMATIVE = 2  # one trial is enough for a step cost model, but not for its uncertainty
# Without a model: the ratio of the lowest failed to the highest held rate at which the search is done, as narrow as a
# verified interval, and the largest step between them, less than early growth since something failed.
_DONE_RATIO, _MAX_GAP_GROWTH = 1.08, 1.3


def first_rates(state: SearchState, held_rps: float, guess_rps: float | None) -> float:
    """Raise the rate quickly from about one request at a time, or from a share of the guess."""
    if state.trials:
        return held_rps * _MAX_EARLY_GROWTH
    if guess_rps is not None:
        share = _FORECAST_SHARES[0] if state.has_pulses else _UNPULSED_SHARE
        return max(share * guess_rps, held_rps * _MIN_GROWTH)
    return max(held_rps * _MAX_GROWTH, held_rps + _MORE_RUNNING / state.unloaded_s)


def between(held_rps: float, failed_rps: float) -> float | None:
    """Return the middle of the bracket; None if it is narrow."""
    return (held_rps + failed_rps) / 2 if failed_rps > held_rps * _DONE_RATIO else None


def towards_forecast(state: SearchState, held_rps: float, limit_rps: float) -> float | None:
    """Return the next share of `limit_rps`, not far above what held; None where no further one is needed."""
    for share in _FORECAST_SHARES:
        rate = share * limit_rps
        if rate > held_rps * _MIN_GROWTH:
            growth = _MAX_EARLY_GROWTH if held_rps < _EARLY_SHARE * limit_rps else _MAX_GROWTH
            return min(rate, held_rps * growth) if held_rps else rate
    is_uninformed = sum(trial.is_informative for trial in state.trials) < _MIN_INFORMATIVE
    return TOP_SHARE * limit_rps if is_uninformed else None


def climb(held_rps: float, failed_rps: float) -> float | None:
    """Go up in small steps, then between the highest rate that held and the lowest that did not; None: done."""
    if failed_rps < held_rps * _DONE_RATIO:
        return None
    if failed_rps == math.inf:
        return held_rps * CLIMB_FACTOR
    return min(math.sqrt(held_rps * failed_rps), held_rps * _MAX_GAP_GROWTH)
