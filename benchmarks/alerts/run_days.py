"""Replay the days of days.py and compare what rings with expected.py: `python -m benchmarks.alerts --days`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alerts.build import FILE, render
from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts.days import Batch, batches
from benchmarks.alerts.expected import EXPECTED, Expected
from benchmarks.alerts.notify import Ring, rings
from benchmarks.alerts.replay import Replay, evaluator
from benchmarks.alerts.rules import asked, needed, rules_of


@dataclass(frozen=True, slots=True)
class Result:
    """The rings of a day, and a text for each part of its expectation that was missed."""

    name: str
    rings: tuple[Ring, ...]
    missed: tuple[str, ...]
    start_s: float

    def count(self, receiver: str) -> int:
        """Return the number of pages, or of tickets."""
        return sum(ring.receiver == receiver for ring in self.rings)

    def as_json(self) -> dict[str, Any]:
        return {
            "day": self.name,
            "what": EXPECTED[self.name].what,
            "pages": self.count("page"),
            "tickets": self.count("ticket"),
            "rings": [
                {
                    "hour": round((ring.at_s - self.start_s) / 3600, 2),
                    "to": ring.receiver,
                    "alerts": sorted(ring.alerts),
                }
                for ring in self.rings
            ],
            "missed": list(self.missed),
        }


def run(
    seed: int, scrape_s: float, alertmanager: str, wanted: Sequence[str] = (), *, arrays: bool = False
) -> list[Result]:
    """Return a Result for each day, or each of those `wanted`. `alertmanager`: the text of its configuration.

    `arrays`: without a Prometheus.
    """
    found: list[Result] = []
    for batch in batches(wanted):
        found += results(batch, _rings(batch, seed, scrape_s, alertmanager, arrays=arrays))
        print(f"{', '.join(batch.names)}: replayed", file=sys.stderr, flush=True)
    return found


def results(batch: Batch, heard: Sequence[Ring]) -> list[Result]:
    """Return a Result for each day of a batch. A batch of one day has every ring, also those of no target."""
    days = {name: tuple(ring for ring in heard if len(batch.names) == 1 or _day(ring) == name) for name in batch.names}
    stray = [sorted(ring.alerts) for ring in heard if not any(ring in rings_ for rings_ in days.values())]
    if stray:
        sys.exit(f"rings of no day: {stray}")
    return [
        Result(name, mine, tuple(judge(EXPECTED[name], mine, batch.begins_s(name))), batch.start_s)
        for name, mine in days.items()
    ]


def _rings(batch: Batch, seed: int, scrape_s: float, alertmanager: str, *, arrays: bool) -> list[Ring]:
    rules = needed(rules_of(render()[FILE]))
    lines = batch.lines(seed, scrape_s, {each.name for each in asked(rules)})
    # A block of storage must hold all of the batch twice: series are written one after the other.
    block = f"{3 * (batch.end_s - batch.begun_s) / DAY_S:.0f}d"
    with evaluator(block, arrays=arrays) as engine:
        engine.write(lines)
        firings = Replay(engine, batch.begun_s, batch.start_s, batch.end_s).run(rules)
    return [ring for ring in rings(firings, alertmanager) if ring.receiver != "none"]


def _day(ring: Ring) -> str:
    return ring.new[0].labels.get("group", "")


def judge(expected: Expected, heard: Sequence[Ring], begins_s: float) -> list[str]:
    """Return a text for each part of the expectation that is missed."""
    missed = []
    for receiver, (least, most) in (("page", expected.pages), ("ticket", expected.tickets)):
        count = sum(ring.receiver == receiver for ring in heard)
        if not least <= count <= most:
            missed.append(f"{count} {receiver}s, expected {least if least == most else f'{least} to {most}'}")
    for one_of, within_s in expected.within_s.items():
        alerts = {f"Kneewatch{name}" for name in one_of.split("|")}
        delay_s = min(
            (ring.at_s - begins_s for ring in heard if ring.alerts & alerts and ring.at_s >= begins_s), default=None
        )
        if delay_s is None:
            missed.append(f"no ring of {one_of}")
        elif delay_s > within_s:
            missed.append(f"{one_of} rang after {delay_s / 60:.0f} min, expected {within_s / 60:.0f} or less")
    return missed


def _ring(ring: Ring, start_s: float) -> str:
    alerts = "+".join(sorted(name.removeprefix("Kneewatch") for name in ring.alerts))
    return f"{(ring.at_s - start_s) / HOUR_S:.2f} h {alerts}{' (ticket)' if ring.receiver == 'ticket' else ''}"


def table(results: Sequence[Result]) -> str:
    """Return a line for each day."""
    lines = [f"{'day':14} {'pages':>5} {'tickets':>7}  first rings"]
    for one in results:
        first = ", ".join(_ring(ring, one.start_s) for ring in one.rings[:6])
        lines.append(f"{one.name:14} {one.count('page'):5} {one.count('ticket'):7}  {first}")
        lines += [f"{'':29} MISSED: {text}" for text in one.missed]
    as_expected = sum(not one.missed for one in results)
    return "\n".join([*lines, f"{as_expected} of {len(results)} days as expected"]) + "\n"


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    """Return the record's part: each day, and how many causes that should page rang exactly once."""
    causes = [one for one in results if EXPECTED[one.name].pages == (1, 1)]
    return {
        "causes_that_page": len(causes),
        "with_one_page": sum(one.count("page") == 1 for one in causes),
        "days_as_expected": sum(not one.missed for one in results),
        "days": [one.as_json() for one in results],
    }
