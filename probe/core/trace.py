"""Traces: the requests that users sent, as times, lengths and common beginnings, without any text. Pure.

A prompt's beginning is a list of blocks, each a number: two prompts with the same first blocks begin with the same
tokens, so they hit the server's prefix cache as the recorded ones did. What the blocks held is not known.
"""

import hashlib
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from probe.core.request import Api, RequestSpec
from probe.core.token_length import measured_of
from probe.core.workload import TEMPLATE_TOKENS, Workload, as_text, content


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. `at_s`: when it was sent; None: unknown. `blocks`: of `block_tokens` each, at the prompt's start."""

    prompt_tokens: int
    output_tokens: int
    at_s: float | None = None
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0

    @property
    def shared_tokens(self) -> int:
        """Return the tokens of its blocks."""
        return min(len(self.blocks) * self.block_tokens, self.prompt_tokens)


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their times, the first at 0 s. `skipped`: without a prompt or an answer, left out.

    `is_cut`: the file has more requests than are read.
    """

    requests: tuple[TraceRequest, ...]
    skipped: int = 0
    is_cut: bool = False

    @cached_property
    def seconds(self) -> float | None:
        """Return how long the trace takes until it may begin again; None without times, or if all are the same."""
        last = self.requests[-1].at_s
        return last * len(self.requests) / (len(self.requests) - 1) if last else None

    @cached_property
    def digest(self) -> str:
        """Return twelve hexadecimal digits that stand for all requests."""
        return hashlib.sha256(repr(self.requests).encode()).hexdigest()[:12]

    def due_s(self, speed: float, seconds: float) -> tuple[float, ...]:
        """Return when requests are due within these seconds, `speed` times as fast; the trace begins again at its end.

        Raises ValueError for a trace without times.
        """
        if self.seconds is None:
            raise ValueError("the trace has no times")
        due: list[float] = []
        for begins in count():
            for request in self.requests:
                at_s = ((request.at_s or 0.0) + begins * self.seconds) / speed
                if at_s >= seconds:
                    return tuple(due)
                due.append(at_s)
        raise AssertionError  # count() has no end

    def tokens(self, number: int) -> int:
        """Return the prompt and output tokens of so many requests."""
        each = [request.prompt_tokens + request.output_tokens for request in self.requests]
        passes, rest = divmod(number, len(each))
        return passes * sum(each) + sum(each[:rest])


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """A trace with the name of its workload."""

    name: str
    trace: Trace


def trace_of(requests: Iterable[TraceRequest], *, skipped: int = 0, is_cut: bool = False) -> Trace:
    """Return the trace of these requests, at least one, with times in whole microseconds.

    Blocks are renumbered, and only those kept that several prompts begin with. Without a time for each, none counts.
    """
    given = list(requests)
    if any(request.at_s is None for request in given):
        timed = [replace(one, at_s=None) for one in given]
    else:
        given.sort(key=lambda request: request.at_s or 0.0)
        begins = given[0].at_s or 0.0
        timed = [replace(one, at_s=round((one.at_s or 0.0) - begins, 6)) for one in given]
    return Trace(tuple(_with_common_blocks(timed)), skipped, is_cut)


def trace_workload(trace: Trace, name: str, api: Api) -> Workload:
    """Return the workload of a trace: the lengths of its prompts and answers."""
    return Workload(
        name=name,
        api=api,
        prompt_tokens=measured_of([request.prompt_tokens for request in trace.requests]),
        output_tokens=measured_of([request.output_tokens for request in trace.requests]),
        shared_tokens=round(sum(request.shared_tokens for request in trace.requests) / len(trace.requests)),
        trace=trace.digest,
    )


def trace_requests(
    trace: Trace, workload: Workload, salt: str | None = None, shard: tuple[int, int] = (0, 1)
) -> Iterator[RequestSpec]:
    """Yield the requests of a trace in its order, again and again. With another salt, no prompt is the same.

    `shard` (index, count) selects every count-th; all shards need the same salt.
    """
    index, step = shard
    salt = salt if salt is not None else secrets.token_hex(16)
    own = random.Random(f"{salt}/{index}")
    for number in count(index, step):
        begins, place = divmod(number, len(trace.requests))
        one = trace.requests[place]
        prompt = _prompt(one, workload.api, f"{salt}/{begins}", own)
        yield RequestSpec(
            workload=workload.name,
            api=workload.api,
            prompt=tuple(prompt) if workload.api.takes_ids else as_text(prompt),
            prompt_tokens=one.prompt_tokens,
            output_tokens=one.output_tokens,
            shared_tokens=one.shared_tokens,
        )


def _prompt(one: TraceRequest, api: Api, salt: str, own: random.Random) -> list[int]:
    """Return the tokens of a prompt: the tokens of its blocks, which the salt decides, and then its own."""
    wanted = one.prompt_tokens if not api.has_template else max(one.prompt_tokens - TEMPLATE_TOKENS, 1)
    tokens: list[int] = []
    for block in one.blocks:
        tokens += content(api, random.Random(f"{salt}/{block}"), one.block_tokens)
    return tokens[:wanted] + content(api, own, max(wanted - len(tokens), 0))


def _with_common_blocks(requests: Sequence[TraceRequest]) -> Iterator[TraceRequest]:
    """Yield the requests with the blocks that another one begins with too.

    As in a prefix cache, a block is known by itself and all before it: those are numbered from 0.
    """
    known: dict[tuple[int, int], int] = {}  # by the number of the block before and its own
    chains: list[list[int]] = []
    for request in requests:
        chains.append([])
        for block in request.blocks:
            before = chains[-1][-1] if chains[-1] else -1
            chains[-1].append(known.setdefault((before, block), len(known)))
    seen = Counter(block for chain in chains for block in chain)
    numbers: dict[int, int] = {}
    for request, chain in zip(requests, chains, strict=True):
        blocks = tuple(numbers.setdefault(block, len(numbers)) for block in chain if seen[block] > 1)
        yield replace(request, blocks=blocks, block_tokens=request.block_tokens if blocks else 0)
