"""From windows of a server's metrics to its step law: what a step costs by what is in it. Pure; needs scipy.

Two figures of each window are explained at once. The mean gap between tokens is the duration of a step, seen by those
that decode in it: some steps hold nothing but decodes, the others a prompt, or a chunk of one. The mean time from the
batch to the first token is the duration of the steps that hold a prompt. Time over steps would not do: it contains
idle time. Robust non-negative least squares, since a hiccup must not move the law.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from probe.capacity.model.windows import MetricsWindow
from probe.simulator.cost import StepCost

MIN_WINDOWS = 6
MIN_BATCH = 1.5  # below it a step's cost says nothing of what another request adds
# How hard a term is held to its first guess where the windows do not tell it from the others.
_PRIOR = np.array([1.0, 0.5, 0.1, 1.0, 0.5])
_TERMS = len(_PRIOR)
_FEW_PREFILLS = 5
_FEW_WINDOWS = 4  # whose mean says nothing of how fast the server was
_ROUNDS = 2
_STEADY = 0.03  # drift that is left to the law
_MOST_SLOWER = 0.7  # in logarithms: twice as slow, or as fast

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepCostModel:
    """A fitted step law, of a server at its usual speed.

    `residual`: median relative error of a window; `slower`: by what factor steps of each segment took longer than the
    law says, all 1 where that is no more than chance; `drift`: their relative standard deviation; `covariance` of the
    terms of the cost, in their order; `batches`: least and greatest number of decoding requests that it was learnt
    from.
    """

    cost: StepCost
    residual: float
    drift: float
    covariance: tuple[tuple[float, ...], ...]
    slower: tuple[float, ...]
    batches: tuple[float, float]
    windows: int


def fit(
    segments: Sequence[Sequence[MetricsWindow]], chunk_tokens: int, prompts: Sequence[float], pair_s: float = 0.0
) -> StepCostModel | None:
    """The law, or None where the windows are too few or too idle, or no prompt was computed in them.

    A segment is a stretch of windows without a break. `chunk_tokens`: most tokens in a step; `prompts`: lengths of
    prompts, equally likely, at least one; `pair_s`: what each pair of a prompt's tokens costs, which means alone do not
    tell.
    """
    good = [[w for w in s if w.steps > 0 and w.batch >= MIN_BATCH and w.itl_sum_s > 0] for s in segments]
    if sum(map(len, good)) < MIN_WINDOWS:
        return None
    # Prompts that nobody sent, or that the prefix cache had all of, do not tell what one costs.
    if sum(w.prompts for s in good for w in s) < 1 or sum(_computed(w) for s in good for w in s) < 1:
        return None
    seen = _Seen(good, segments, chunk_tokens, prompts, pair_s)
    terms = seen.guessed
    for _ in range(_ROUNDS):
        terms, jacobian = _terms(seen, terms)
        seen.scale_by(terms)
    drift = _drift(np.log(seen.itl_s / seen.gaps(terms)), [len(s) for s in good])
    if drift > _STEADY:
        for _ in range(_ROUNDS):
            terms, jacobian = _terms_and_speeds(seen, terms, drift)
            seen.scale_by(terms)
            drift = float(np.std(seen.slower))
    spread = max(float(np.median(np.abs(seen.errors(terms)))) / 0.6745, 0.2)
    covariance = np.linalg.pinv(jacobian.T @ jacobian)[:_TERMS, :_TERMS] * spread**2
    if not seen.kv_tokens.any():
        terms[-1] = 0.0  # nothing was seen of the cache, so this is still the guess; the other terms hold its cost
    return StepCostModel(
        cost=_cost(terms, pair_s),
        residual=float(np.median(np.abs(seen.gaps(terms) / seen.itl_s - 1))),
        drift=drift,
        covariance=tuple(tuple(float(v) for v in row) for row in covariance),
        slower=tuple(float(one) for one in np.exp(seen.slower)),
        batches=(float(seen.batch.min()), float(seen.batch.max())),
        windows=len(seen.batch),
    )


def _terms(seen: "_Seen", terms: _Floats) -> tuple[_Floats, _Floats]:
    """The terms of the law, from these on, for a server of one speed, and the Jacobian of the misfit by them."""
    solved = least_squares(seen.misfit, terms / seen.guessed, bounds=(0.0, np.inf), loss="soft_l1", f_scale=2.0)
    return np.maximum(solved.x, 1e-9) * seen.guessed, np.asarray(solved.jac) / seen.guessed


def _terms_and_speeds(seen: "_Seen", terms: _Floats, drift: float) -> tuple[_Floats, _Floats]:
    """The same for one whose segments are slower or faster by about as much as `drift`; `seen` gets by how much.

    What a law can explain within a segment is its own; of what is between segments, as much as they are believed to
    differ is theirs (a mixed model: Laird and Ware, 1982).
    """
    count = len(seen.slower)
    free = [0.0] * _TERMS + [-_MOST_SLOWER] * count, [np.inf] * _TERMS + [_MOST_SLOWER] * count

    def misfit(found: _Floats) -> _Floats:
        seen.slower = found[_TERMS:]
        return np.concatenate([seen.misfit(found[:_TERMS]), found[_TERMS:] / drift])

    begin = np.concatenate([terms / seen.guessed, np.clip(seen.slower, -0.9 * _MOST_SLOWER, 0.9 * _MOST_SLOWER)])
    solved = least_squares(misfit, begin, bounds=free, loss="soft_l1", f_scale=2.0)
    seen.slower = solved.x[_TERMS:]
    scale = np.concatenate([seen.guessed, np.ones(count)])
    return np.maximum(solved.x[:_TERMS], 1e-9) * seen.guessed, np.asarray(solved.jac) / scale


def _drift(off: _Floats, lengths: Sequence[int]) -> float:
    """The standard deviation of segments' means, less what the scatter within them explains (analysis of variance:
    Fisher, 1925); 0 with a single one.
    """
    parts = [part for part in np.split(off, np.cumsum(lengths)[:-1]) if len(part) >= _FEW_WINDOWS]
    if len(parts) < 2:  # noqa: PLR2004
        return 0.0
    means = np.array([part.mean() for part in parts])
    chance = float(np.mean([part.var(ddof=1) / len(part) for part in parts]))
    return math.sqrt(max(float(means.var(ddof=1)) - chance, 0.0))


def _computed(window: MetricsWindow) -> float:
    """Prompt tokens that the prefix cache did not have."""
    return max(window.prompt_tokens - window.cached_tokens, 0.0)


def _cost(terms: _Floats, pair_s: float) -> StepCost:
    host, sequence, token, weights, kv_token = (float(max(term, 0.0)) for term in terms)
    return StepCost(host, sequence, token, weights, kv_token, pair_s)


class _Seen:
    """The windows as arrays, and what a law makes of them.

    In a step begin as many prompts as a Poisson process brings, of lengths of which `prompts` are equally likely.
    """

    def __init__(
        self,
        good: Sequence[Sequence[MetricsWindow]],
        segments: Sequence[Sequence[MetricsWindow]],
        chunk_tokens: int,
        prompts: Sequence[float],
        pair_s: float,
    ) -> None:
        """`good`: of each segment the windows with something in them."""
        windows = [w for s in good for w in s]
        self.slower = np.zeros(len(segments))  # each segment, in logarithms
        self.segment = np.repeat(np.arange(len(good)), [len(s) for s in good])  # of each window
        self.itl_s = _column(w.itl_s for w in windows)
        self.batch = _column(w.batch for w in windows)
        self.company = _column(w.company for w in windows)
        self.kv_tokens = _column(w.kv_tokens for w in windows)
        steps = _column(w.steps for w in windows)
        started = _column(w.prompts for w in windows)
        computed = _column(_computed(w) for w in windows)
        lengths = np.array(prompts, dtype=float)
        lengths *= computed.sum() / max(started.sum(), 1.0) / lengths.mean()
        chunks = np.ceil(lengths / chunk_tokens)
        # Chunks of prompts in a step, as one that decodes sees it: over the time, since it does not see idle steps.
        seconds = _column(w.seconds for w in windows)
        engines = _column(w.engines for w in windows)
        begun = started * chunks.mean() * self.itl_s / seconds / engines
        filled = 1 - np.exp(-begun)
        # Lengths of this window's prompts: as all, but with the mean that was seen.
        own = np.where(started > 0, computed / np.maximum(started, 1.0) / lengths.mean(), 1.0)
        together = np.where(begun > 0, begun / np.maximum(filled, 1e-9), 1.0)
        alone = (lengths / chunks)[:, None] * own[None, :]
        # A step has room for so much; what does not fit fills another one.
        self.chunk = np.minimum(alone * together[None, :], float(chunk_tokens))
        self.filled = np.minimum(begun * alone.mean(axis=0) / np.maximum(self.chunk.mean(axis=0), 1e-9), 1.0)
        # Pairs of a chunk, on average over a prompt's: its tokens times half of the whole length.
        self.chunk_pairs_s = pair_s * self.chunk * (lengths[:, None] * own[None, :]) / 2
        fresh = computed.sum() / max(sum(w.prompt_tokens for w in windows), 1.0)
        self._prefills(segments, chunk_tokens, lengths, fresh, pair_s)
        share = 1 - self.itl_s.min() / self.itl_s  # of the gaps that prompts are the cause of, about
        self.itl_scatter = np.sqrt(0.01**2 + 0.1**2 / steps + (0.7 * share) ** 2 / np.maximum(started, 1.0))
        self.itl_scale, self.prefill_scale = self.itl_s, self.prefill_s
        self.guessed = self._guess()

    def _prefills(
        self,
        segments: Sequence[Sequence[MetricsWindow]],
        chunk_tokens: int,
        lengths: _Floats,
        fresh: float,
        pair_s: float,
    ) -> None:
        """The mean prefill of each segment. It is counted when a request ends, long after it happened; so conditions
        are averaged over the whole segment, each window by the prompts that began in it.
        """
        tell = [
            sum(w.finished for w in s) >= _FEW_PREFILLS
            and sum(w.prompts for w in s) > 0
            and sum(w.prefill_sum_s for w in s) > 0
            for s in segments
        ]
        self.prefill_segment = np.flatnonzero(tell)
        told = [s for s, tells in zip(segments, tell, strict=True) if tells]
        finished = _column(sum(w.finished for w in s) for s in told)
        self.prefill_s = _column(sum(w.prefill_sum_s for w in s) for s in told) / finished
        self.begun_batch = _column(_as_begun(s, lambda w: w.batch if w.steps else 0.0) for s in told)
        self.begun_kv = _column(_as_begun(s, lambda w: w.kv_tokens) for s in told)
        ended = _column(sum(w.finished_prompt_tokens for w in s) for s in told) / finished
        own = lengths[:, None] * np.where(ended > 0, ended * fresh / lengths.mean(), 1.0)[None, :]
        self.chunks = np.ceil(own / chunk_tokens)
        self.pairs_s = pair_s * own**2 / 2
        each = np.ceil(lengths / chunk_tokens)
        mean_chunk, mean_chunks = (lengths / each).mean(), each.mean()
        # Who else begins in the same step: all who came in the one before, a long one where that held a prompt.
        rate = _column(sum(w.prompts for w in s) / sum(w.seconds * w.engines for w in s) for s in told)
        busy = 1 - np.exp(-rate * self.prefill_s)
        calm = _column(_as_begun(s, lambda w: w.prompts / w.steps if w.steps else 0.0) for s in told)
        beside = busy * rate * self.prefill_s + (1 - busy) * calm * mean_chunks
        self.begun_chunk = np.minimum(own / self.chunks + mean_chunk * beside[None, :], float(chunk_tokens))
        self.prefill_scatter = 0.02 + 0.2 / np.sqrt(finished)

    def _guess(self) -> _Floats:
        step_s = float(np.min(self.itl_s))
        first_s = float(np.median(self.prefill_s)) if self.prefill_s.size else 2 * step_s
        chunk = float(self.begun_chunk.mean()) if self.prefill_s.size else float(self.chunk.mean())
        chunks = float(self.chunks.mean()) if self.prefill_s.size else 1.0
        token_s = max(first_s / chunks - 0.5 * step_s, 0.1 * step_s) / max(chunk, 1.0)
        kv, batch = max(float(np.max(self.kv_tokens)), 1.0), max(float(np.max(self.batch)), 1.0)
        return np.array([0.4 * step_s, 0.1 * step_s / batch, token_s, 0.5 * step_s, 0.1 * step_s / kv])

    def gaps(self, terms: _Floats) -> _Floats:
        """The mean gap of each window by the law."""
        bare = _step(terms, self.company, self.kv_tokens, 0.0)
        filled = (_step(terms, self.company, self.kv_tokens, self.chunk) + self.chunk_pairs_s).mean(axis=0)
        slower = np.exp(self.slower[self.segment])
        return np.asarray(((1 - self.filled) * bare + self.filled * filled) * slower)

    def prefills(self, terms: _Floats) -> _Floats:
        """The mean prefill of each segment by the law."""
        steps = _step(terms, self.begun_batch, self.begun_kv, self.begun_chunk)
        slower = np.exp(self.slower[self.prefill_segment])
        return np.asarray((self.chunks * steps + self.pairs_s).mean(axis=0) * slower)

    def scale_by(self, terms: _Floats) -> None:
        """Take errors relative to a law and not to what was seen: a window that is low by chance would count more."""
        self.itl_scale, self.prefill_scale = self.gaps(terms), self.prefills(terms)

    def misfit(self, share: _Floats) -> _Floats:
        """What the fit makes small, of the terms as shares of their first guess."""
        return np.concatenate([self.errors(share * self.guessed), _PRIOR * (share - 1)])

    def errors(self, terms: _Floats) -> _Floats:
        """All errors, each in units of what it may scatter by."""
        gaps = (self.gaps(terms) - self.itl_s) / self.itl_scale / self.itl_scatter
        return np.concatenate(
            [gaps, (self.prefills(terms) - self.prefill_s) / self.prefill_scale / self.prefill_scatter]
        )


def _as_begun(segment: Sequence[MetricsWindow], figure: Callable[[MetricsWindow], float]) -> float:
    """A figure as the prompts that began met it."""
    return sum(figure(w) * w.prompts for w in segment) / sum(w.prompts for w in segment)


def _column(values: Iterable[float]) -> _Floats:
    return np.array(list(values), dtype=float)


def _step(terms: _Floats, batch: _Floats, kv_tokens: _Floats, prefill: _Floats | float) -> _Floats:
    """probe.simulator.cost.StepCost.step_seconds for arrays."""
    host, sequence, token, weights, kv_token = terms
    memory = weights + kv_token * kv_tokens
    compute = token * (batch + prefill)
    return np.asarray(host + sequence * batch + (memory**4 + compute**4 + 1e-30) ** 0.25)
