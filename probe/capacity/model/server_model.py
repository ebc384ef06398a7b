"""What is understood of a server: from readings of its metrics to a Twin. Pure; needs scipy.

    readings --> windows --> law  -.
    readings --> seats, KV size, engines, speculation, prefix hits, live traffic --> Twin
    our requests' first tokens --> front end -'

A Model only grows: `learn` takes what was read since the last time, `twin` is what follows from all of it, or from all
but one part (for the spread of what follows).
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from statistics import NormalDist

from probe.capacity.model.fit_bias import Segments, bias
from probe.capacity.model.hints import Hints
from probe.capacity.model.roofline import roofline
from probe.capacity.model.step_cost_fit import StepCostModel, fit
from probe.capacity.model.twin import UNLIMITED_SEQS, Twin
from probe.capacity.model.windows import MetricsWindow, total, windows
from probe.core.result import Roofline
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import LognormalLength, Workload
from probe.simulator.cost import StepCost
from probe.simulator.virtual_server import BackgroundTraffic

_QUANTILES = 7
_KV_ROOM = 0.9  # with more of the cache in use, requests may wait for memory
_FEW_REQUESTS = 10
_SAME_LENGTHS = 0.15
_NEARLY = 0.93
_SPECULATES = 1.05  # tokens that come together, above which it is no rounding
# What max_num_batched_tokens may be where nobody says: vLLM's defaults are 2048, and 8192 on GPUs of 70 GiB and more
# but A100 (vllm/engine/arg_utils.py, 0.32).
CHUNKS = (512, 1024, 2048, 4096, 8192, 16384)
_CHUNK = 2048


class ServerModel:
    """Everything read so far. `law` is that of the last `twin`."""

    def __init__(self, workload: Workload, hints: Hints) -> None:
        self.workload = workload
        self._hints = hints
        self.max_num_seqs = hints.max_num_seqs
        self.law: StepCostModel | None = None
        self.live_rps = 0.0
        self.pair_s = 0.0  # for each pair of a prompt's tokens
        self.chunk_known = hints.max_num_batched_tokens is not None
        self.chunk_tokens = hints.max_num_batched_tokens or _CHUNK
        self._readings: list[Sequence[ServerSnapshot]] = []  # of each stretch of time
        self._all: list[ServerSnapshot] = []
        self._segments: list[list[MetricsWindow]] = []
        self._bias: tuple[float, ...] = (0.0,) * len(fields(StepCost))  # of the fit, by term
        self._watched_s = 0.0
        self._live_lengths: Workload | None = None  # None: as the workload's, as far as can be told

    @property
    def parts(self) -> int:
        """How many stretches of time it was learnt from."""
        return len(self._segments)

    @property
    def telling_parts(self) -> list[int]:
        """Those in which there was something to be learnt."""
        return [part for part, segment in enumerate(self._segments) if segment]

    def slower(self, part: int) -> float:
        """By what factor steps took longer in that stretch of time than the last twin's law says."""
        return self.law.slower[part] if self.law is not None and 0 <= part < len(self.law.slower) else 1.0

    @property
    def most_running(self) -> float:
        """Of all engines, at any reading."""
        return max((reading.running or 0.0 for reading in self._all), default=0.0)

    @property
    def live(self) -> BackgroundTraffic:
        """The live users, as far as they were seen."""
        return BackgroundTraffic(self.live_rps, self._live_lengths or self.workload)

    @property
    def live_differs(self) -> bool:
        """Whether live users' requests have other lengths than the workload's."""
        return self._live_lengths is not None

    def watch(self, readings: Sequence[ServerSnapshot]) -> None:
        """Live traffic without ours."""
        parts = self.learn(readings)
        if len(readings) < 2:  # noqa: PLR2004 - a difference needs two
            return
        seconds = (readings[-1].at_ns - readings[0].at_ns) * 1e-9
        begun = [reading.histograms["ttft"].count for reading in readings if "ttft" in reading.histograms]
        if seconds > 0 and len(begun) == len(readings) and begun == sorted(begun):  # else it was restarted
            self.live_rps, self._watched_s = (begun[-1] - begun[0]) / seconds, seconds
        if parts and (seen := total(parts)).prompts >= _FEW_REQUESTS:
            self._live_lengths = _other_lengths(seen, self.workload)

    def learn(self, readings: Sequence[ServerSnapshot], *, overloaded: bool = False) -> list[MetricsWindow]:
        """Any traffic. `overloaded`: it ended because requests waited too long."""
        parts = windows(readings)
        self._readings.append(readings)
        self._all += readings
        self._segments.append(parts)
        if self.max_num_seqs is None:
            self.max_num_seqs = _seats(self._all, polls=1 if overloaded else 3)
        return parts

    def saw_live(self, rate_rps: float, seconds: float) -> None:
        """Another look at the rate of live users."""
        if seconds > 0:
            self._watched_s += seconds
            self.live_rps += (rate_rps - self.live_rps) * seconds / self._watched_s

    def twin(
        self, without: int | None = None, chunk_tokens: int | None = None, pair_s: float | None = None
    ) -> Twin | None:
        """The server as it is understood; None where too little was seen. `without`: leave that part out;
        `chunk_tokens`, `pair_s`: as if max_num_batched_tokens, or the cost of attention, were this.
        """
        as_understood = without is None and chunk_tokens is None and pair_s is None
        chunk = chunk_tokens or self.chunk_tokens
        pair_s = self.pair_s if pair_s is None else pair_s
        segments = [segment for i, segment in enumerate(self._segments) if i != without]
        seen = [window for segment in segments for window in segment]
        if not seen:
            return None
        every = total(seen)
        cached = every.cached_tokens / every.prompt_tokens if every.prompt_tokens else 0.0
        prompts = prompt_lengths(self.workload, cached_ratio=cached)
        law = fit(segments, chunk, prompts, pair_s)
        if law is None:
            return None
        together = every.tokens_per_gap
        twin = Twin(
            cost=law.cost,
            kv_tokens=next((r.kv_cache_tokens for r in reversed(self._all) if r.kv_cache_tokens), 1e9),
            workload=self.workload,
            max_num_seqs=self.max_num_seqs or UNLIMITED_SEQS,
            chunk_tokens=chunk,
            engines=seen[-1].engines,
            shares=engine_shares(self._all),
            accepted_tokens=together - 1 if together > _SPECULATES else 0.0,
            prefix_caching=cached > 0 and self.workload.shared_tokens > 0,
        )
        if as_understood:

            def again(rehearsed: Segments) -> StepCost | None:
                found = fit(rehearsed, chunk, prompts, pair_s)
                return found.cost if found is not None else None

            self._bias = bias(twin, self._readings, law.slower, self._lengths_of, again)
            self.law = replace(law, cost=_less(law.cost, self._bias))
        return replace(twin, cost=_less(law.cost, self._bias))

    def _lengths_of(self, part: int) -> Workload:
        """Of the requests that were there in that stretch of time."""
        seen = total(self._segments[part]) if self._segments[part] else None
        return (_other_lengths(seen, self.workload) if seen is not None else None) or self.workload

    def roofline(self, *, believed: bool = True) -> Roofline | None:
        """How near the server comes to the limits of its GPUs, where the hints name them. The law counts where it is
        `believed`.
        """
        return roofline(self.law if believed else None, self._all, self._hints)


def engine_shares(readings: Sequence[ServerSnapshot]) -> tuple[float, ...]:
    """What each of several engines gets of the requests, by the tokens it made; nothing where they are alike.

    Drawn towards the same for all, by as much of the difference as chance makes (James and Stein, 1961).
    """
    told = [r for r in readings if r.by_engine and "ttft" in r.histograms]
    if not told or told[0].by_engine.keys() != told[-1].by_engine.keys():
        return ()
    first, last = told[0].by_engine, told[-1].by_engine
    made = [
        after - before
        for name in first
        if (before := first[name].generation_tokens) is not None and (after := last[name].generation_tokens) is not None
    ]
    count = len(first)
    requests = told[-1].histograms["ttft"].count - told[0].histograms["ttft"].count
    if len(made) < count or min(made) <= 0 or requests <= 0:  # one of them was restarted, is idle, or does not tell
        return ()
    away = [each / sum(made) - 1 / count for each in made]
    chance = (1 - 1 / count) / requests  # the variances of all shares together
    kept = max(1 - chance / sum(one * one for one in away), 0.0) if any(away) else 0.0
    return tuple(1 / count + kept * one for one in away) if kept else ()


def prompt_lengths(workload: Workload, count: int = _QUANTILES, cached_ratio: float = 0.0) -> list[float]:
    """Lengths of prompts that are equally likely, without what a prefix cache holds of them."""
    prompt = workload.prompt_tokens
    cached = float(workload.shared_tokens) if cached_ratio > 0 else 0.0
    if not isinstance(prompt, LognormalLength):
        return [max(prompt - cached, 1.0)]
    normal = NormalDist()
    middles = (normal.inv_cdf((i + 0.5) / count) for i in range(count))
    return [max(min(prompt.median * math.exp(prompt.sigma * z), prompt.maximum) - cached, 1.0) for z in middles]


def mean_length(tokens: int | LognormalLength) -> float:
    """The mean of such lengths: of a log-normal one, what is above the maximum cut to it."""
    if not isinstance(tokens, LognormalLength):
        return float(tokens)
    if not tokens.sigma:
        return float(min(tokens.median, tokens.maximum))
    cut = math.log(tokens.maximum / tokens.median) / tokens.sigma
    below = tokens.median * math.exp(tokens.sigma**2 / 2) * NormalDist().cdf(cut - tokens.sigma)
    return below + tokens.maximum * (1 - NormalDist().cdf(cut))


def _less(cost: StepCost, bias: Sequence[float]) -> StepCost:
    return StepCost(*(max(term - by, 0.0) for term, by in zip(astuple(cost), bias, strict=True)))


def _other_lengths(seen: MetricsWindow, workload: Workload) -> Workload | None:
    """Lengths like those seen; None where they are about the workload's, or too few to tell."""
    if seen.prompts < _FEW_REQUESTS:
        return None
    prompt, output = seen.prompt_tokens / seen.prompts, seen.generation_tokens / seen.prompts
    if _near(prompt, workload.prompt_tokens) and _near(output, workload.output_tokens):
        return None
    return replace(workload, prompt_tokens=_scaled(prompt), output_tokens=_scaled(output), shared_tokens=0)


def _near(mean: float, tokens: int | LognormalLength) -> bool:
    return abs(mean / mean_length(tokens) - 1) < _SAME_LENGTHS


def _scaled(mean: float) -> LognormalLength:
    """Lengths of that mean, spread as those of a chat."""
    sigma = 0.5
    median = max(round(mean * math.exp(-(sigma**2) / 2)), 1)
    return LognormalLength(median, sigma, 4 * median)


def _seats(readings: Sequence[ServerSnapshot], polls: int) -> int | None:
    """max_num_seqs, where it has shown: again and again as many run as ever did, and not one more, while others wait
    and memory is free. A load that wanders would come near its highest more often than exactly to it.

    `polls`: how often that has to have been seen; one less where nobody ever waited with fewer running.
    """
    fullest = [(_fullest(r), r.waiting or 0) for r in readings if (r.kv_cache_usage or 0) < _KV_ROOM and r.running]
    most = max((_fullest(r) for r in readings), default=0.0)
    full = [waiting for running, waiting in fullest if running == most]
    waited = sum(waiting > 0 for waiting in full)
    near = sum(_NEARLY * most <= running < most for running, _ in fullest)
    elsewhere = sum(waiting > 0 for running, waiting in fullest if running < most)
    if not elsewhere and polls > 1:
        polls -= 1
    if waited < max(polls, len(full) / 2) or (elsewhere and len(full) < near / 2):
        return None
    return max(round(most), 1)


def _fullest(reading: ServerSnapshot) -> float:
    """How many run on the engine that has most; about, where they are not told apart."""
    told = [engine.running for engine in reading.by_engine.values() if engine.running is not None]
    return max(told, default=(reading.running or 0.0) / reading.engines)
