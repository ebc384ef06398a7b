"""What forecasts gain from their record: `python -m benchmarks.capacity.nights`, some seconds.

Ten nights on each server of the records in benchmarks/results that has a forecast and a verified capacity: each night a
forecast, with its error in the record and a scatter between nights, and then one of the server's verified capacities.
Prints the errors of the forecasts of the last five nights, as stated and as corrected.
"""

import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median

from probe.capacity.trend.track_record import ForecastError, TrackRecord, correct
from probe.core.result import Capacity

_RESULTS = Path(__file__).parents[1] / "results"
_FORECASTS, _RUNS = "forecast-2026-11-22.json", "capacity-2026-11-22.json"
# Standard deviation of a server's forecasts: 14 of five servers, other seeds (results/forecast-nights-2026-11-23.json).
_SCATTER = 0.028
_NIGHTS, _LEARNT, _TIMES = 10, 5, 20
_OFF = 0.05
_Measured = list[tuple[float, float]]  # log(answer / truth), half-width


@dataclass(frozen=True, slots=True)
class _Server:
    forecasts: _Measured
    verified: _Measured

    @property
    def is_off(self) -> bool:
        return abs(fmean(error for error, _ in self.forecasts)) > _OFF


def main() -> int:
    forecasts, verified = _measured(_FORECASTS, "forecast"), _measured(_RUNS, "verified")
    servers = [_Server(forecasts[name], verified[name]) for name in forecasts if verified[name]]
    groups = {
        "all": servers,
        "forecast within 5 %": [one for one in servers if not one.is_off],
        "forecast off by more": [one for one in servers if one.is_off],
    }
    for label, group in groups.items():
        for learns in (False, True):
            print(f"{label} ({len(group)}), {'corrected' if learns else 'as stated'}: {_judged(group, learns=learns)}")
    return 0


def _measured(file: str, mode: str) -> defaultdict[str, _Measured]:
    found: defaultdict[str, _Measured] = defaultdict(list)
    for run in json.loads((_RESULTS / file).read_text())["runs"]:
        if run["answer_rps"] and run["mode"] == mode:
            half = run["upper_rps"] / run["answer_rps"] - 1
            found[run["case"]].append((math.log(run["answer_rps"] / run["truth_rps"]), half))
    return found


def _judged(servers: list[_Server], *, learns: bool) -> str:
    said = [each for seed in range(_TIMES) for one in servers for each in _nights(one, Random(seed), learns=learns)]
    errors = sorted(abs((each.requests_per_second or 0.0) - 1) for each in said)
    holds = fmean((each.lower or 0.0) <= 1 <= (each.upper or 0.0) for each in said)
    half = fmean((each.upper or 0.0) / (each.requests_per_second or 1.0) - 1 for each in said)
    return (
        f"error {median(errors):.1%} in the median, {errors[int(0.9 * len(errors))]:.1%} at 90 %, within 10 %:"
        f" {fmean(error <= 0.1 for error in errors):.0%}, interval holds {holds:.0%}, half-width {half:.1%}"
    )


def _nights(server: _Server, random: Random, *, learns: bool) -> list[Capacity]:
    """Return the forecasts of the last nights, for a server whose true capacity is 1."""
    record, said = TrackRecord(), []
    for night in range(_NIGHTS):
        error, half = random.choice(server.forecasts)
        error += random.gauss(0, _SCATTER)
        measured, measured_half = random.choice(server.verified)
        rps = math.exp(error)
        forecast = Capacity("forecast", rps, rps * (1 - half), rps * (1 + half))
        said.append(correct(forecast, record) if learns else forecast)
        record = record.add(ForecastError(float(night), error - measured, half, measured_half))
    return said[-_LEARNT:]


if __name__ == "__main__":
    sys.exit(main())
