"""What a sweep of fixed loads shows, as labelled sentences: growth, plateau, bottleneck, tails, and where time goes.

In: levels of capacity/trend/levels.py, from Kneewatch or another benchmark. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence

from probe.capacity.model.bottleneck import LIMITS
from probe.capacity.trend.levels import IN_FLIGHT, Level, levels_of
from probe.core.reasons import REJECTIONS
from probe.core.result import CapacityResult, Roofline
from probe.report.figures import milliseconds, number, percent
from probe.report.sweep_limits import COMMUNICATION, LOAD, QUEUE, Verdict, gain, growth, plateau, verdict

LABELS = ("Growth", "Saturation", "Bottleneck", "Tail", "E2E")
_ADVICE = {limit.name: limit.advice for limit in LIMITS} | {
    COMMUNICATION: "use fewer GPUs a replica, GPUs with NVLink, or more replicas instead of more parallelism",
    QUEUE: REJECTIONS.advice,
}
_EMPIRICAL = "empirical"
_TAIL = 5.0  # p99 over p50: beyond it a few requests have another experience than most
_TAIL_S = 0.02  # a tail that nobody notices
_FEW = 100  # requests below which a p99 is about the longest
_FLAT = 1.1
_UNEXPLAINED = 0.1  # of E2E, beyond which the sum of TTFT and gaps leaves something out
_CAUSES = {
    "TTFT": "few wait far longer than most: a queue, or longer prompts ahead of them",
    "ITL": "streams stand still now and then: prompts of others, preemptions, or a pause of the server",
}


def sweep_lines(result: CapacityResult) -> list[tuple[str, str]]:
    """Return the lines for a result of load alone; none where a simulation explains it, or without a judged step."""
    if result.capacity.mode != _EMPIRICAL:
        return []
    return level_lines(levels_of(result), result.context.flags, result.capacity.roofline, with_advice=False)


def level_lines(
    levels: Sequence[Level], flags: Mapping[str, str], roofline: Roofline | None = None, *, with_advice: bool = True
) -> list[tuple[str, str]]:
    """Return labels and sentences on these levels; `with_advice`: on the bottleneck too."""
    judged = [level for level in levels if level.is_judged]
    lines = [("Growth", _growth(judged))] if len(judged) > 1 else []
    lines += [("Saturation", _saturation(judged))] if len(judged) > 1 else []
    found = verdict(levels, flags, roofline) if len(levels) > 1 else None
    lines += [("Bottleneck", _verdict_words(found, with_advice=with_advice))] if found is not None else []
    lines += [("Tail", words) for words in _tails(judged)]
    lines += [("E2E", words) for words in _sums(judged)]
    return lines


def _growth(judged: Sequence[Level]) -> str:
    first, last = judged[0], judged[-1]
    parts = []
    if first.output_tokens_per_second and last.output_tokens_per_second is not None:
        ratio = last.output_tokens_per_second / first.output_tokens_per_second
        ends = f"{number(first.output_tokens_per_second)} to {number(last.output_tokens_per_second)}"
        parts.append(f"output tokens/s {_times(ratio)} ({ends})")
    for name in ("TTFT p50", "ITL p50", "E2E p50"):
        if (times := growth(first, last, name)) is not None:
            ends = f"{milliseconds(first.latencies[name])} to {milliseconds(last.latencies[name])}"
            parts.append(f"{name} {_times(times)} ({ends})")
    return f"from {first.load:g} to {last.words}: {', '.join(parts)}"


def _saturation(judged: Sequence[Level]) -> str:
    flat = [level for level in judged if (growth(judged[0], level, "ITL p50") or 0.0) <= _FLAT]
    itl = f"; ITL p50 is flat up to {flat[-1].words}" if "ITL p50" in judged[0].latencies and len(flat) > 1 else ""
    full, last = plateau(judged), judged[-1]
    more = _more(judged[-2], last)
    if full is None:
        return f"none up to {last.words}: {more}{itl}"
    if full.requests_per_second is not None and full.unit != IN_FLIGHT:
        return f"at {full.words}, of which {number(full.requests_per_second)} were answered{itl}"
    return f"from {full.words}: {_more(full, last)}{itl}"


def _more(before: Level, after: Level) -> str:
    if gain(before, after) is None or not before.requests_per_second or after.requests_per_second is None:
        return "throughput is not known"
    share = after.requests_per_second / before.requests_per_second - 1
    return f"throughput gains {share:+.0%} from {before.load:g} to {after.words}"


def sweep_advice(result: CapacityResult) -> str | None:
    """Return how to relieve the bottleneck that the steps show; None where they show none that is known."""
    levels = levels_of(result) if result.capacity.mode == _EMPIRICAL else []
    found = verdict(levels, result.context.flags, result.capacity.roofline) if len(levels) > 1 else None
    return _ADVICE.get(found.name) if found is not None else None


def _verdict_words(found: Verdict, *, with_advice: bool) -> str:
    if found.name == LOAD:
        return f"none up to {found.level.words}: {found.evidence}"
    advice = _ADVICE.get(found.name) if with_advice else None
    return f"{found.name}, at {found.level.words}: {found.evidence}{f'; {advice}' if advice else ''}"


def _tails(judged: Sequence[Level]) -> Iterator[str]:
    """Yield the longest tail of TTFT and ITL, at the level that has it."""
    for latency, cause in _CAUSES.items():
        found = [
            (level.latencies[f"{latency} p99"] / level.latencies[f"{latency} p50"], level)
            for level in judged
            if level.latencies.get(f"{latency} p50") and f"{latency} p99" in level.latencies
        ]
        if not found:
            continue
        ratio, level = max(found, key=lambda one: one[0])
        middle, tail = level.latencies[f"{latency} p50"], level.latencies[f"{latency} p99"]
        if ratio >= _TAIL and tail - middle >= _TAIL_S:
            few = f" of {level.requests} requests" if level.requests is not None and level.requests < _FEW else ""
            sizes = f"{milliseconds(tail)} over {milliseconds(middle)}"
            yield f"{latency} p99 is {_times(ratio)} p50 at {level.words} ({sizes}){few}: {cause}"


def _sums(judged: Sequence[Level]) -> Iterator[str]:
    """Yield what TTFT and the gaps between tokens make of E2E, at the highest level that has all three."""
    for level in reversed(judged):
        ttft, itl, e2e = (level.latencies.get(f"{name} p50") for name in ("TTFT", "ITL", "E2E"))
        # ITL p50 is 0 where a gateway passes on several events at once.
        if ttft is None or not itl or not e2e or level.events is None or level.events < 2:  # noqa: PLR2004
            continue
        gaps = level.events - 1
        total = ttft + gaps * itl
        words = (
            f"p50 {milliseconds(e2e)} at {level.words}; TTFT + {number(gaps)} x ITL = {milliseconds(ttft)} +"
            f" {milliseconds(gaps * itl)} = {percent(total / e2e)} of it"
        )
        if total < e2e * (1 - _UNEXPLAINED):
            words += ": the rest is in gaps much longer than ITL p50"
        elif total > 0:
            words += f", {percent(gaps * itl / total)} in decoding"
        yield words
        return


def _times(ratio: float) -> str:
    return f"{number(ratio)}x"
