"""What a page within the hour takes, by chance and by a real burn: `python -m benchmarks.alerts.updates`.

For each number of failed canaries that the hour must have: how often rolling updates and single failures of the
simulated months (world.py) have as many, in 100 months of three targets; how many of the burns of some hours page; and
how long a dead server fails its canaries before it pages. A scrape, a minute's record and the page's evaluation come
on top of that. The five minutes of the pair must hold two failures.
"""

from collections.abc import Sequence

import numpy as np

from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts.month import DAYS, SERVER_RESTARTS
from benchmarks.alerts.rings import ALLOWED, PER_MINUTE, sustained
from benchmarks.alerts.world import FAIL, PROFILES, RESTART_FAILS, RESTART_S, TICK_S
from benchmarks.backfill import Bools, Floats

LEASTS = (4, 5, 6, 7, 8)
BURNS = ((14.4, 2), (20.0, 1), (20.0, 2), (24.0, 1), (24.0, 2), (50.0, 1))  # times the budget's pace, and hours
_LATELY_S, _MONTHS = 300.0, 100
_ROUND = 50_000  # target months
_MOST = 30  # single failures in a month: 7 on average


def months(rng: np.random.Generator, count: int) -> Floats:
    """Return when canaries of targets without faults fail, in order: a row for each target's month, filled with inf."""
    length_s, ticks = DAYS * DAY_S, np.arange(round(RESTART_S / TICK_S))
    single = rng.uniform(0, length_s, (count, _MOST))
    number = np.minimum(rng.poisson(length_s / TICK_S * FAIL, (count, 1)), _MOST)
    single[np.arange(_MOST) >= number] = np.inf
    updates = rng.uniform(0, length_s, (count, SERVER_RESTARTS, 1)) + TICK_S * ticks
    updates[rng.random(updates.shape) >= rng.choice(RESTART_FAILS, (count, SERVER_RESTARTS, 1))] = np.inf
    return np.sort(np.concatenate((single, updates.reshape(count, -1)), axis=1), axis=1)


def pages(times: Floats, least: int) -> Bools:
    """Return which rows have so many failures within an hour, of which the last two lie within five minutes."""
    last, before, first = times[:, least - 1 :], times[:, least - 2 : -1], times[:, : 1 - least]
    with np.errstate(invalid="ignore"):  # inf - inf: no such failure
        return np.asarray(np.any((last - first < HOUR_S) & (last - before < _LATELY_S), axis=1))


def false_pages(rng: np.random.Generator, leasts: Sequence[int], rounds: int) -> list[float]:
    """Return how many of 100 months of all targets have a page, for each number of failures."""
    drawn = [months(rng, _ROUND) for _ in range(rounds)]
    return [_MONTHS * len(PROFILES) * float(np.mean([pages(each, least).mean() for each in drawn])) for least in leasts]


def found(rng: np.random.Generator, least: int, pace: float, hours: int, draws: int = 500) -> float:
    """Return the share of burns of some hours at a pace that page while they last."""
    design, minutes = sustained(0, 720, least), hours * 60
    calm = np.zeros(12 * 60)
    burns = rng.binomial(PER_MINUTE, pace * ALLOWED, (draws, minutes)).astype(np.float64)
    return float(np.mean([bool(design(np.concatenate((calm, burn)))[0].any()) for burn in burns]))


def table(rounds: int = 20) -> str:
    """Return the comparison as a Markdown table."""
    heads = [f"{pace:g} times for {hours} h" for pace, hours in BURNS]
    lines = [f"| failures | seconds | false pages in {_MONTHS} months | " + " | ".join(heads) + " |"]
    lines.append("|---" * (len(heads) + 3) + "|")
    for least, false in zip(LEASTS, false_pages(np.random.default_rng(7), LEASTS, rounds), strict=True):
        share = [f"{found(np.random.default_rng(7), least, *burn):.0%}" for burn in BURNS]
        lines.append(f"| {least} | {least * TICK_S:g} | {false:.3g} | " + " | ".join(share) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
