"""False shifts of the knee per year, and how soon real ones are reported: simulated daily runs.

    python benchmarks/shift.py [--years 1000] [--cases 2000]

Runs are drawn at random, and the detector (probe/capacity/trend/change_detection.py) judges them as in the monitor,
with the two runs that confirm a drop of 20 %. Prints a JSON record; exits 1 if a goal is missed. No server, no network,
no clock: each case has a seed, so the numbers are the same each time. Some minutes on one core.
"""

import argparse
import json
import math
import platform
import random
import statistics
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from probe import __version__
from probe.capacity.trend.change_detection import RISE, ChangeDetector
from probe.capacity.trend.reference import MAX_BASELINE, MIN_BASELINE
from probe.core.shift import CapacitySample

MOST_FALSE_A_YEAR = 1.0
FOUND_WITHIN, FOUND_SHARE = 4, 0.95
_YEAR = 365
_USUAL_RPS = 40.0
Noise = Callable[[random.Random], float]


def normal(sd: float) -> Noise:
    """Return log-normal noise."""
    return lambda rng: rng.gauss(0, sd)


def bad_nights(sd: float, share: float = 0.02) -> Noise:
    """Return log-normal noise, with some runs disturbed so that they measure 10 to 30 % less."""
    return lambda rng: rng.gauss(0, sd) + (math.log(rng.uniform(0.7, 0.9)) if rng.random() < share else 0.0)


def heavy_tails(sd: float) -> Noise:
    """Return Student's t noise with three degrees of freedom, scaled to this standard deviation."""
    return lambda rng: sd / math.sqrt(3) * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3)


class Target:
    """A server that is measured once a night, and twice more after a drop, with its change detector."""

    def __init__(self, seed: str, noise: Noise) -> None:
        self.detector = ChangeDetector()
        self._rng = random.Random(seed)
        self._noise = noise
        self._nights = self._runs = 0

    def night(self, level: float = 0.0) -> Counter[str]:
        """Run one night at `level` (log of true over usual capacity). Return the methods that began to fire."""
        before = self.detector.fired()
        first = self._run(level)
        if self.detector.is_unconfirmed:
            self._run(level, confirms=first)
            if self.detector.is_unconfirmed:
                self._run(level)
        self._nights += 1
        return Counter(name for name, fired in self.detector.fired().items() if fired and not before[name])

    def shifted(self, *, up: bool = False) -> bool:
        return any(fired for name, fired in self.detector.fired().items() if (name == RISE) == up)

    def learn(self, runs: int) -> None:
        """Run nights until the baseline has that many runs."""
        while self.detector.reference is None or self.detector.reference.baseline.count < runs:
            self.night()

    def _run(self, level: float, confirms: str | None = None) -> str:
        self._runs += 1
        run, rps = f"{self._runs}", _USUAL_RPS * math.exp(level + self._noise(self._rng))
        self.detector.add(
            CapacitySample(self._nights * 86400.0, rps, rps / 1.05, rps * 1.05, "verified", "f", run, confirms)
        )
        return run


def false_shifts(years: int, noise: Noise, *, baseline: int, nights: int = _YEAR) -> dict[str, float]:
    """Return false shifts per year by direction, and how often each method fired."""
    begun: Counter[str] = Counter()
    for year in range(years):
        target = Target(f"false {year}", noise)
        target.learn(baseline)
        for _ in range(nights):
            before = {up: target.shifted(up=up) for up in (False, True)}
            begun += target.night()
            begun += Counter("up" if up else "down" for up in (False, True) if target.shifted(up=up) and not before[up])
    begun["all"] = begun["down"] + begun["up"]
    return {name: round(count * _YEAR / nights / years, 3) for name, count in sorted(begun.items())}


def found(cases: int, noise: Noise, change: float, *, baseline: int, within: int = 6) -> dict[str, object]:
    """Return the share of shifts by `change` reported after 1, 2, ... runs, and the median number of runs."""
    delays = [_delay(Target(f"found {case}", noise), change, baseline, most=30) for case in range(cases)]
    shares = [round(sum(delay <= runs for delay in delays) / cases, 3) for runs in range(1, within + 1)]
    return {"within_1_to_6_runs": shares, "median_runs": _finite(statistics.median(delays))}


def _delay(target: Target, change: float, baseline: int, most: int) -> float:
    target.learn(baseline)
    while target.shifted() or target.shifted(up=True):  # a shift that is already reported cannot begin
        target.night()
    for run in range(1, most + 1):
        target.night(math.log(1 + change))
        if target.shifted(up=change > 0):
            return run
    return math.inf


def decay(cases: int, noise: Noise, per_week: float, weeks: int = 52) -> dict[str, object]:
    """Return after how many runs a slow decay is first reported, with the frozen baseline and with a rolling one."""
    nights = range(1, weeks * 7)
    frozen, rolling = [], []
    for case in range(cases):
        target = Target(f"decay {case}", noise)
        target.learn(MAX_BASELINE)
        rng = random.Random(f"rolling {case}")
        last = deque((noise(rng) for _ in range(MAX_BASELINE)), maxlen=MAX_BASELINE)
        first: dict[str, int] = {}
        for night in nights:
            level = night / 7 * math.log(1 - per_week)
            target.night(level)
            last.append(level + noise(rng))
            for name, said in (("frozen", target.shifted()), ("rolling", _rolling(list(last)))):
                if said:
                    first.setdefault(name, night)
        frozen.append(first.get("frozen", math.inf))
        rolling.append(first.get("rolling", math.inf))
    return {
        name: {"median_runs": _finite(statistics.median(runs)), "not_in_a_year": sum(map(math.isinf, runs)) / cases}
        for name, runs in (("frozen", frozen), ("rolling", rolling))
    }


def _rolling(last: list[float]) -> bool:
    """Return whether the median of three is low against a rolling median of the runs before."""
    return statistics.median(last[-3:]) - statistics.median(last[:-3]) < math.log(1 - 0.065)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def simple_rules(years: int, noise: Noise) -> dict[str, float]:
    """Return false drops per year by simpler rules, against the same frozen median of 28."""
    begun: Counter[str] = Counter()
    for year in range(years):
        rng = random.Random(f"simple {year}")
        usual = statistics.median(noise(rng) for _ in range(MAX_BASELINE))
        before = {"one run < -10 %": False, "median of 3 < -7 %": False}
        last = deque((usual for _ in range(3)), maxlen=3)
        for _ in range(_YEAR):
            last.append(noise(rng))
            now = {
                "one run < -10 %": last[-1] - usual < math.log(0.9),
                "median of 3 < -7 %": statistics.median(last) - usual < math.log(0.93),
            }
            begun += Counter(rule for rule, fired in now.items() if fired and not before[rule])
            before = now
    return {rule: round(count / years, 3) for rule, count in sorted(begun.items())}


def measure(years: int, cases: int) -> Iterator[tuple[str, object]]:
    """Yield each result's name and value."""
    usual = normal(0.03)
    yield (
        "false_a_year",
        {
            "log-normal 3 %, baseline 28": false_shifts(years, usual, baseline=28),
            "log-normal 3 %, first year after a new fingerprint": false_shifts(years, usual, baseline=MIN_BASELINE),
            "log-normal 3 %, baseline 5 to 10": false_shifts(years * 10, usual, baseline=MIN_BASELINE, nights=6),
            "log-normal 1 %, baseline 28": false_shifts(years // 4, normal(0.01), baseline=28),
            "log-normal 4.5 %, baseline 28": false_shifts(years // 4, normal(0.045), baseline=28),
            "log-normal 6 %, baseline 28": false_shifts(years // 4, normal(0.06), baseline=28),
            "3 % and a bad night in 50, baseline 28": false_shifts(years, bad_nights(0.03), baseline=28),
            "Student's t (3) of 3 %, baseline 28": false_shifts(years // 4, heavy_tails(0.03), baseline=28),
        },
    )
    yield (
        "simple_rules_false_a_year",
        {
            "log-normal 3 %": simple_rules(years, usual),
            "3 % and a bad night in 50": simple_rules(years, bad_nights(0.03)),
        },
    )
    yield "found", {
        f"{change:+.0%}, 3 % noise, baseline {baseline}": found(cases, usual, change, baseline=baseline)
        for change, baseline in (
            (-0.1, 28), (-0.1, 10), (-0.1, 5), (-0.05, 28), (-0.15, 28), (-0.2, 28), (-0.3, 28), (0.1, 28),
        )
    } | {
        "-10%, 3 % and a bad night in 50, baseline 28": found(cases, bad_nights(0.03), -0.1, baseline=28),
        "-10%, 4.5 % noise, baseline 28": found(cases, normal(0.045), -0.1, baseline=28),
        "-10%, 6 % noise, baseline 28": found(cases, normal(0.06), -0.1, baseline=28),
    }  # fmt: skip
    yield "decay", {f"-{share:.2%} a week": decay(min(cases, 200), usual, share) for share in (0.0025, 0.005, 0.01)}


def main() -> int:
    """Print the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--years", type=int, default=1000)
    parser.add_argument("--cases", type=int, default=2000)
    asked = parser.parse_args()
    record: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/shift.py --years {asked.years} --cases {asked.cases}",
        "machine": "2 cores, no GPU",
        "python": platform.python_version(),
        "kneewatch": __version__,
    }
    figures = dict(measure(asked.years, asked.cases))
    false = figures["false_a_year"]["log-normal 3 %, baseline 28"]["all"]  # type: ignore[index]
    share = figures["found"]["-10%, 3 % noise, baseline 28"]["within_1_to_6_runs"][FOUND_WITHIN - 1]  # type: ignore[index]
    print(json.dumps(record | figures, indent=1))
    return 0 if false <= MOST_FALSE_A_YEAR and share >= FOUND_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
