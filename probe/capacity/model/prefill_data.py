"""The mean prefill time of each segment, and what a step cost model says about it. Pure; needs numpy.

vLLM counts a prefill when its request ends, long after it happened, so conditions are averaged over a whole segment,
each window weighted by the prompts that began in it.

A prompt comes during a step, a long one rather than a short one, together with others. They begin in the next step, or
with steps planned ahead in the one after it. The rest of a long prompt, which has filled steps before, comes first.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from probe.capacity.model.prompt_mix import Floats, PromptMix
from probe.capacity.model.windows import MetricsWindow

_MIN_PREFILLS = 5


class PrefillData:
    """Segments with prefills (`segment`: their indices), the mean time of each (`seconds`), and its usual `scatter`."""

    def __init__(
        self,
        segments: Sequence[Sequence[MetricsWindow]],
        lengths: Floats,
        fresh: float,
        chunk_tokens: int,
        pair_s: float,
        *,
        plans_ahead: bool,
    ) -> None:
        """`lengths`: of prompts, equally likely; `fresh`: share of their tokens that is computed."""
        self._plans_ahead, self._pair_s = plans_ahead, pair_s
        self.segment = np.array([i for i, each in enumerate(segments) if _has_prefills(each)], dtype=int)
        usable = [segments[i] for i in self.segment]
        finished = column(sum(w.finished for w in s) for s in usable)
        self.seconds = column(sum(w.prefill_sum_s for w in s) for s in usable) / finished
        self.scatter = 0.02 + 0.2 / np.sqrt(finished)
        self.batch = column(_mean_over_prompts(s, lambda w: w.batch if w.steps else 0.0) for s in usable)
        self.kv_tokens = column(_mean_over_prompts(s, lambda w: w.kv_tokens) for s in usable)
        room = np.maximum(chunk_tokens - self.batch, 1.0)
        ended = column(sum(w.finished_prompt_tokens for w in s) for s in usable) / finished
        self.own = PromptMix(lengths, np.where(ended > 0, ended * fresh, lengths.mean()), room)
        self._others = PromptMix(lengths, np.full_like(ended, lengths.mean()), room)
        self._rate = column(sum(w.prompts for w in s) / sum(w.seconds * w.engines for w in s) for s in usable)
        self._busy = column(_mean_over_prompts(s, _busy) for s in usable)
        gap_s = column(_mean_over_prompts(s, lambda w: w.itl_s) for s in usable)
        self._filled, self._tokens = self._others.in_steps(self._rate * self._others.chunks * gap_s)

    def predict(self, step_s: Callable[[Floats, Floats, Floats | float], Floats]) -> Floats:
        """Return the mean prefill time of each segment. `step_s`: of a step, by batch, KV tokens and prompt tokens."""
        others, filled = self._others, self._filled
        full = len(others.full)  # rows of chunks that fill a step

        def seconds(tokens: Floats | float) -> Floats:
            return step_s(self.batch, self.kv_tokens, tokens)

        bare, held = seconds(0.0), seconds(self._tokens) + self._pair_s * others.pairs
        share = filled * others.counts / others.chunks  # of the steps, by the chunk they hold
        usual_s = (1 - filled) * bare + (share * held).sum(axis=0)
        came = share * held / usual_s  # of the prompts, by the step in which they come
        came_s = (1 - filled) * bare**2 / usual_s + (came * held).sum(axis=0)
        after = share if self._plans_ahead else came
        beside = self._rate * others.first_tokens * came_s + (after[:full] * others.rest).sum(axis=0)
        first_s = self._own_seconds(seconds, self._busy * beside)
        if not self._plans_ahead:
            return first_s
        # The step that is planned already: the rest of a prompt that fills this one, or any other.
        rest_s = seconds(others.rest)
        is_rest = share[:full].sum(axis=0)
        any_s = (usual_s - (share[:full] * rest_s).sum(axis=0)) / np.maximum(1 - is_rest, 1e-9)
        waited_s = (came[:full] * rest_s).sum(axis=0) + (1 - came[:full].sum(axis=0)) * any_s
        return np.asarray(first_s + self._busy * waited_s)

    def _own_seconds(self, seconds: Callable[[Floats | float], Floats], beside: Floats) -> Floats:
        """Return the mean time of a prompt's own steps, the first one with so many other prompt tokens."""
        own = self.own
        full_s = seconds(own.room)
        # What others take of a step that is full is left for the last one.
        later = self._rate * self._others.first_tokens * own.full * full_s
        last_s = seconds(np.minimum(own.rest + beside + later, own.room))
        of_all = own.full * full_s + last_s + self._pair_s * (own.full * own.room + own.rest) ** 2 / 2
        return np.asarray((own.shares * of_all).sum(axis=0))


def column(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=float)


def _has_prefills(segment: Sequence[MetricsWindow]) -> bool:
    return (
        sum(w.finished for w in segment) >= _MIN_PREFILLS
        and sum(w.prompts for w in segment) > 0
        and sum(w.prefill_sum_s for w in segment) > 0
    )


def _mean_over_prompts(segment: Sequence[MetricsWindow], value: Callable[[MetricsWindow], float]) -> float:
    """Return the mean of a value over the prompts that began in the segment."""
    return sum(value(w) * w.prompts for w in segment) / sum(w.prompts for w in segment)


def _busy(window: MetricsWindow) -> float:
    """Return the share of the window in which steps ran."""
    return min(window.steps * window.itl_s / window.seconds / window.engines, 1.0)
