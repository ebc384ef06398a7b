"""One step of the simulated engine: what it is about to compute, and what came of it."""

from typing import NamedTuple

from probe.simulator.cost import Batch
from probe.simulator.engine_request import EngineRequest


class ScheduledStep(NamedTuple):
    """A step about to run, and the changes of the batch. Requests are in order of admission."""

    decoding: tuple[int, ...]  # one token each
    prefills: tuple[tuple[int, int], ...]  # (request, tokens)
    batch: Batch
    admitted: tuple[int, ...]  # started for the first time
    resumed: tuple[int, ...]  # started again after a preemption
    preempted: tuple[int, ...]

    @property
    def scheduled(self) -> tuple[tuple[int, int], ...]:
        """Tokens to compute for each request."""
        return (*((number, 1) for number in self.decoding), *self.prefills)


class StepOutcome(NamedTuple):
    """A completed step. Requests in `prefilled` got their first token, or the first since a preemption."""

    decoded: tuple[int, ...]
    prefilled: tuple[int, ...]
    finished: tuple[int, ...]

    @property
    def emitted(self) -> tuple[int, ...]:
        """All requests that got a token, in order of admission."""
        return self.decoded + self.prefilled


def step_content(decoding: int, kv_tokens: int, prefills: list[tuple[EngineRequest, int]]) -> Batch:
    """Return what a step holds: a token each of `decoding` requests with `kv_tokens` in the cache, and the chunks."""
    if not prefills:  # most steps
        return Batch(decoding, decoding, kv_tokens)
    return Batch(
        sequences=decoding + len(prefills),
        tokens=decoding + sum(tokens for _, tokens in prefills),
        kv_tokens=kv_tokens + sum(request.computed for request, _ in prefills),
        pairs=sum(tokens * (request.computed + tokens / 2) for request, tokens in prefills),
    )
