"""Recordings of a real server: each load plan that ran on it, with the data it got. To a file and back.

A load plan gets snapshots, the unloaded baseline and steps (LoadPlan); a Taken holds these, so that any search or fit
can be given the same again. Of the server's histograms the sums and counts are kept; of a request's
tokens the times of the first, the last, and those around the longest gap (the others are read back evenly spaced):
what a fit and a judgement need.
Times count from the recording's begin.
"""

import gzip
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from probe.capacity.run.load_plan import LoadPlan
from probe.core.objectives import Objectives
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, TokenEvents, Traffic
from probe.core.result import Capacity, CapacityResult, Stopped
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.core.step import StepPlan, StepRun, StepSummary, TrafficBeside
from probe.core.workload import Workload
from probe.load import step_summary as summary
from probe.observe.user_load import users_beside

_PLAN: TypeAdapter[StepPlan] = TypeAdapter(StepPlan)
_SUMMARY: TypeAdapter[StepSummary] = TypeAdapter(StepSummary)
_RESULT: TypeAdapter[CapacityResult] = TypeAdapter(CapacityResult)
_WORKLOAD: TypeAdapter[Workload] = TypeAdapter(Workload)
_OBJECTIVES: TypeAdapter[Objectives] = TypeAdapter(Objectives)
_GAUGES = (
    "running", "waiting", "kv_cache_usage", "preemptions", "prompt_tokens", "generation_tokens",
    "prefix_cache_queries", "prefix_cache_hits", "kv_cache_tokens",
)  # fmt: skip
_COUNTERS = ("preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
_US = 1000  # nanoseconds in a microsecond


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and the server while it ran."""

    run: StepRun
    readings: tuple[ServerSnapshot, ...]
    tripped: str | None

    def summary(self, objectives: Objectives) -> StepSummary:
        users = users_beside(self.run.records, self.readings)
        return summary.summarize(self.run, objectives, polls=self.readings, users=users)


@dataclass(slots=True)
class Taken:
    """One load plan. `live_rps`: requests/s of users beside it; `result`: what it found then."""

    name: str
    live_rps: float = 0.0
    readings: tuple[ServerSnapshot, ...] = ()
    lone: StepSummary | None = None
    steps: list[Step] = field(default_factory=list)
    result: CapacityResult | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """`about`: the server's flags, versions, machine and date, for people."""

    name: str
    about: Mapping[str, Any]
    workload: Workload
    objectives: Objectives
    taken: tuple[Taken, ...]


class Recorder:
    """A load plan that records what another one gets. Implements probe.capacity.run.load_plan.LoadPlan."""

    def __init__(self, load_plan: LoadPlan, taken: Taken) -> None:
        self._load_plan, self._taken = load_plan, taken
        self.observe_s, self.survives_overload = load_plan.observe_s, load_plan.survives_overload

    def observe_idle(self, readings: Sequence[ServerSnapshot], lone: StepSummary, beside: TrafficBeside) -> None:
        self._taken.readings, self._taken.lone = tuple(readings), lone
        self._load_plan.observe_idle(readings, lone, beside)

    def next_step(self) -> StepPlan | None:
        return self._load_plan.next_step()

    def step_finished(
        self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        self._taken.steps.append(Step(run, tuple(readings), tripped))
        self._load_plan.step_finished(step, run, readings, tripped)

    def end_reason(self) -> str | None:
        return self._load_plan.end_reason()

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        return self._load_plan.capacity(steps, stopped)


def write(recording: Recording, file: Path) -> None:
    """Write gzipped JSON: the same bytes for the same recording."""
    begin_ns = min(at for taken in recording.taken for at in _times(taken))
    data = {
        "name": recording.name,
        "about": recording.about,
        "workload": _WORKLOAD.dump_python(recording.workload, mode="json"),
        "objectives": _OBJECTIVES.dump_python(recording.objectives, mode="json"),
        "taken": [_taken_out(taken, begin_ns) for taken in recording.taken],
    }
    file.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))


def read(file: Path) -> Recording:
    """Read what `write` wrote."""
    data = json.loads(gzip.decompress(file.read_bytes()))
    return Recording(
        name=data["name"],
        about=data["about"],
        workload=_WORKLOAD.validate_python(data["workload"], strict=False),
        objectives=_OBJECTIVES.validate_python(data["objectives"]),
        taken=tuple(_taken_in(taken) for taken in data["taken"]),
    )


def stitched(steps: Sequence[Step]) -> list[ServerSnapshot]:
    """Join the snapshots of several steps as if each had followed the other a second later."""
    joined: list[ServerSnapshot] = []
    for step in steps:
        first, last = step.readings[0], joined[-1] if joined else None
        joined += step.readings if last is None else [_after(last, first, reading) for reading in step.readings]
    return joined


def _after(last: ServerSnapshot, first: ServerSnapshot, reading: ServerSnapshot) -> ServerSnapshot:
    """Return a snapshot shifted as if the server had been at `last` a second before `first`."""

    def moved(name: str) -> float | None:
        here, there, now = getattr(last, name), getattr(first, name), getattr(reading, name)
        return now if here is None or there is None or now is None else here + now - there

    return replace(
        reading,
        at_ns=last.at_ns + 10**9 + reading.at_ns - first.at_ns,
        histograms={
            name: Histogram(
                ((math.inf, last.histograms[name].count + histogram.count - first.histograms[name].count),),
                last.histograms[name].sum + histogram.sum - first.histograms[name].sum,
            )
            for name, histogram in reading.histograms.items()
            if name in first.histograms and name in last.histograms  # a run's older polls have few
        },
        **{name: moved(name) for name in _COUNTERS},
    )


def _times(taken: Taken) -> Iterator[int]:
    yield from (reading.at_ns for reading in taken.readings)
    for step in taken.steps:
        yield from (reading.at_ns for reading in step.readings)
        yield from (record.scheduled_ns for record in step.run.records)


def _taken_out(taken: Taken, begin_ns: int) -> dict[str, Any]:
    return {
        "name": taken.name,
        "live_rps": taken.live_rps,
        "readings": [_reading_out(reading, begin_ns) for reading in taken.readings],
        "lone": _SUMMARY.dump_python(taken.lone, mode="json") if taken.lone else None,
        "steps": [
            {
                "plan": _PLAN.dump_python(step.run.plan, mode="json"),
                "window": [(at - begin_ns) // _US for at in step.run.window_ns],
                "loop_lag_s": [max(step.run.loop_lag_s, default=0.0)],
                "cut_short": step.run.is_cut_short,
                "capped": step.run.is_capped,
                "tripped": step.tripped,
                "requests": [_request_out(record, begin_ns) for record in step.run.records],
                "readings": [_reading_out(reading, begin_ns) for reading in step.readings],
            }
            for step in taken.steps
        ],
        "result": _RESULT.dump_python(taken.result, mode="json") if taken.result else None,
    }


def _taken_in(data: Mapping[str, Any]) -> Taken:
    return Taken(
        name=data["name"],
        live_rps=data["live_rps"],
        readings=tuple(_reading_in(each) for each in data["readings"]),
        lone=_SUMMARY.validate_python(data["lone"]) if data["lone"] else None,
        steps=[
            Step(
                run=StepRun(
                    plan=_PLAN.validate_python(step["plan"]),
                    records=tuple(_request_in(each) for each in step["requests"]),
                    window_ns=(step["window"][0] * _US, step["window"][1] * _US),
                    loop_lag_s=tuple(step["loop_lag_s"]),
                    is_cut_short=step["cut_short"],
                    is_capped=step["capped"],
                ),
                readings=tuple(_reading_in(each) for each in step["readings"]),
                tripped=step["tripped"],
            )
            for step in data["steps"]
        ],
        result=_RESULT.validate_python(data["result"]) if data["result"] else None,
    )


def _request_out(record: RequestRecord, begin_ns: int) -> list[Any]:
    """Return times due, sent and done in microseconds, the tokens kept, lengths, and outcome."""
    times = [(at - begin_ns) // _US for at in (record.scheduled_ns, record.sent_ns, record.done_ns)]
    counts = (record.spec.prompt_tokens, record.spec.output_tokens, record.prompt_tokens, record.output_tokens)
    return [*times, _tokens_out(record, begin_ns), *counts, record.outcome.value]


def _tokens_out(record: RequestRecord, begin_ns: int) -> list[int]:
    """Return the number of events, the index of the event after the longest gap, and the times of the first, of those
    around that gap, and of the last. Without a token return nothing, for a single one only its time.
    """
    if not record.events:
        return []
    at_us = [(at - begin_ns) // _US for at in record.events.at_ns]
    if len(at_us) == 1:
        return [1, 0, at_us[0]]
    longest = max(range(1, len(at_us)), key=lambda i: at_us[i] - at_us[i - 1])
    return [len(at_us), longest, at_us[0], at_us[longest - 1], at_us[longest], at_us[-1]]


def _tokens_in(kept: Sequence[int], output_tokens: int) -> TokenEvents:
    if not kept:
        return TokenEvents()
    count, longest, *at_us = kept
    if count == 1:
        stamps = at_us
    else:
        first, before, after, last = at_us
        stamps = [*_evenly(first, before, longest), *_evenly(after, last, count - longest)]
    tokens = [1] * count
    tokens[-1] += max(output_tokens - count, 0)
    return TokenEvents(
        at_ns=array("q", [at * _US for at in stamps]),
        late_ns=array("q", bytes(8 * count)),
        tokens=array("i", tokens),
        first_visible=0,
    )


def _evenly(first: int, last: int, count: int) -> list[int]:
    """Return evenly spaced whole numbers from the first to the last."""
    return [first + round((last - first) * i / max(count - 1, 1)) for i in range(count)]


def _request_in(data: Sequence[Any]) -> RequestRecord:
    due, sent, done, kept, asked_in, asked_out, prompt_tokens, output_tokens, outcome = data
    return RequestRecord(
        target="recorded",
        model="recorded",
        traffic=Traffic.CAPACITY,
        spec=RequestSpec("recorded", Api.COMPLETIONS, (), asked_in, asked_out),
        scheduled_ns=due * _US,
        sent_ns=sent * _US,
        done_ns=done * _US,
        done_wall_s=0.0,
        outcome=Outcome(outcome),
        events=_tokens_in(kept, output_tokens),
        reads=min(len(kept), 1),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


def _reading_out(reading: ServerSnapshot, begin_ns: int) -> dict[str, Any]:
    return {
        "at": (reading.at_ns - begin_ns) // _US,
        "engines": reading.engines,
        **{name: getattr(reading, name) for name in _GAUGES},
        "h": {name: [histogram.count, round(histogram.sum, 6)] for name, histogram in reading.histograms.items()},
    }


def _reading_in(data: Mapping[str, Any]) -> ServerSnapshot:
    histograms = {name: Histogram(((math.inf, count),), total) for name, (count, total) in data["h"].items()}
    bare = ServerSnapshot(at_ns=data["at"] * _US, wall_s=0.0, engine="vllm", engines=data["engines"])
    return replace(bare, histograms=histograms, **{name: data[name] for name in _GAUGES})
