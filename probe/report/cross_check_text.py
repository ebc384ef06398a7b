"""Findings from client, server and GPU metrics together, as sentences. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from probe.core.latency import HELD_BACK
from probe.core.mig import computing, model_of
from probe.core.objectives import LATENCIES
from probe.core.snapshot import CrossChecks, Gpu, GpuSnapshot
from probe.core.target_status import TargetStatus
from probe.gpu.fields import PROGRAM_XIDS, memory, utilization
from probe.observe.engine_balance import IMBALANCES
from probe.report.figures import milliseconds, number, percent

# A shorter stall is not reported: the prefill of a long prompt generates nothing for some seconds.
STALLED_S = 30.0
_NEIGHBOUR = 0.1
_IDLE = 0.5
_COUNTED_OFF = 0.05
_SIGNS = {
    "usage": "it is full",
    "waiting": "requests wait for room in it",
    "preemptions": "requests are preempted",
    "rejections": "requests are rejected",
    "late": "an objective is missed or will be",
}
# What an engine has more of than the others, by reason.
_ENGINE_VALUES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "load": ("{} requests running or waiting", number),
    "kv_cache": ("{} of its KV cache in use", percent),
    "ttft": ("a mean TTFT of {}", milliseconds),
    "itl": ("a mean ITL of {}", milliseconds),
}
_XID = "DCGM_FI_DEV_XID_ERRORS"


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, and whether it reports a problem."""

    words: str
    is_problem: bool


def findings(status: TargetStatus) -> Sequence[Finding]:
    """Return the findings on one target, problems first."""
    found = [*_checks(status.checks), *_kv_cache(status), *_gpus(status.gpus)]
    if status.gpu_error is not None:
        found.append(Finding(f"GPUs: {status.gpu_error}", is_problem=True))
    return sorted(found, key=lambda finding: not finding.is_problem)


def idle_gpus(status: TargetStatus) -> Iterator[Finding]:
    """Yield that GPUs are idle half of the time while requests run and none waits: the batch is small."""
    server = status.server
    if server is None or not server.running or server.waiting is None or server.waiting > 0:
        return
    busy = [share for gpu in (status.gpus.gpus if status.gpus else ()) if (share := utilization(gpu)) is not None]
    if busy and (mean := fmean(busy)) < _IDLE:
        yield Finding(
            f"the GPU is {percent(mean)} busy with {number(server.running)} requests running and none waiting: the"
            " batch is too small to fill it; fewer replicas, or a smaller GPU, may serve the same users",
            is_problem=False,
        )


def _checks(checks: CrossChecks) -> Iterator[Finding]:
    if (stalled_s := checks.stalled_s or 0.0) >= STALLED_S:
        yield Finding(
            f"stalled: an engine has requests but has generated no token for {stalled_s:.0f} s, even if /health is OK",
            is_problem=True,
        )
    if (busy := checks.neighbour_utilization) is not None and busy >= _NEIGHBOUR:
        yield Finding(
            f"the GPU was {percent(busy)} busy while this server had no requests: another process uses it",
            is_problem=True,
        )
    for kind, ratio in checks.counted.items():
        if abs(ratio - 1) > _COUNTED_OFF:
            yield Finding(
                f"the server counted {percent(ratio)} of the canaries' {kind} tokens: metrics_url seems to be"
                " another server's, or one replica's",
                is_problem=True,
            )
    if (together := checks.held_back_ratio) is not None and together > HELD_BACK:
        yield Finding(
            f"{percent(together)} of a canary's tokens arrive with the first one, so TPOT is unknown and TTFT is"
            " too long: a proxy buffers streams (nginx: proxy_buffering off), or the server does not stream",
            is_problem=True,
        )
    yield from _imbalance(checks)
    if checks.has_multiple_backends:
        yield Finding(
            "several servers answer at this address, so their counters are mixed: set metrics_urls to the page of each,"
            " or configure a target for each",
            is_problem=True,
        )
    yield from _users(checks)
    if checks.queue_share is not None:
        yield Finding(f"queue: {percent(checks.queue_share)} of the time to the first token", is_problem=False)
    if (gap_s := checks.ttft_gap_s.get("matched")) is not None:
        yield Finding(f"network and gateway: {milliseconds(gap_s)} of a canary's TTFT", is_problem=False)
    elif (gap_s := checks.ttft_gap_s.get("mean")) is not None:
        side = "above" if gap_s >= 0 else "below"
        yield Finding(
            f"the canaries' mean TTFT is {milliseconds(abs(gap_s))} {side} the server's mean over all requests",
            is_problem=False,
        )


def _users(checks: CrossChecks) -> Iterator[Finding]:
    for name, uncertain in checks.users_uncertain.items():
        title, met = LATENCIES[name].title, checks.users_met.get(name)
        if met is None:
            few = "there are too few" if uncertain == 1 else f"{percent(uncertain)} may be on either side of it"
            words = f"users: whether the last hour's requests met the {title} objective is not certain: {few}"
            yield Finding(words, is_problem=False)
        elif not met:
            yield Finding(f"users: the last hour's requests missed the {title} objective", is_problem=True)


def _imbalance(checks: CrossChecks) -> Iterator[Finding]:
    for reason, one in checks.imbalance.items():
        if one.ratio >= IMBALANCES[reason]:
            words, shown = _ENGINE_VALUES[reason]
            yield Finding(
                f"unbalanced: engine {one.engine} has {words.format(shown(one.value))}, the others {shown(one.others)}"
                " on average",
                is_problem=True,
            )


def _kv_cache(status: TargetStatus) -> Iterator[Finding]:
    pressure = status.checks.pressure
    shown = [words for sign, words in _SIGNS.items() if pressure.get(sign)]
    if status.checks.is_kv_cache_too_small:
        yield Finding(f"the KV cache is too small: {', '.join(shown)} (in the last minute)", is_problem=True)
    elif pressure.get("preemptions"):
        yield Finding("requests were preempted in the last minute, but no objective is missed", is_problem=False)
    if pressure.get("usage") and "waiting" not in pressure and status.server is not None and status.server.waiting:
        yield Finding(
            "the KV cache is full and requests wait: for room in it, or because max_num_seqs requests run (set"
            " capacity.server.max_num_seqs to know which)",
            is_problem=False,
        )


def _gpus(snapshot: GpuSnapshot | None) -> Iterator[Finding]:
    if snapshot is None:
        return
    if not snapshot.gpus:
        yield Finding("none of the GPUs that are read has this target's labels; check gpu.labels", is_problem=True)
        return
    gpus = computing(snapshot.gpus)
    parts = [*_mean(gpus, utilization, "busy"), *_mean(gpus, memory, "of their memory in use")]
    models = Counter(model_of(gpu.labels) or "GPU" for gpu in gpus)
    names = ", ".join(f"{count} x {model}" if count > 1 else model for model, count in models.items())
    yield Finding(f"{names}: {', '.join(parts) or 'no values'}", is_problem=False)
    for gpu in snapshot.gpus:
        if xid := gpu.values.get(_XID):
            which = gpu.labels.get("gpu") or gpu.labels.get("UUID", "")
            yield Finding(f"GPU {which}: its last error was XID {xid:.0f}", is_problem=xid not in PROGRAM_XIDS)


def _mean(gpus: Sequence[Gpu], value: Callable[[Gpu], float | None], words: str) -> Iterator[str]:
    known = [found for gpu in gpus if (found := value(gpu)) is not None]
    if known:
        yield f"{percent(fmean(known))} {words}"
