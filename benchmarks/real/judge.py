"""Truth, forecasts and searches of recordings, by the current code.

Searches were steered by the code of their day; their capacities are recomputed from the recorded data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.real.recording import Recording, Taken, read, stitched
from benchmarks.real.truth import Truth, light, scored, truth
from probe.capacity.model.forecast import forecast
from probe.capacity.model.hints import NO_HINTS, Hints
from probe.capacity.search.search import Search
from probe.core.result import Capacity, Stopped
from probe.core.step import TrafficBeside
from probe.observe.user_load import users_beside


@dataclass(frozen=True, slots=True)
class Judged:
    """One capacity beside the truth."""

    server: str
    what: str
    capacity: Capacity
    truth: Truth

    @property
    def error(self) -> float | None:
        """Relative error: -0.1 is 10 % too low. Against a lower bound: how far it is below, or 0."""
        found = self.capacity.requests_per_second
        if found is None:
            return None
        error = found / self.truth.rps - 1
        return error if self.truth.upper is not None else min(error, 0.0)

    @property
    def covered(self) -> bool | None:
        """Whether the interval overlaps the truth's."""
        low, high = self.capacity.lower, self.capacity.upper
        if low is None or high is None:
            return None
        return high >= self.truth.rps and (self.truth.upper is None or low <= self.truth.rps)


def judge(files: Sequence[Path]) -> int:
    """Print the table."""
    for file in files:
        recording = read(file)
        real = truth(recording)
        known = f"[{real.lower:.2f}, {real.upper:.2f}], {real.limiting}" if real.upper is not None else "at least"
        print(f"{recording.name}: {real.rps:.2f} requests/s {known}")
        steps = sorted(scored(recording), key=lambda s: s.rate_rps)
        print("    " + "  ".join(f"{s.rate_rps:.2f}: {s.score:.2f}" for s in steps))
        for each in judged(recording, real):
            print("    " + _line(each))
    return 0


def judged(recording: Recording, real: Truth, hints: Hints = NO_HINTS) -> list[Judged]:
    """Yield every forecast and every search of a recording."""
    found = []
    for number, steps in enumerate(light(recording)):
        capacity = forecast(stitched(steps), recording.workload, recording.objectives, hints)
        found.append(Judged(recording.name, f"forecast {number + 1}", capacity, real))
    for taken in recording.taken:
        if taken.lone is not None and not taken.name.startswith("round"):
            found.append(
                Judged(recording.name, taken.name, searched(recording, taken, hints).capacity((), _done()), real)
            )
            if taken.result is not None:
                found.append(Judged(recording.name, f"{taken.name}, then", taken.result.capacity, real))
    return found


def searched(recording: Recording, taken: Taken, hints: Hints = NO_HINTS) -> Search:
    """Return a search that was given the recorded data of another one."""
    search = Search(recording.workload, recording.objectives, hints, explain=False)
    assert taken.lone is not None
    search.observe_idle(taken.readings, taken.lone, TrafficBeside(users_beside((), taken.readings)))
    for step in taken.steps:
        search.step_finished(step.summary(recording.objectives), step.run, step.readings, step.tripped)
    return search


def _done() -> Stopped:
    return Stopped("done")


def _line(each: Judged) -> str:
    found = each.capacity
    if found.requests_per_second is None or found.upper is None:
        return f"{each.what:28} withheld: {found.reason}"
    return (
        f"{each.what:28} {found.mode:9} {found.requests_per_second:7.2f} [{found.lower:.2f}, {found.upper:.2f}]"
        f" {each.error:+.1%} {'covers' if each.covered else 'misses'} {found.reason or ''}"
    )
