"""What a run keeps of its polls."""

import asyncio
import gc
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from probe.capacity.model.server_model import engine_shares, infer_max_num_seqs
from probe.capacity.model.windows import windows
from probe.capacity.run.server_watch import ServerWatch, thinned
from probe.core.clock import SystemClock
from probe.core.snapshot import KV_SIZES, EngineSnapshot, Histogram, ServerSnapshot
from probe.observe.guard import LOOK_BACK, page_fault
from probe.observe.kv_size import kv_size
from probe.observe.restarts import restarted
from probe.scrape.engines import parse
from probe.scrape.replicas import merged

PAGE = (Path(__file__).parents[3] / "pages/vllm.prom").read_text()
HOUR = 7200  # polls
ONE = msgspec.msgpack.encode(parse(PAGE, 0, 1.7e9))
_DECODER = msgspec.msgpack.Decoder(ServerSnapshot)


def pages(replicas: int = 1, engines: int = 0) -> Iterator[ServerSnapshot]:
    """Yield what is read of a server that goes on: nothing is shared between two of them."""
    at_s = 0
    while True:
        at_s += 1
        each = [replace(_DECODER.decode(ONE), at_ns=at_s * 10**9, running=float(at_s % 7)) for _ in range(replicas)]
        by_engine = {str(i): EngineSnapshot(running=float(i + at_s), generation_tokens=1.0) for i in range(engines)}
        yield (
            merged({f"r{i}": one for i, one in enumerate(each)})
            if replicas > 1
            else replace(each[0], by_engine=by_engine)
        )


async def watched(read: Iterator[ServerSnapshot], polls: int) -> ServerWatch:
    """Return a watch of a run after so many regular polls."""

    async def once() -> ServerSnapshot:
        return next(read)

    watch = ServerWatch(once, None, SystemClock())
    for _ in range(polls):
        watch.polls.append(await watch.poll())
    return watch


def test_only_the_polls_that_the_guard_compares_are_kept_whole() -> None:
    watch = asyncio.run(watched(pages(), 20))
    whole = next(pages())
    assert [len(one.histograms) for one in watch.snapshots[-LOOK_BACK:]] == [len(whole.histograms)] * LOOK_BACK
    for kept in watch.snapshots[:-LOOK_BACK]:
        assert kept.histograms.keys() <= {"ttft", "itl", "iteration_tokens", "prefill", "prompt_length"}
        assert kept.histograms["ttft"].count == whole.histograms["ttft"].count
        assert len(kept.histograms["ttft"].buckets) == 1
        assert kept.others == {key: whole.others[key] for key in KV_SIZES if key in whole.others} != {}
        assert (kept.preemptions, kept.rejections, kept.finished) == (
            whole.preemptions,
            whole.rejections,
            whole.finished,
        )
    assert all(poll is one for poll, one in zip(watch.polls, watch.snapshots, strict=True)), "kept once"
    assert watch.first is not None
    assert len(watch.first.histograms["ttft"].buckets) > 1, "what is usual is judged by it"


def test_a_step_that_has_ended_leaves_the_first_poll_and_the_newest() -> None:
    watch = asyncio.run(watched(pages(), 20))
    first, *_, last = watch.snapshots
    watch.end()
    assert len(watch.snapshots) == 1 + LOOK_BACK
    assert (watch.snapshots[0], watch.snapshots[-1]) == (first, last)
    assert page_fault([5 * 10**9] * 30, watch.snapshots) is not None, "none of them was counted"


def test_the_most_that_run_on_an_engine_are_known_of_each_poll() -> None:
    watch = asyncio.run(watched(pages(engines=32), 20))
    for at_s, kept in enumerate(watch.snapshots, start=1):
        assert max(one.running or 0.0 for one in kept.by_engine.values()) == 31.0 + at_s
    assert watch.snapshots[3].by_engine["0"].generation_tokens is None
    first, *_, last = thinned(watch.snapshots[-LOOK_BACK:])
    assert all(one.by_engine["0"].generation_tokens == 1.0 for one in (first, last)), "the shares of engines"


def _grown(one: ServerSnapshot, at_s: int, number: int) -> ServerSnapshot:
    """Return what a busy replica shows after so many seconds: counters that grow, and a batch that is often full."""
    times = 1.0 + at_s * (number + 1)
    histograms = {
        name: Histogram(tuple((bound, count * times) for bound, count in each.buckets), each.sum * times)
        for name, each in one.histograms.items()
    }
    return replace(
        one,
        histograms=histograms,
        generation_tokens=(one.generation_tokens or 1.0) * times,
        prompt_tokens=(one.prompt_tokens or 1.0) * times,
        running=float(min(4 + at_s % 9, 8)),
        waiting=2.0,
        kv_cache_usage=0.1 + 0.02 * number + 0.001 * at_s,
        flags={"block_size": "16", "cache_dtype": "auto"},
    )


@pytest.mark.parametrize("replicas", [1, 5])
def test_a_load_plan_learns_the_same_from_what_is_kept(replicas: int) -> None:
    def read() -> Iterator[ServerSnapshot]:
        for at_s, page in enumerate(pages(replicas), start=1):
            if replicas == 1:
                yield _grown(page, at_s, 0)
            else:
                yield merged({name: _grown(one, at_s, i) for i, (name, one) in enumerate(page.replicas.items())})

    watch = asyncio.run(watched(read(), 0))
    assert watch.begin() == 0
    whole = list(islice(read(), 24))
    for one in whole:
        watch.polls.append(watch._keep(one))
    kept = thinned(watch.snapshots)
    assert windows(kept) == windows(whole)
    assert len(windows(whole)) > 5
    assert engine_shares(kept) == engine_shares(whole)
    assert infer_max_num_seqs(kept) == infer_max_num_seqs(whole) is not None
    assert kept[-1].flags == whole[-1].flags
    learnt, right = kv_size(kept, 300.0), kv_size(whole, 300.0)
    assert learnt is not None
    assert right is not None
    assert learnt.tokens == pytest.approx(right.tokens, rel=1e-9)
    assert (learnt.is_learnt, learnt.words) == (right.is_learnt, right.words)


def test_few_engines_stay_as_they_were() -> None:
    watch = asyncio.run(watched(pages(engines=2), 20))
    assert watch.snapshots[0].by_engine["1"] == EngineSnapshot(running=2.0, generation_tokens=1.0)


def test_a_replica_that_restarted_shows_as_long_as_its_step_lasts() -> None:
    """In the sum of the replicas, the growth of the others hides it."""

    def read() -> Iterator[ServerSnapshot]:
        for number, page in enumerate(pages(2), start=1):
            a, b = page.replicas.values()
            grown = replace(a, generation_tokens=(a.generation_tokens or 0.0) + 1e9 * number)
            young = replace(b, generation_tokens=1.0 if number > 5 else b.generation_tokens)
            yield merged({"a": grown, "b": young})

    watch = asyncio.run(watched(read(), 30))
    pairs = zip(watch.snapshots, watch.snapshots[1:], strict=False)
    changed = [number for number, (before, after) in enumerate(pairs, start=1) if restarted(before, after) is not None]
    assert changed == [5]


def _bytes(kept: Iterable[object]) -> int:
    """Return the memory of these objects and of all that they refer to, each counted once."""
    left, seen, total = list(kept), set[int](), 0
    while left:
        one = left.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen.add(id(one))
            total += sys.getsizeof(one)
            left += gc.get_referents(one)
    return total


def _mib_in_an_hour(replicas: int) -> float:
    """Return the memory of the polls of an hour, by the newest ones and the mean of some older ones."""
    watch = asyncio.run(watched(pages(replicas), 2 * LOOK_BACK + 1))
    old, new = watch.snapshots[1:-LOOK_BACK], watch.snapshots[-LOOK_BACK:]
    return (_bytes(old) / len(old) * HOUR + _bytes([*new, watch.first, *watch.polls[-LOOK_BACK:]])) / 2**20


@pytest.mark.slow
def test_an_hour_of_32_replicas_takes_no_40_mib_more_than_one_of_one() -> None:
    alone = _mib_in_an_hour(1)
    assert alone < 50.0
    assert _mib_in_an_hour(32) - alone < 40.0
