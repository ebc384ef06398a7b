"""The scheduler's rules once more, slow and plain: every request is looked at in every step, every block has a name.

An oracle for probe/sim/engine.py, written from the rules in its docstring and sharing nothing with it but the shapes
of its results.
"""

from dataclasses import dataclass, field

from probe.simulator.cost import Batch, Profile
from probe.simulator.engine_step import ScheduledStep, StepOutcome


@dataclass(eq=False)
class _Request:
    number: int
    prompt: int
    output: int
    shared: int
    generated: int = 0
    computed: int = 0
    prefilling: bool = True
    preempted: bool = False
    blocks: list[int] = field(default_factory=list)  # by position

    @property
    def known(self) -> int:
        return self.prompt + self.generated


class Reference:
    """The same methods as Engine's, but for `skip`: here a step is a step."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []  # in order of admission
        self.prefix: list[int] = []  # the blocks in which the common beginning is cached
        self.submitted = 0
        self.plan: ScheduledStep | None = None

    def submit(self, prompt: int, output: int, shared: int) -> int:
        self.waiting.append(_Request(self.submitted, prompt, output, min(shared, prompt)))
        self.submitted += 1
        return self.submitted - 1

    def abort(self, number: int) -> bool:
        before = len(self.running) + len(self.waiting)
        self.running = [request for request in self.running if request.number != number]
        self.waiting = [request for request in self.waiting if request.number != number]
        return len(self.running) + len(self.waiting) < before

    def plan_step(self) -> ScheduledStep | None:
        if not self.running and not self.waiting:
            return None
        preempted: list[int] = []
        while sum(map(self._lacking, *self._chunks())) > len(self._free()):
            preempted.append(self._preempt(self.running[-1]))
        scheduled = [(request, tokens) for request, tokens in zip(*self._chunks(), strict=True) if tokens]
        for request, tokens in scheduled:
            self._give(request, self._lacking(request, tokens))
        admitted: list[_Request] = []
        if not preempted:
            left = self.profile.max_num_batched_tokens - sum(tokens for _, tokens in scheduled)
            while left and (request := self._admit()):
                tokens = min(request.known - request.computed, left)
                self._give(request, self._lacking(request, tokens))
                scheduled.append((request, tokens))
                admitted.append(request)
                left -= tokens
        prefills = [(request, tokens) for request, tokens in scheduled if request.prefilling]
        self.plan = ScheduledStep(
            decoding=tuple(request.number for request, _ in scheduled if not request.prefilling),
            prefills=tuple((request.number, tokens) for request, tokens in prefills),
            batch=Batch(
                sequences=len(scheduled),
                tokens=sum(tokens for _, tokens in scheduled),
                kv_tokens=sum(request.computed for request, _ in scheduled),
                pairs=sum(tokens * (request.computed + tokens / 2) for request, tokens in prefills),
            ),
            admitted=tuple(request.number for request in admitted if not request.preempted),
            resumed=tuple(request.number for request in admitted if request.preempted),
            preempted=tuple(preempted),
        )
        return self.plan

    def complete_step(self) -> StepOutcome:
        assert self.plan is not None
        tokens = dict(self.plan.scheduled)
        decoded: list[int] = []
        prefilled: list[int] = []
        finished: list[int] = []
        for request in list(self.running):
            request.computed += tokens.get(request.number, 0)
            if request.computed < request.known:
                continue
            if request.prefilling and self.profile.prefix_caching:
                self._publish(request)
            (prefilled if request.prefilling else decoded).append(request.number)
            request.prefilling = False
            request.generated += 1
            if request.generated == request.output:
                finished.append(request.number)
                self.running.remove(request)
        self.plan = None
        return StepOutcome(tuple(decoded), tuple(prefilled), tuple(finished))

    def blocks_in_use(self) -> set[int]:
        return {block for request in self.running for block in request.blocks}

    def free_blocks(self) -> int:
        return self.profile.usable_blocks - len(self.blocks_in_use())

    def _chunks(self) -> tuple[list[_Request], list[int]]:
        """Return every running request, and how many tokens each gets."""
        left, chunks = self.profile.max_num_batched_tokens, []
        for request in self.running:
            chunks.append(min(request.known - request.computed, left))
            left -= chunks[-1]
        return self.running, chunks

    def _lacking(self, request: _Request, tokens: int) -> int:
        """Return the blocks it needs to compute this many more tokens."""
        return max(-(-(request.computed + tokens) // self.profile.block_size) - len(request.blocks), 0)

    def _free(self) -> list[int]:
        """Blocks nobody uses, those last that hold something, and of these those from its beginning last."""
        free = set(range(self.profile.usable_blocks)) - self.blocks_in_use()
        return sorted(free - set(self.prefix)) + [block for block in reversed(self.prefix) if block in free]

    def _give(self, request: _Request, count: int) -> None:
        for block in self._free()[:count]:
            request.blocks.append(block)
            if block in self.prefix:
                assert block == self.prefix.pop(), "the prefix goes from its end"

    def _admit(self) -> _Request | None:
        if not self.waiting or len(self.running) == self.profile.max_num_seqs:
            return None
        request = self.waiting[0]
        found = self.prefix[: min(request.shared, request.known - 1) // self.profile.block_size]
        room = len(set(self._free()) - set(found))
        if -(-request.known // self.profile.block_size) - len(found) > room:
            return None
        self.waiting.pop(0)
        self.running.append(request)
        request.blocks = list(found)
        request.computed = len(found) * self.profile.block_size
        return request

    def _preempt(self, request: _Request) -> int:
        self.running.remove(request)
        self.waiting.insert(0, request)
        request.blocks, request.computed = [], 0
        request.prefilling = request.preempted = True
        return request.number

    def _publish(self, request: _Request) -> None:
        for i in range(request.shared // self.profile.block_size):
            if i == len(self.prefix):
                self.prefix.append(request.blocks[i])
            request.blocks[i] = self.prefix[i]
