"""The bottleneck: simulate the twin again with one limit after another removed. Pure; takes seconds.

In: the Twin and its capacity. Out: by how much capacity would grow without each limit, the limit that matters most, and
advice. A limit that gains nothing when removed is no bottleneck, however full it looks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from probe.capacity.model.twin import UNLIMITED_SEQS, Twin, find_capacity
from probe.core.objectives import Objectives
from probe.simulator.cost import FrontEnd

MAX_NUM_SEQS, KV_CACHE, FRONT_END = "max_num_seqs", "kv_cache", "front_end"
PREFILL, MEMORY_BANDWIDTH, HOST = "prefill", "memory_bandwidth", "host"
CLIENT = "client"  # the probe itself: a run that it limited publishes no capacity
_HALF = 0.5
_QUICK = 1200
_WORTH_NAMING = 0.03  # gain, below which nothing is a bottleneck


@dataclass(frozen=True, slots=True)
class Limit:
    """What may limit a server; `removed`: what the twin is simulated without; `advice`: how to raise the limit."""

    name: str
    removed: str
    advice: str


# In the order of preference between equal gains: limits that a flag can change come first.
LIMITS = (
    Limit(
        MAX_NUM_SEQS,
        "the limit",
        "requests wait because max_num_seqs are running: raise --max-num-seqs (and --max-num-active-seqs, where it is"
        " set), as far as TPOT allows",
    ),
    Limit(
        KV_CACHE,
        "half of its shortage: the cache is twice as large",
        "requests wait for KV-cache memory or lose it: raise --gpu-memory-utilization, store the cache in 8 bits"
        " (--kv-cache-dtype fp8), or spread the model over more GPUs (--tensor-parallel-size)",
    ),
    Limit(
        FRONT_END,
        "its time for a request",
        "the API server is slower than the engine: raise --api-server-count, or give it a faster CPU",
    ),
    Limit(
        PREFILL,
        "half of the time for a token",
        "prompts take the time: prefix caching if prompts have a common prefix, a smaller"
        " --max-num-batched-tokens if TPOT suffers and a larger one if TTFT does, or more FLOP/s",
    ),
    Limit(
        MEMORY_BANDWIDTH,
        "half of the time for weights and cache",
        "a step lasts as long as reading weights and cache: quantise the model, decode speculatively, or"
        " take a GPU with more bandwidth",
    ),
    Limit(
        HOST,
        "half of the fixed time of a step",
        "the host takes a fixed time for each step: CUDA graphs (no --enforce-eager), asynchronous scheduling, or a"
        " faster CPU",
    ),
    Limit(CLIENT, "", "the probe's machine was too late to judge: use a quieter one, or more --workers"),
)
BOTTLENECKS = tuple(limit.name for limit in LIMITS)
_ADVICE = {limit.name: limit.advice for limit in LIMITS}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`gains`: relative growth of capacity without each limit, or at half of each cost; `name`: the largest gain's."""

    name: str | None
    gains: Mapping[str, float]

    @property
    def advice(self) -> str | None:
        """Return advice in one sentence."""
        return _ADVICE[self.name] if self.name is not None else None

    @property
    def gain(self) -> float | None:
        """Return the relative growth of capacity without it: 0.4 is 40 % more."""
        return self.gains[self.name] if self.name is not None else None


def find_bottleneck(
    twin: Twin,
    objectives: Objectives,
    correction: Mapping[str, float],
    near_rps: float,
    *,
    requests: int = _QUICK,
) -> Bottleneck:
    """Find what limits the twin at its capacity, which is near `near_rps`; no gains if no rate holds the objectives.

    `requests`: how many are simulated at each rate. ValueError as find_capacity().
    """

    def capacity_of(changed: Twin) -> float:
        return find_capacity(changed, objectives, near_rps, correction=correction, seeds=(0,), requests=requests)

    base = capacity_of(twin)
    gains = {name: capacity_of(relaxed) / base - 1 for name, relaxed in _relaxed(twin).items()} if base else {}
    name = max(gains, key=lambda one: gains[one], default=None)
    return Bottleneck(name if name is not None and gains[name] >= _WORTH_NAMING else None, gains)


def _relaxed(twin: Twin) -> dict[str, Twin]:
    """Return the twin without each of its limits, and with half of each cost."""
    cost = twin.cost
    found: dict[str, Twin] = {}
    if twin.max_num_seqs < UNLIMITED_SEQS:
        found[MAX_NUM_SEQS] = replace(twin, max_num_seqs=UNLIMITED_SEQS)
    found[KV_CACHE] = replace(twin, kv_tokens=twin.kv_tokens / _HALF)
    if twin.front_end != FrontEnd():
        found[FRONT_END] = replace(twin, front_end=FrontEnd())
    token = replace(cost, per_token_s=cost.per_token_s * _HALF, per_pair_s=cost.per_pair_s * _HALF)
    memory = replace(cost, weights_s=cost.weights_s * _HALF, per_kv_token_s=cost.per_kv_token_s * _HALF)
    host = replace(cost, host_s=cost.host_s * _HALF, per_sequence_s=cost.per_sequence_s * _HALF)
    costs = {PREFILL: token, MEMORY_BANDWIDTH: memory, HOST: host}
    return found | {name: replace(twin, cost=halved) for name, halved in costs.items()}
