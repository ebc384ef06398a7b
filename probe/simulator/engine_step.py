"""Requests inside the simulated engine, and one of its steps: the planned work, and its outcome."""

from dataclasses import dataclass
from typing import NamedTuple

from probe.simulator.cost import Batch


@dataclass(slots=True, eq=False)
class EngineRequest:
    """A request in the engine.

    `generated` and `computed` are as they were before step `since`; a request that decodes has moved on.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int
    generated: int = 0
    computed: int = 0  # tokens with keys and values in the cache
    since: int = 0
    blocks: int = 0  # of its own, kept while it is not decoding
    shared_blocks: int = 0  # of the common prefix
    preemptions: int = 0

    @property
    def known(self) -> int:
        """Return the tokens so far, prompt and output; computing the last of them produces the next."""
        return self.prompt_tokens + self.generated

    @property
    def last_step(self) -> int:
        """Return the step in which the request gets its last token, if it decodes until then."""
        return self.since + self.output_tokens - self.generated - 1


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
        """Return the tokens to compute for each request."""
        return (*((number, 1) for number in self.decoding), *self.prefills)


class StepOutcome(NamedTuple):
    """A completed step. Requests in `prefilled` got their first token, or the first since a preemption."""

    decoded: tuple[int, ...]
    prefilled: tuple[int, ...]
    finished: tuple[int, ...]

    @property
    def emitted(self) -> tuple[int, ...]:
        """Return all requests that got a token, in order of admission."""
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
