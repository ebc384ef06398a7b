"""A step of the simulated engine: the one in flight, and what is told of it by requests' numbers."""

from typing import NamedTuple

from probe.simulator.cost import Batch
from probe.simulator.simulated_request import SimulatedRequest


class Step:
    """The step in flight and, when it is over, its outcome. Requests are in order of admission.

    An engine has one and fills it again for each step: most of them hold requests that decode, and nothing else.
    """

    def __init__(self) -> None:
        self.prefills: list[SimulatedRequest] = []  # with a chunk of their prompts
        self.started: list[SimulatedRequest] = []  # for the first time, or again after a preemption
        self.preempted: list[SimulatedRequest] = []  # the last one admitted first
        self.prefilled: list[SimulatedRequest] = []  # got their first token, or the first since a preemption
        self.finished: list[SimulatedRequest] = []
        self.decoded = 0  # requests that got a token beside `prefilled`
        self.clear()

    def clear(self) -> None:
        """Begin to plan the next step."""
        self.sequences = self.tokens = self.kv_tokens = 0  # as in Batch
        self.pairs = 0.0
        if self.prefills:
            self.prefills.clear()
            self.started.clear()
        if self.preempted:
            self.preempted.clear()

    def decode(self, sequences: int, kv_tokens: int) -> None:
        """Add a token each of requests with `kv_tokens` in the cache."""
        self.sequences = self.tokens = sequences
        self.kv_tokens = kv_tokens

    def prefill(self, request: SimulatedRequest, tokens: int) -> None:
        """Add a chunk of a prompt."""
        request.chunk = tokens
        self.prefills.append(request)
        self.sequences += 1
        self.tokens += tokens
        self.kv_tokens += request.computed
        self.pairs += tokens * (request.computed + tokens / 2)

    def batch(self) -> Batch:
        """Return what the step computes."""
        return Batch(self.sequences, self.tokens, self.kv_tokens, self.pairs)


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


def scheduled(decoding: tuple[int, ...], step: Step) -> ScheduledStep:
    """Return the planned step by numbers."""
    return ScheduledStep(
        decoding,
        tuple((request.number, request.chunk) for request in step.prefills),
        step.batch(),
        tuple(request.number for request in step.started if not request.preemptions),
        tuple(request.number for request in step.started if request.preemptions),
        tuple(request.number for request in step.preempted),
    )
