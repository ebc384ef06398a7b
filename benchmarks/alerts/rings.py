"""How often designs of burn alerts ring, how soon, and for how long: `python -m benchmarks.alerts.rings`.

Each design is evaluated minute by minute on streams of canaries, four a minute, of a target with an availability of
99.9 % over 30 days: a server that fails a small share of requests for two days, outages, an outage followed by stray
failures, several outages in a row or during a steady burn, and a server that restarts when it has been watched for ten
minutes. A ring is an alert that begins to fire.
Nothing here reads the generated rules: tests/rules has promtool evaluate those on the same cases.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.backfill import Bools, Floats

PER_MINUTE, ALLOWED, DAY = 4, 0.001, 1440
_HISTORY = 12 * 60  # minutes without a failure before and after
Design = Callable[[Floats], list[Bools]]  # failures in each minute -> whether each alert fires
STEADY = (0.003, 0.005, 0.01, 0.02, 0.05, 0.25)
OUTAGES = (2, 5, 20, 60)
AGAIN = ((2, 20, 30), (2, 20, 100), (8, 5, 5), (8, 10, 30))  # outages, their minutes, and the minutes between them


@dataclass(frozen=True, slots=True)
class Heard:
    """What an engineer notices of a cause: rings, minutes until the first, minutes that it fires after the end."""

    rings: int
    after_min: int | None
    lasts_min: int


def within(failures: Floats, minutes: int) -> Floats:
    """Return the sum over the last minutes, at each minute."""
    total = np.concatenate(([0.0], np.cumsum(failures)))
    end = np.arange(1, len(total))
    return np.asarray(total[end] - total[np.maximum(end - minutes, 0)])


def burn(failures: Floats, minutes: int) -> Floats:
    """Return the share of failures divided by the allowed one; of a target watched for fewer minutes, of those."""
    known = np.minimum(minutes, np.arange(1, len(failures) + 1))
    return np.asarray(within(failures, minutes) / (known * PER_MINUTE * ALLOWED))


def kept(fires: Bools, minutes: int) -> Bools:
    """Apply `keep_firing_for`."""
    return np.asarray(within(fires.astype(np.float64), minutes + 1) > 0) if minutes else fires


def rings(fires: Bools) -> int:
    """Return how often an alert begins to fire."""
    return int(np.sum(fires[1:] & ~fires[:-1])) + int(fires[0])


def _pair(
    failures: Floats, long: int, short: int, rate: float, *, least: int = 3, lately: int = 2, padded: bool = True
) -> Bools:
    """Return where both windows burn at `rate`. `padded`: the time before the first minute counts as good.

    `least` and `lately`: failures that the long and the short window must have.
    """
    share = within(failures, long) / (long * PER_MINUTE * ALLOWED) if padded else burn(failures, long)
    return np.asarray(
        (share > rate)
        & (burn(failures, short) > rate)
        & (within(failures, long) >= least)
        & (within(failures, short) >= lately)
    )


def before(failures: Floats) -> list[Bools]:
    """Evaluate the pairs of the SRE Workbook, each an alert of its own."""
    return [_pair(failures, 60, 5, 14.4, padded=False), _pair(failures, 360, 30, 6.0, padded=False)]


def joined(keep: int, short: int = 30, lately: int = 3) -> Design:
    """Return the same pairs in one alert, kept for some minutes; `lately`: failures in the slow pair's short window."""

    def design(failures: Floats) -> list[Bools]:
        either = _pair(failures, 60, 5, 14.4) | _pair(failures, 360, short, 6.0, lately=lately)
        return [kept(either, keep)]

    return design


def sustained(keep: int, remembered: int = 0, least: int = 3) -> Design:
    """Return a design: the slow pair must burn at a third of its rate in the last and the median hour of the six.

    `remembered`: minutes for which its threshold counts as exceeded; then a failure in the last two hours is enough.
    `least`: failures that the fast pair's hour must have.
    """

    def design(failures: Floats) -> list[Bools]:
        hours = burn(failures, 60)
        crossed = within(failures, 360) / (360 * PER_MINUTE * ALLOWED) > 6.0
        slow = kept(crossed, remembered) & (within(failures, 120) > 0 if remembered else hours > 2.0)
        known = np.minimum(np.arange(1, len(failures) + 1), 360)
        most = within((hours > 2.0).astype(np.float64), 360) > known / 2
        return [kept(_pair(failures, 60, 5, 14.4, least=least) | (slow & most & (known >= 270)), keep)]

    return design


def down_again(keep: int, least: int = 6) -> Design:
    """Return the design before docs/adr/0038: an outage pages again while the page of an earlier failure fires.

    Most canaries of five minutes failed, fewer than a tenth of the five that ended ten minutes ago, and the page has
    fired for a quarter of an hour.
    """
    paged = sustained(180, 720, least)

    def design(failures: Floats) -> list[Bools]:
        (page,) = paged(failures)
        lately = within(failures, 5)
        was_up = np.concatenate((np.zeros(10, bool), (lately < 0.1 * 5 * PER_MINUTE)[:-10]))
        fired = within(page.astype(np.float64), 16) >= 16
        again = (lately > 0.7 * 5 * PER_MINUTE) & was_up & fired
        return [page, kept(again, keep)]

    return design


DESIGNS: Mapping[str, Design] = {
    "before": before,
    "one alert, kept 30 min": joined(30),
    "one alert, kept 2 h": joined(120),
    "6 h with 1 h, kept 1 h": joined(60, short=60, lately=2),
    "sustained, kept 30 min": sustained(30),
    "sustained, kept 1 h": sustained(60),
    "sustained, remembered 12 h, kept 30 min": sustained(30, 720),
    "sustained, remembered 12 h, kept 1 h": sustained(60, 720),
    "sustained, remembered 12 h, kept 2 h": sustained(120, 720),
    "sustained, remembered 12 h, kept 3 h": sustained(180, 720),
    "sustained, remembered 12 h, kept 4 h": sustained(240, 720),
    "kept 3 h, and a page for another outage": down_again(60, 3),
    "the same, and six failures in the hour (chosen before docs/adr/0038)": down_again(60),
}


def steady(rng: np.random.Generator, share: float, days: int = 2) -> Floats:
    """Return failures of a server that fails this share of requests for some days."""
    calm = np.zeros(_HISTORY)
    return np.concatenate((calm, rng.binomial(PER_MINUTE, share, days * DAY).astype(np.float64), calm))


def outage(minutes: int, strays: Sequence[int] = ()) -> Floats:
    """Return failures of a server that is down for some minutes, and of single ones so many minutes later."""
    failures = np.zeros(2 * _HISTORY)
    failures[_HISTORY : _HISTORY + minutes] = PER_MINUTE
    failures[[_HISTORY + minutes + after for after in strays]] = 1
    return failures


def outages(times: int, minutes: int, up: int) -> Floats:
    """Return failures of a server that is down several times, and up for some minutes in between."""
    failures = np.zeros(2 * _HISTORY + times * (minutes + up))
    for number in range(times):
        failures[_HISTORY + number * (minutes + up) :][:minutes] = PER_MINUTE
    return failures


def outage_in(rng: np.random.Generator, share: float, minutes: int = 30) -> Floats:
    """Return failures of a server that fails this share for two days, and is down for some minutes on the second."""
    failures = steady(rng, share)
    failures[_HISTORY + DAY :][:minutes] = PER_MINUTE
    return failures


def restart(watched: int = 10, failed: int = 3) -> Floats:
    """Return failures of a restart of a target that has been watched for some minutes."""
    return np.concatenate((np.zeros(watched), [float(failed)], np.zeros(_HISTORY)))


def hear(design: Design, failures: Floats, start: int = _HISTORY, end: int | None = None) -> Heard:
    """Return what an engineer notices of a cause between two minutes."""
    alerts = design(failures)
    at = np.flatnonzero(np.any(alerts, axis=0))
    lasts = int(np.count_nonzero(at >= end)) if end is not None else 0
    return Heard(sum(map(rings, alerts)), int(at[0]) - start + 1 if len(at) else None, lasts)


def _row(name: str, design: Design, seeds: int) -> str:
    cells = []
    for share in STEADY:
        rng = np.random.default_rng(7)
        heard = [hear(design, steady(rng, share)) for _ in range(seeds)]
        delays = [each.after_min for each in heard if each.after_min is not None]
        cells.append(f"{np.mean([each.rings for each in heard]):.1f}, {_hours(delays)}")
    for minutes in OUTAGES:
        down = hear(design, outage(minutes), end=_HISTORY + minutes)
        cells.append(f"{down.rings}, +{down.lasts_min} min")
    echo = hear(design, outage(20, strays=(180, 190)), end=_HISTORY + 20)
    cells.append(f"{echo.rings}, +{echo.lasts_min} min")
    cells.append(f"{hear(design, restart()).rings}")
    cells += [str(hear(design, outages(*each)).rings) for each in AGAIN]
    rng = np.random.default_rng(7)
    cells.append(f"{np.mean([hear(design, outage_in(rng, 0.02)).rings for _ in range(seeds)]):.1f}")
    return f"| {name} | " + " | ".join(cells) + " |"


def _hours(delays: Sequence[int]) -> str:
    if not delays:
        return "never"
    median = float(np.median(delays))
    return f"{median / 60:.1f} h" if median >= 90 else f"{median:.0f} min"


def table(seeds: int = 40) -> str:
    """Return the comparison as a Markdown table: rings and median delay; rings and minutes after the end."""
    heads = [f"{share:.1%} fail" for share in STEADY] + [f"down {minutes} min" for minutes in OUTAGES]
    heads += ["20 min, 2 strays 3 h later", "young target restarts"]
    heads += [f"{times} of {minutes} min, {up} min up" for times, minutes, up in AGAIN]
    heads += ["2.0% fail, and 30 min down"]
    lines = ["| design | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    return "\n".join([*lines, *(_row(name, design, seeds) for name, design in DESIGNS.items())])


if __name__ == "__main__":
    print(table())
