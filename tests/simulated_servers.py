"""Servers whose step cost model is known, in virtual time, and what a poll of their metrics shows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probe.capacity.model.twin import Twin
from probe.core.objectives import Objective, Objectives
from probe.core.request import Api
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.core.workload import LognormalLength, Workload
from probe.simulator.cost import FrontEnd, Jitter, Profile, StepCost
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

# About an 8B model on a large GPU, one on a small GPU, and one whose prompts are what takes the time.
FAST = StepCost(0.003, 3e-5, 4e-5, 0.006, 5e-8)
SLOW = StepCost(0.004, 2e-5, 3e-4, 0.060, 5e-7)
WORDY = StepCost(0.002, 2e-5, 1.2e-4, 0.002, 2e-8)
NO_FRONT = FrontEnd()


def workload(prompt: int, output: int, sigma: float = 0.5) -> Workload:
    """Return a workload with log-normal lengths, or fixed ones for a sigma of 0."""
    if not sigma:
        return Workload("w", Api.COMPLETIONS, prompt, output)
    return Workload(
        "w", Api.COMPLETIONS, LognormalLength(prompt, sigma, prompt * 6), LognormalLength(output, sigma, output * 6)
    )


CHAT = workload(400, 150)


def promise(ttft_s: float | None, tpot_s: float | None) -> Objectives:
    return Objectives(
        name="o",
        ttft=Objective(0.95, ttft_s) if ttft_s else None,
        tpot=Objective(0.95, tpot_s) if tpot_s else None,
    )


def profile(
    cost: StepCost,
    *,
    max_num_seqs: int = 512,
    kv_tokens: int = 400_000,
    chunk: int = 2048,
    front_end: FrontEnd = NO_FRONT,
) -> Profile:
    return Profile(
        name="known",
        description="",
        cost=cost,
        max_num_seqs=max_num_seqs,
        block_size=16,
        num_blocks=kv_tokens // 16 + 1,
        max_num_batched_tokens=chunk,
        max_model_len=min(65_536, kv_tokens),
        jitter=Jitter(noise_ratio=0.03),
        front_end=front_end,
    )


def twin_of(known: Profile, asked: Workload) -> Twin:
    """Return a twin with the server's true costs."""
    return Twin(
        cost=known.cost,
        kv_tokens=float(known.usable_blocks * known.block_size),
        workload=asked,
        max_num_seqs=known.max_num_seqs,
        chunk_tokens=known.max_num_batched_tokens,
        front_end=known.front_end,
    )


def polled(server: VirtualServer, seconds: float, every_s: float = 1.0, warm_s: float = 30.0) -> list[ServerSnapshot]:
    """Return snapshots of a server that has been at work for a while."""
    begin_s = server.now_s + warm_s
    snapshots = []
    for i in range(round(seconds / every_s) + 1):
        server.advance(begin_s + i * every_s)
        snapshots.append(server.snapshot())
    return snapshots


def watched(known: Profile, asked: Workload, rate_rps: float, seconds: float, seed: int = 1) -> list[ServerSnapshot]:
    """Return snapshots of live traffic."""
    return polled(VirtualServer(known, seed=seed, users=BackgroundTraffic(rate_rps, asked)), seconds)


def without(snapshot: ServerSnapshot, *names: str) -> ServerSnapshot:
    """Return a snapshot of a server without these histograms."""
    kept: Mapping[str, Histogram] = {k: h for k, h in snapshot.histograms.items() if k not in names}
    return replace(snapshot, histograms=kept)


def restarted(snapshots: Sequence[ServerSnapshot], at: int) -> list[ServerSnapshot]:
    """Return the same snapshots with all counters starting at zero at snapshot `at`."""
    zero = snapshots[at]

    def since(snapshot: ServerSnapshot) -> ServerSnapshot:
        assert snapshot.prompt_tokens is not None
        assert zero.prompt_tokens is not None
        assert snapshot.generation_tokens is not None
        assert zero.generation_tokens is not None
        return replace(
            snapshot,
            prompt_tokens=snapshot.prompt_tokens - zero.prompt_tokens,
            generation_tokens=snapshot.generation_tokens - zero.generation_tokens,
            histograms={k: less(h, zero.histograms[k]) for k, h in snapshot.histograms.items()},
        )

    return [*snapshots[:at], *map(since, snapshots[at:])]


def less(histogram: Histogram, other: Histogram) -> Histogram:
    pairs = zip(histogram.buckets, other.buckets, strict=True)
    return Histogram(tuple((bound, n - m) for (bound, n), (_, m) in pairs), histogram.sum - other.sum)
