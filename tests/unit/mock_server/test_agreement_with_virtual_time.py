"""The mock server on a clock and the one in virtual time are the same server: same times, same counters."""

import asyncio
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from virtual_time import virtually

from probe.core.snapshot import Histogram
from probe.mock_server.driver import Driver
from probe.mock_server.metrics import Metrics
from probe.mock_server.profiles import PROFILES
from probe.scrape.engines import parse
from probe.simulator.cost import FrontEnd, Jitter, Profile
from probe.simulator.virtual_server import VirtualServer

# Hiccups that never come, so that in virtual time no steps are taken at once, which would differ in the last digits.
EXACT = Jitter(hiccup_every_s=1e12)
TINY = replace(PROFILES["tiny"], jitter=EXACT)
SERVERS = {
    "plain": TINY,
    "preempts": replace(TINY, num_blocks=66, max_num_seqs=32),
    "drifts": replace(TINY, jitter=replace(EXACT, drift_ratio=0.3, drift_period_s=7.0)),
    "slow front end": replace(TINY, front_end=FrontEnd(0.02, 1e-4, 0.0)),
    "slow to hand out": replace(TINY, front_end=FrontEnd(0.001, 0.0, 9e-4)),
    "prefix cache": replace(TINY, prefix_caching=True, num_blocks=100),
}
WATCHED = ("preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")


@dataclass
class Request:
    at_s: float
    prompt: int
    output: int
    shared: int
    leaves_s: float | None  # after it came
    times_s: list[float] = field(default_factory=list)


def _requests(seed: int) -> list[Request]:
    source = Random(seed)
    requests, at_s = [], 0.0
    for _ in range(40):
        at_s += source.expovariate(15)
        leaves_s = source.uniform(0, 0.5) if source.random() < 0.2 else None
        requests.append(
            Request(at_s, source.randint(1, 400), source.randint(1, 60), source.choice((0, 64, 150)), leaves_s)
        )
    return requests


def _on_a_clock(profile: Profile, requests: list[Request]) -> str:
    metrics = Metrics(profile, "m")
    driver = Driver(profile, metrics)

    async def one(request: Request, start_s: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(start_s + request.at_s - loop.time())
        generation = driver.submit(
            prompt_tokens=request.prompt, output_tokens=request.output, shared_tokens=request.shared
        )
        if request.leaves_s is not None:
            loop.call_later(request.leaves_s, driver.abort, generation)
        while len(request.times_s) < request.output and await generation.next_token():
            request.times_s.append(loop.time() - start_s)

    async def scene() -> None:
        start_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(one(request, start_s) for request in requests))
        await asyncio.sleep(5)

    virtually(scene())
    return metrics.page(driver.engine).decode()


def _in_virtual_time(profile: Profile, requests: list[Request]) -> VirtualServer:
    # A loop's clock begins at 100 s there, and a drift goes with the clock.
    server = VirtualServer(profile)
    server.advance(100.0)
    simulated = [server.submit(100.0 + r.at_s, r.prompt, r.output, r.shared) for r in requests]
    leaving = [(r.at_s + r.leaves_s, one) for r, one in zip(requests, simulated, strict=True) if r.leaves_s is not None]
    for leaves_s, one in sorted(leaving, key=lambda pair: pair[0]):
        server.advance(100.0 + leaves_s)
        if not one.ended:
            server.abort(one)
    server.advance(140.0)
    for request, one in zip(requests, simulated, strict=True):
        request.times_s = [at_s - 100.0 for at_s in one.token_times_s()]
    return server


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("seed", [1, 2])
def test_mock_server_and_simulator_give_every_token_at_the_same_time_and_count_alike(name: str, seed: int) -> None:
    ours, theirs = _requests(seed), _requests(seed)
    page = _on_a_clock(SERVERS[name], ours)
    server = _in_virtual_time(SERVERS[name], theirs)
    for a, b in zip(ours, theirs, strict=True):
        gone_s = a.at_s + a.leaves_s if a.leaves_s is not None else float("inf")
        assert a.times_s == pytest.approx([at_s for at_s in b.times_s if at_s < gone_s], abs=1e-6)
    real, virtual = parse(page, at_ns=0, wall_s=0.0), server.snapshot()
    for what in WATCHED:
        assert getattr(real, what) == getattr(virtual, what), what
    assert real.finished["length"] == virtual.finished["length"] > 20
    assert {"ttft", "itl", "tpot", "e2e", "queue"} <= real.histograms.keys()
    for what in real.histograms.keys() & virtual.histograms.keys():
        _assert_alike(real.histograms[what], virtual.histograms[what])
    assert name != "preempts" or virtual.preemptions
    assert name != "prefix cache" or virtual.prefix_cache_hits


def _assert_alike(real: Histogram, virtual: Histogram) -> None:
    assert real.sum == pytest.approx(virtual.sum, abs=1e-6)
    assert [count for _, count in real.buckets] == [count for _, count in virtual.buckets]
