"""What a sweep of fixed loads shows: where throughput stops to grow, and what limits the server there. Pure.

In: levels by rising load, the server's flags, its roofline where it is known. Out: a plateau, a verdict with its
evidence. A search has its own verdict by simulation (capacity/model/bottleneck.py); here only what was measured counts,
so a verdict may be "unknown", and names what would tell.

The order of the checks is that of certainty. A late client hides the server. Preemptions and a full KV cache, and
requests that wait while as many run as at less load, are counted by the server. Shares of time in which memory and
tensor cores were active are measured by DCGM, or estimated by vLLM. Latencies alone come last: TTFT that grows faster
than the time of a token tells that prompts wait for their computation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from probe.capacity.model.bottleneck import CLIENT, HOST, KV_CACHE, MAX_NUM_SEQS, MEMORY_BANDWIDTH, PREFILL
from probe.capacity.trend.levels import IN_FLIGHT, Level
from probe.core.result import Roofline
from probe.core.server_limits import limits_of
from probe.core.vllm_command import count

COMMUNICATION, QUEUE, LOAD, UNKNOWN = "communication", "queue", "load", "unknown"
# Of the share by which the load grows, throughput grows by less: it has reached its plateau.
_PLATEAU = 0.15
_KEPT_UP = 0.95  # of an open loop's rate
_FULL_KV = 0.95
_BUSY_MEMORY, _BUSY_TENSOR = 0.6, 0.5  # a kernel that is bound by either seldom reaches more than 0.9 of it
_BUSY_GPU, _IDLE_GPU = 0.8, 0.5
_SAME_RUNNING, _MORE_LOAD = 1.05, 1.2
_FASTER = 2.0  # TTFT grows by so much more than the time of a token


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits the server at a level: a name of bottleneck.py, or one of those above; and the evidence in words."""

    name: str
    evidence: str
    level: Level
    advice: str | None = None


def gain(before: Level, after: Level) -> float | None:
    """Return the growth of throughput over that of load, 1 for proportional growth; None: not known."""
    if not before.requests_per_second or after.requests_per_second is None or after.load <= before.load:
        return None
    return (after.requests_per_second / before.requests_per_second - 1) / (after.load / before.load - 1)


def plateau(levels: Sequence[Level]) -> Level | None:
    """Return the level from which more load gives hardly more throughput; None where none is that far.

    In an open loop, the first level at which throughput does not keep up with the rate.
    """
    judged = [level for level in levels if level.is_judged]
    for before, after in pairwise(judged):
        if before.unit == IN_FLIGHT and (found := gain(before, after)) is not None and found < _PLATEAU:
            rest = judged[judged.index(after) :]
            if all((gain(before, later) or 0.0) < _PLATEAU for later in rest):
                return before
    behind = (each for each in judged if each.unit != IN_FLIGHT and each.requests_per_second is not None)
    return next((each for each in behind if (each.requests_per_second or 0.0) < _KEPT_UP * each.load), None)


def verdict(levels: Sequence[Level], flags: Mapping[str, str], roofline: Roofline | None = None) -> Verdict | None:
    """Return what limits the server at the highest level; None without any that says something."""
    if levels and levels[-1].is_client:
        return Verdict(CLIENT, "Kneewatch's own machine was too late to judge the server", levels[-1])
    told = [level for level in levels if level.is_judged or level.tripped is not None]
    judged = [level for level in told if level.is_judged]
    counted = _counted(told, flags) if told else None
    if counted is not None or not judged:
        return counted
    active = _active(judged[-1], roofline)
    if active is not None:
        return active
    if plateau(judged) is None:
        return _not_full(judged)
    return _between(judged[-1], flags) or _by_latency(judged) or _unknown(judged[-1])


def _counted(told: Sequence[Level], flags: Mapping[str, str]) -> Verdict | None:
    """Return the limit that the server itself counts: its KV cache, its queue's, or that of running requests."""
    last, server = told[-1], told[-1].server
    kv, waiting = server.kv_cache_usage_peak, server.waiting_peak
    full = f"KV cache {kv:.0%} full" if kv is not None else "KV cache unknown"
    queue = f", {waiting:g} waited" if waiting else ""
    if server.preemptions:
        share = f" ({server.preemptions / last.requests:.1%} of requests)" if last.requests else ""
        return Verdict(KV_CACHE, f"{server.preemptions:g} preemptions{share}, {full}{queue}", last)
    if kv is not None and kv >= _FULL_KV and waiting:
        return Verdict(KV_CACHE, f"{full}{queue}", last)
    if last.rejected:
        return Verdict(QUEUE, f"the server refused {last.rejected} requests for having too much to do", last)
    limit = _limit_of_running(told, flags) if waiting else None
    if limit is None:
        return None
    return Verdict(MAX_NUM_SEQS, f"{server.running_peak:g} ran and {waiting:g} waited, {full}; {limit}", last)


def _limit_of_running(told: Sequence[Level], flags: Mapping[str, str]) -> str | None:
    """Return the limit of running requests that the last level has reached, in words; None: none that is known.

    Where no flag tells it, it is likely where more load made no more requests run.
    """
    last, running, limits = told[-1], told[-1].server.running_peak, limits_of(flags)
    if running is None:
        return None
    if limits.running is not None:
        is_reached = running >= limits.running * (count(flags.get("engines", "")) or 1)
        return f"{limits.named} is {limits.running}" if is_reached else None
    before = told[-2] if len(told) > 1 else None
    if before is None or not before.server.running_peak or last.load < before.load * _MORE_LOAD:
        return None
    if running > before.server.running_peak * _SAME_RUNNING:
        return None
    return f"no more ran than at {before.words}, so a limit is likely"


def _not_full(judged: Sequence[Level]) -> Verdict:
    last = judged[-1]
    if len(judged) == 1:
        return Verdict(UNKNOWN, "one load alone shows no limit; measure several", last)
    busy = last.gpu.utilization
    if busy is not None and busy < _IDLE_GPU and not last.server.waiting_peak:
        words = f"the GPU was busy {busy:.0%} of the time and nothing waited: the batch is too small to fill it"
        return Verdict(LOAD, f"{words}; measure more load", last)
    if last.broken:
        return Verdict(LOAD, f"throughput still grows there, though {', '.join(last.broken)} is missed", last)
    return Verdict(LOAD, "throughput still grows there; measure more load", last)


def _activity(last: Level, roofline: Roofline | None) -> tuple[float | None, float | None, str]:
    """Return the shares of time of memory and tensor cores, by DCGM or else vLLM's own estimates, and the source."""
    if last.gpu.dram_active is None and last.gpu.tensor_active is None and roofline is not None:
        return roofline.bandwidth_ratio, roofline.flops_ratio, "vLLM's estimate"
    return last.gpu.dram_active, last.gpu.tensor_active, "DCGM"


def _shares(last: Level, memory: float | None, tensor: float | None) -> str:
    named = (("memory active", memory), ("tensor cores", tensor), ("GPU busy", last.gpu.utilization))
    return ", ".join(f"{words} {share:.0%}" for words, share in named if share is not None)


def _active(last: Level, roofline: Roofline | None) -> Verdict | None:
    """Return the limit of the GPUs that is nearly reached."""
    memory, tensor, source = _activity(last, roofline)
    near_memory, near_tensor = (memory or 0.0) / _BUSY_MEMORY, (tensor or 0.0) / _BUSY_TENSOR
    if max(near_memory, near_tensor) < 1:
        return None
    name = MEMORY_BANDWIDTH if near_memory >= near_tensor else PREFILL
    return Verdict(name, f"{_shares(last, memory, tensor)} of the time ({source})", last)


def _between(last: Level, flags: Mapping[str, str]) -> Verdict | None:
    """Return what keeps GPUs from their limits while throughput no longer grows: the host, or other GPUs."""
    memory, tensor, busy = last.gpu.dram_active, last.gpu.tensor_active, last.gpu.utilization
    shares = f"{_shares(last, memory, tensor)} of the time"
    if busy is not None and busy < _BUSY_GPU:
        return Verdict(HOST, f"{shares}, while throughput no longer grows: steps wait for the host", last)
    if busy is None or memory is None or tensor is None or _gpus(last, flags) == 1:
        return None
    words = f"{shares} on {_gpus(last, flags)} GPUs: the rest is most likely communication between them"
    return Verdict(COMMUNICATION, f"{words}; a profile of NCCL's kernels would prove it", last)


def _gpus(last: Level, flags: Mapping[str, str]) -> int:
    return count(flags.get("tensor_parallel_size", "")) or last.gpu.gpus or 1


def _by_latency(judged: Sequence[Level]) -> Verdict | None:
    first, last = judged[0], judged[-1]
    ttft, tpot = growth(first, last, "TTFT p50"), growth(first, last, "TPOT p50") or growth(first, last, "ITL p50")
    if ttft is None or tpot is None or len(judged) < 2:  # noqa: PLR2004
        return None
    grown = f"from {first.words} TTFT grows {ttft:.1f}x and the time of a token {tpot:.1f}x"
    if ttft >= tpot * _FASTER:
        return Verdict(PREFILL, f"{grown}: prompts wait for their computation (latencies alone; no GPU was read)", last)
    if tpot >= ttft:
        words = "steps of decoding take longer, for memory bandwidth, computation or the host; --dcgm-url tells which"
        return Verdict(UNKNOWN, f"{grown}: {words}", last)
    return None


def _unknown(last: Level) -> Verdict:
    return Verdict(UNKNOWN, "throughput no longer grows, and nothing that was read tells why; add --dcgm-url", last)


def growth(first: Level, last: Level, latency: str) -> float | None:
    """Return by how much a latency grows between two levels; None: not known."""
    before, after = first.latencies.get(latency), last.latencies.get(latency)
    return after / before if before and after is not None else None
