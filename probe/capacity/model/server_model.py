"""The server model: from snapshots of a server's metrics to a Twin. Pure; needs numpy.

    snapshots --> windows --> step cost model -.
    snapshots --> max_num_seqs, KV cache size, engines, speculation, prefix cache, live traffic --> Twin

A ServerModel only grows: `learn` adds the snapshots since the last call, and `fit` fits all of them. `twin` builds a
variant of such a fit: without one part (for the jackknife), or with another assumption.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from probe.capacity.model.fit_bias import Segments, estimate_bias, without_bias
from probe.capacity.model.hints import Hints
from probe.capacity.model.lengths import different_lengths, prompt_lengths, without_probes
from probe.capacity.model.roofline import compute_roofline, prefill_rate
from probe.capacity.model.step_cost_fit import StepCostModel
from probe.capacity.model.step_cost_fit import fit as fit_step_cost
from probe.capacity.model.step_sums_fit import fit_steps
from probe.capacity.model.twin import BLOCK_SIZE, ENDLESS_KV, UNLIMITED_SEQS, Twin
from probe.capacity.model.unmodelled import READ, free_share
from probe.capacity.model.windows import MetricsWindow, join_windows, windows
from probe.core.result import Roofline
from probe.core.server_limits import limits_of
from probe.core.snapshot import ServerSnapshot
from probe.core.step import TrafficBeside
from probe.core.vllm_flags import MAX_NUM_ACTIVE_SEQS, MAX_NUM_SCHEDULED_TOKENS
from probe.core.workload import Workload
from probe.observe.kv_pressure import most_running
from probe.observe.kv_size import KvSize, kv_size, mean_held
from probe.simulator.cost import StepCost
from probe.simulator.virtual_server import BackgroundTraffic

_SPECULATES = 1.05  # mean tokens in a step of a request above which rounding is no explanation
# Possible values of an unknown max_num_batched_tokens, vLLM's defaults among them.
CHUNKS = (512, 1024, 2048, 4096, 8192, 16384)
_CHUNK = 2048
_NO_BIAS = (0.0,) * len(fields(StepCost))


@dataclass(frozen=True, slots=True)
class ModelFit:
    """What was fitted to all snapshots: the twin, its step cost model, and the fit's bias by term of the cost."""

    twin: Twin
    cost_model: StepCostModel
    bias: tuple[float, ...]

    def prefill_tokens_per_second(self) -> float | None:
        """Return the prompt tokens per second that an engine computes; None where the step cost model does not know."""
        return prefill_rate(self.cost_model)


@dataclass(frozen=True, slots=True)
class _UncorrectedFit:
    twin: Twin
    cost_model: StepCostModel
    by_steps: bool  # fitted to the server's own sums over its steps, without bias
    prompts: Sequence[float]


class ServerModel:
    """What all snapshots so far show about a server."""

    def __init__(self, workload: Workload, hints: Hints) -> None:
        self.workload = workload
        self._hints = hints
        self.max_num_seqs = hints.max_num_seqs
        self.live_rps = 0.0
        self.pair_s = 0.0  # for each pair of a prompt's tokens
        self.is_chunk_known = hints.max_num_batched_tokens is not None
        self.chunk_tokens = hints.max_num_batched_tokens or _CHUNK
        self._snapshots: list[Sequence[ServerSnapshot]] = []  # of each part
        self._all: list[ServerSnapshot] = []
        self._segments: list[list[MetricsWindow]] = []
        self._are_of_load: list[bool] = []  # of each part, whether it is not only users' traffic
        self._observed_s = 0.0
        self._live_lengths: Workload | None = None  # None: no different from the workload's
        self._kv_size: tuple[int, KvSize | None] = 0, None  # by how many snapshots

    @property
    def parts(self) -> int:
        """Return how many parts of time were learnt from."""
        return len(self._segments)

    @property
    def informative_parts(self) -> list[int]:
        """Return the indices of the parts that contain windows."""
        return [part for part, segment in enumerate(self._segments) if segment]

    @property
    def most_running(self) -> float:
        """Return the most requests running in any snapshot, over all engines."""
        return max((snapshot.running or 0.0 for snapshot in self._all), default=0.0)

    @property
    def least_max_num_seqs(self) -> int:
        """Return a lower bound of max_num_seqs: by the hints, or the most requests that ran at once in one engine."""
        polled = (most_running(snapshot) for snapshot in self._all)
        between = (window.batch for segment in self._segments for window in segment)
        return max(round(max([*polled, *between], default=0.0)), self._hints.least_max_num_seqs)

    @property
    def allowed_running(self) -> float:
        """Return how many requests may run at once over all engines by the hints, where max_num_seqs is unknown."""
        return self._hints.least_max_num_seqs * self.engines

    @property
    def kv_size(self) -> KvSize | None:
        """Return the size of the KV cache for the workload's requests; None if unknown."""
        known, found = self._kv_size
        if known != len(self._all):
            found = kv_size(self._all, mean_held(self.workload.prompt_tokens, self.workload.output_tokens))
            self._kv_size = len(self._all), found
        return found

    @property
    def kv_tokens(self) -> float | None:
        """Return the size of the KV cache over all engines, for the workload's requests; None if unknown.

        Before traffic shows it, it is the server's figure: a search that began with what is certain might not get far
        enough to learn it, and its guard sees a cache that is fuller than expected.
        """
        size = self.kv_size
        if size is None:
            return None
        return size.tokens if size.is_learnt else min(size.stated_tokens, size.block_tokens)

    @property
    def flags(self) -> Mapping[str, str]:
        """Return the startup flags that a twin does not have (unmodelled.READ), by the page and by the hints."""
        shown = self._all[-1].scheduler_limits if self._all else {}
        return {**{name: str(value) for name, value in shown.items() if name in READ}, **self._hints.flags}

    @property
    def usable_kv_tokens(self) -> float | None:
        """Return the part of the KV cache that requests surely get, over all engines; None if unknown.

        With what each holds beside its tokens (`KvSize.request_tokens`).
        """
        return self.kv_size.pool_tokens * (1 - free_share(self.flags)) if self.kv_size is not None else None

    @property
    def block_size(self) -> int:
        """Return the tokens in a block of the KV cache, as the server's page shows it (vLLM), else the usual one."""
        stated = self._all[-1].flags.get("block_size", "") if self._all else ""
        return int(stated) if re.fullmatch(r"[1-9][0-9]{0,4}", stated) else BLOCK_SIZE

    @property
    def engines(self) -> int:
        """Return how many engines the server has."""
        return self._all[-1].engines if self._all else 1

    @property
    def live(self) -> BackgroundTraffic:
        """Return the live users' rate and request lengths."""
        return BackgroundTraffic(self.live_rps, self._live_lengths or self.workload)

    @property
    def has_other_live_lengths(self) -> bool:
        """Return whether live users' requests differ in length from the workload's."""
        return self._live_lengths is not None

    def learn_live(self, snapshots: Sequence[ServerSnapshot], beside: TrafficBeside) -> None:
        """Learn from a server without load: also sets the rate and lengths of live users."""
        parts = self.learn(snapshots)
        if beside.users.requests_per_second is not None and snapshots:
            self.live_rps = beside.users.requests_per_second
            self._observed_s = (snapshots[-1].at_ns - snapshots[0].at_ns) * 1e-9
        if parts:
            self._live_lengths = different_lengths(without_probes(join_windows(parts), beside.probes), self.workload)

    def learn(
        self, snapshots: Sequence[ServerSnapshot], *, of_load: bool = False, overloaded: bool = False
    ) -> list[MetricsWindow]:
        """Learn from any traffic, as one part.

        `of_load`: the workload's requests were most of the traffic; `overloaded`: it stopped because they waited too
        long.
        """
        parts = windows(snapshots)
        self._are_of_load.append(of_load)
        self._snapshots.append(snapshots)
        self._segments.append(parts)
        self._all += snapshots
        if snapshots:
            self._take_limits(snapshots[-1].scheduler_limits)
        if self.max_num_seqs is None:
            self.max_num_seqs = infer_max_num_seqs(self._all, overloaded=overloaded)
        return parts

    def _take_limits(self, limits: Mapping[str, int]) -> None:
        """Take the limits that the server's page shows: where the configuration has none, and where they are lower."""
        shown = limits_of({flag: str(value) for flag, value in limits.items()})
        if self._hints.max_num_seqs is None:
            self.max_num_seqs = shown.running or self.max_num_seqs
        else:
            self.max_num_seqs = min(self._hints.max_num_seqs, limits.get(MAX_NUM_ACTIVE_SEQS, UNLIMITED_SEQS))
        configured = self._hints.max_num_batched_tokens
        if configured is not None:
            self.chunk_tokens = min(configured, limits.get(MAX_NUM_SCHEDULED_TOKENS, configured))
        elif shown.step_tokens is not None:
            self.chunk_tokens, self.is_chunk_known = shown.step_tokens, True

    def learn_limits(self, snapshots: Sequence[ServerSnapshot]) -> None:
        """Learn how many requests run at most from a pulse, and nothing about the cost of a step.

        All requests of a pulse come at once, so those that run are not the most by chance.
        """
        self._all += snapshots
        if self.max_num_seqs is None:
            self.max_num_seqs = infer_max_num_seqs(snapshots)

    def update_live_rate(self, rate_rps: float, seconds: float) -> None:
        """Average another measurement of the live users' rate into `live_rps`, weighted by its duration."""
        if seconds > 0:
            self._observed_s += seconds
            self.live_rps += (rate_rps - self.live_rps) * seconds / self._observed_s

    def fit(self) -> ModelFit | None:
        """Fit everything learnt so far; None if that is too little.

        After load, the bias of the fit is estimated too. It depends on how widely lengths spread, which is not known of
        users.
        """
        found = self._fit_parts(range(self.parts), self.chunk_tokens, self.pair_s)
        if found is None:
            return None
        cost_model, bias = found.cost_model, _NO_BIAS
        if not found.by_steps and any(self._are_of_load):
            again = partial(self._fit_again, found)
            bias = estimate_bias(found.twin, self._snapshots, cost_model.slowdown, self._lengths_of, again)
            cost_model = replace(cost_model, cost=without_bias(cost_model.cost, bias))
        return ModelFit(_corrected(found.twin, bias), cost_model, bias)

    def twin(
        self,
        fit: ModelFit | None,
        *,
        without: int | None = None,
        chunk_tokens: int | None = None,
        pair_s: float | None = None,
    ) -> Twin | None:
        """Return a variant of the fit's twin, corrected by the fit's bias; None if there is too little to fit.

        `without`: leave that part out; `chunk_tokens`, `pair_s`: assume this max_num_batched_tokens, or this cost of
        attention. `fit`: None where there is none yet, and so no known bias.
        """
        parts = [part for part in range(self.parts) if part != without]
        pair_s = self.pair_s if pair_s is None else pair_s
        like = fit.cost_model if without is not None and fit is not None else None
        found = self._fit_parts(parts, chunk_tokens or self.chunk_tokens, pair_s, like=like)
        return _corrected(found.twin, fit.bias if fit is not None else _NO_BIAS) if found is not None else None

    def twins_without(self, fit: ModelFit | None, parts: Iterable[int]) -> list[Twin]:
        """Return the twin without each of these parts, for the jackknife."""
        return [twin for part in parts if (twin := self.twin(fit, without=part)) is not None]

    def _fit_parts(
        self, parts: Sequence[int], chunk_tokens: int, pair_s: float, *, like: StepCostModel | None = None
    ) -> _UncorrectedFit | None:
        """Fit these parts. `like`: what was fitted to nearly the same."""
        segments = [self._with_kv_tokens(self._segments[part]) for part in parts]
        measured = [window for segment in segments for window in segment]
        if not measured:
            return None
        traffic = join_windows(measured)
        cached = traffic.cached_tokens / (traffic.prompt_tokens or 1.0)
        prompts = prompt_lengths(self.workload, cached_ratio=cached)
        size = self.kv_size
        kv_ratio = size.traffic_tokens / size.block_tokens if size is not None and not size.is_as_stated else 1.0
        by_steps = fit_steps([self._snapshots[part] for part in parts], prompts, pair_s, kv_ratio)
        ahead, near = (like.plans_ahead, like.cost) if like is not None else (None, None)
        cost_model = by_steps or fit_step_cost(segments, chunk_tokens, prompts, pair_s, plans_ahead=ahead, near=near)
        if cost_model is None:
            return None
        twin = self._uncorrected_twin(cost_model, measured, traffic, chunk_tokens, has_prefix_hits=cached > 0)
        return _UncorrectedFit(twin, cost_model, by_steps is not None, prompts)

    def _with_kv_tokens(self, segment: list[MetricsWindow]) -> list[MetricsWindow]:
        """Return windows with the tokens that requests had in the KV cache, where the page's size is not theirs."""
        size = self.kv_size
        return segment if size is None else _times(segment, size.traffic_tokens / size.stated_tokens)

    def _fit_again(self, first: _UncorrectedFit, simulated: Segments) -> StepCost | None:
        """Fit a simulated server as the real one was fitted."""
        ahead, size = first.cost_model.plans_ahead, self.kv_size
        if size is not None:
            simulated = [_times(segment, size.tokens / size.pool_tokens) for segment in simulated]
        found = fit_step_cost(simulated, self.chunk_tokens, first.prompts, self.pair_s, plans_ahead=ahead)
        return found.cost if found is not None else None

    def guessed_twin(self, cost: StepCost) -> Twin:
        """Return a twin with this cost and the known limits, for a server before its own cost is learnt."""
        return Twin(
            cost=cost,
            kv_tokens=(self.kv_tokens or ENDLESS_KV) * (1 - free_share(self.flags)),
            workload=self.workload,
            max_num_seqs=self.max_num_seqs or UNLIMITED_SEQS,
            chunk_tokens=self.chunk_tokens,
            engines=self.engines,
            block_size=self.block_size,
        )

    def _uncorrected_twin(
        self,
        cost_model: StepCostModel,
        measured: Sequence[MetricsWindow],
        traffic: MetricsWindow,
        chunk_tokens: int,
        *,
        has_prefix_hits: bool,
    ) -> Twin:
        """Return the twin with this cost. The fit may be biased."""
        together, size = traffic.tokens_per_gap, self.kv_size
        return Twin(
            cost=cost_model.cost,
            kv_tokens=self.usable_kv_tokens or ENDLESS_KV,
            request_tokens=size.request_tokens if size is not None else 0.0,
            workload=self.workload,
            max_num_seqs=self.max_num_seqs or UNLIMITED_SEQS,
            chunk_tokens=chunk_tokens,
            engines=measured[-1].engines,
            shares=engine_shares(self._all),
            accepted_tokens=together - 1 if together > _SPECULATES else 0.0,
            prefix_caching=has_prefix_hits and self.workload.shared_tokens > 0,
            block_size=self.block_size,
            plans_ahead=cost_model.plans_ahead,
        )

    def _lengths_of(self, part: int) -> Workload:
        """Return the lengths of the requests in that part.

        Means of few requests are off by chance, and a load's answers have not ended with it: its lengths are known.
        """
        if self._are_of_load[part] and self._live_lengths is None:
            return self.workload
        segment = self._segments[part]
        return (different_lengths(join_windows(segment), self.workload) if segment else None) or self.workload

    def roofline(self, fit: ModelFit | None) -> Roofline | None:
        """Compare the server with its GPUs' limits, if the hints name them. `fit`: None where none is believed."""
        return compute_roofline(fit.cost_model if fit is not None else None, self._all, self._hints)


def _times(segment: Sequence[MetricsWindow], ratio: float) -> list[MetricsWindow]:
    return [replace(window, kv_tokens=window.kv_tokens * ratio) if ratio != 1 else window for window in segment]


def _corrected(twin: Twin, bias: Sequence[float]) -> Twin:
    return replace(twin, cost=without_bias(twin.cost, bias))


def engine_shares(snapshots: Sequence[ServerSnapshot]) -> tuple[float, ...]:
    """Return each engine's share of the requests, by the tokens it generated; empty if no difference is proven.

    Shares are drawn towards equal ones by as much of their difference as chance explains (James and Stein, 1961).
    """
    usable = [r for r in snapshots if r.by_engine and "ttft" in r.histograms]
    if not usable or usable[0].by_engine.keys() != usable[-1].by_engine.keys():
        return ()
    first, last = usable[0].by_engine, usable[-1].by_engine
    generated = [
        after - before
        for name in first
        if (before := first[name].generation_tokens) is not None and (after := last[name].generation_tokens) is not None
    ]
    count = len(first)
    requests = usable[-1].histograms["ttft"].count - usable[0].histograms["ttft"].count
    if len(generated) < count or min(generated) <= 0 or requests <= 0:  # restarted, idle, or without the counter
        return ()
    away = [each / sum(generated) - 1 / count for each in generated]
    chance = (1 - 1 / count) / requests  # the variances of all shares together
    kept = max(1 - chance / sum(one * one for one in away), 0.0) if any(away) else 0.0
    return tuple(1 / count + kept * one for one in away) if kept else ()


_KV_ROOM = 0.9  # with more of the cache in use, requests may wait for memory
_NEARLY = 0.93
# How often as many as ever must run while others wait; one less if none ever waited while fewer ran. Once is enough of
# an overload for a power of two, the usual limit, if none did, or with _MANY of them waiting.
_POLLS = 3
_MANY = 0.5  # of those that run: one or two wait by chance, such as long prompts for a step's tokens


def infer_max_num_seqs(snapshots: Sequence[ServerSnapshot], *, overloaded: bool = False) -> int | None:
    """Infer max_num_seqs from the number of running requests; None while it does not show.

    It shows when again and again exactly as many requests run as ever did, while others wait and memory is free. A
    varying load would come near its maximum more often than exactly to it. `overloaded`: the last load was stopped
    because requests waited too long.
    """
    fullest = [(most_running(r), r.waiting or 0) for r in snapshots if (r.kv_cache_usage or 0) < _KV_ROOM and r.running]
    most = max((most_running(r) for r in snapshots), default=0.0)
    full = [waiting for running, waiting in fullest if running == most]
    waited = sum(waiting > 0 for waiting in full)
    near = sum(_NEARLY * most <= running < most for running, _ in fullest)
    elsewhere = sum(waiting > 0 for running, waiting in fullest if running < most)
    is_usual = round(most).bit_count() == 1
    if overloaded and is_usual and (not elsewhere or max(full, default=0) >= _MANY * most):
        needed = 1.0
    else:
        needed = max(_POLLS if elsewhere else _POLLS - 1, len(full) / 2)
    if waited < needed or (elsewhere and len(full) < near / 2):
        return None
    return max(round(most), 1)
