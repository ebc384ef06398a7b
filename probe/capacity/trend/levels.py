"""The steps of a sweep as levels in the order of their load, of Kneewatch's results and of other benchmarks. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from probe.capacity.trend.measurement import ComparisonSection, Measurement, latencies_of
from probe.core.reasons import CLIENT_BOUND
from probe.core.result import CapacityResult
from probe.core.step import GpuUse, ServerPeaks, StepSummary

IN_FLIGHT, RATE = "in flight", "requests/s"
_NO_PEAKS, _NO_USE = ServerPeaks(), GpuUse()
_LOAD = re.compile(r"(concurrency|rate) ([0-9.]+(?:e[+-]?[0-9]+)?)(?: \(.*\))?")


@dataclass(frozen=True, slots=True)
class Level:
    """One load of a sweep. `unit`: IN_FLIGHT or RATE. `latencies`: in seconds, by names such as "TTFT p50".

    `answer_tokens`: the mean of an answer; `events`: the stream events that they came in. None: unknown.
    `is_judged`: whether it says something of the server; `is_client`: the client was too late to tell; `tripped`: why
    the guard stopped it; `broken`: the objectives that it missed; `rejected`: requests that the server refused for
    having too much to do.
    """

    load: float
    unit: str
    requests_per_second: float | None
    output_tokens_per_second: float | None
    latencies: Mapping[str, float]
    requests: int | None = None
    answer_tokens: float | None = None
    events: float | None = None
    server: ServerPeaks = _NO_PEAKS
    gpu: GpuUse = _NO_USE
    is_judged: bool = True
    is_client: bool = False
    tripped: str | None = None
    broken: tuple[str, ...] = ()
    rejected: int = 0

    @property
    def words(self) -> str:
        """Return the load with its unit."""
        return f"{self.load:g} {self.unit}"


def levels_of(measured: CapacityResult | Iterable[Measurement]) -> list[Level]:
    """Return the levels of a result, or of other benchmarks of one kind of load, by rising load.

    Pulses and replays are none. Of several levels with one load the last counts, which is the longest.
    """
    if isinstance(measured, CapacityResult):
        found = [_of_step(step) for step in measured.steps if not step.plan.is_pulse and step.load > 0]
    else:
        found = [level for one in measured for level in _of_sections(one)]
    by_load = {level.load: level for level in found}
    return [by_load[load] for load in sorted(by_load)]


def _of_step(step: StepSummary) -> Level:
    per_answer = step.output_tokens_per_second / step.throughput_rps if step.throughput_rps > 0 else None
    tokens = step.tokens.counted_answers.mean or per_answer
    return Level(
        load=step.load,
        unit=IN_FLIGHT if step.plan.arrivals is None else RATE,
        requests_per_second=step.throughput_rps,
        output_tokens_per_second=step.output_tokens_per_second,
        latencies={name: value.value for name, value in latencies_of(step)},
        requests=step.requests.ok,
        answer_tokens=tokens,
        events=tokens / step.tokens_per_event if tokens and step.tokens_per_event else tokens,
        server=step.server,
        gpu=step.gpu,
        is_judged=step.valid and step.requests.ok > 0,
        is_client=step.is_late or (not step.valid and step.reason == CLIENT_BOUND.word),
        tripped=step.tripped,
        broken=step.broken,
        rejected=step.rejected,
    )


def _of_sections(measured: Measurement) -> Iterator[Level]:
    for name, section in measured.sections.items():
        if (load := _LOAD.fullmatch(name)) is not None and float(load[2]) > 0:
            yield _of_section(section, float(load[2]), load[1] == "concurrency", measured.lengths.get("output tokens"))


def _of_section(section: ComparisonSection, load: float, is_closed: bool, tokens: float | None) -> Level:  # noqa: FBT001
    values = {name: found.value for name, found in section.values.items()}
    return Level(
        load=load,
        unit=IN_FLIGHT if is_closed else RATE,
        requests_per_second=values.get("throughput"),
        output_tokens_per_second=values.get("output"),
        latencies={name: value for name, value in values.items() if name.endswith(("p50", "p95", "p99"))},
        answer_tokens=tokens,
        events=tokens,
        is_judged=section.unjudged is None and "throughput" in values,
    )
