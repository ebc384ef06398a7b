"""Why a server missed its users' objectives in the last hours, and what to change, in words. Pure.

Only the steps in which it did are looked at. A cause is what most of the time went into, or what certainly happened.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from probe.core.objectives import LATENCIES
from probe.core.snapshot import Imbalance
from probe.gpu.fields import PROGRAM_XIDS
from probe.observe.engine_balance import IMBALANCES
from probe.observe.kv_pressure import FULL
from probe.observe.past_verdict import Verdict
from probe.observe.server_past import ServerPast
from probe.report.figures import milliseconds, number, percent

_MOST = 0.5  # of the time to the first token, or of the steps
_PREEMPTED = 0.01  # of the requests
_AT_LIMIT = 0.95
_LEAST_LOAD = 8.0
_ACTIVE_SHARE = 0.1  # of the mean of all: below it a replica is drained, or computes prompts only
_SEEN = 0.9
_LONGER = 1.2
_THROTTLED = 0.05
_SECONDS = 10.0  # from here on a time is shown in seconds
_REPLICA = "add a replica"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why, with its evidence, and what to change. `seconds`: for how long it was so, 0 where that is not known."""

    key: str
    words: str
    change: str
    seconds: float = 0.0


def causes(past: ServerPast, found: Verdict) -> list[Cause]:
    """Return the causes: what is broken, and then what lasted longest. Empty for a server that missed nothing."""
    if not found.bad and not found.is_down:
        return []
    slow = [*_first_token(past, found), *_preemptions(past, found), *_tokens(past, found)]
    slow.sort(key=lambda cause: -cause.seconds)
    return [*_broken(past, found), *slow, *_engines(past, found.bad), *_gpus(past)]


def _broken(past: ServerPast, found: Verdict) -> Iterator[Cause]:
    if found.is_down:
        yield Cause("down", "Prometheus cannot read its page now", "see whether it runs, and its log")
    if found.stalled:
        words = f"requests ran and no token came for {_minutes(past, found.stalled)}"
        yield Cause("stalled", words, "restart it, and see its log")
    if found.failing:
        words = f"{number(round(found.failed or 0))} requests failed in {_minutes(past, found.failing)}"
        yield Cause("failed", words, "see its log for errors and aborts by memory")


def _first_token(past: ServerPast, found: Verdict) -> Iterator[Cause]:
    """Yield what the time to the first token went into, where it was missed."""
    one = found.latencies.get("ttft")
    steps = one.missed if one is not None else ()
    requests, whole_s = past.sum("requests", steps), past.sum("ttft_s", steps)
    if not steps or not requests or not whole_s:
        return
    queue_s, prefill_s = (past.sum(key, steps) for key in ("queue_s", "prefill_s"))
    mean, lasted_s = f"of a mean TTFT of {_time(whole_s / requests)}", len(steps) * past.step_s
    if queue_s is not None and queue_s >= _MOST * whole_s:
        yield replace(_queue(past, steps, f"requests waited {_time(queue_s / requests)} {mean}"), seconds=lasted_s)
    elif prefill_s is not None and prefill_s >= _MOST * whole_s:
        prompt = past.sum("prompt_tokens", steps)
        tokens = f" of {number(round(prompt / requests))} tokens" if prompt else ""
        words = f"computing prompts{tokens} took {_time(prefill_s / requests)} {mean}"
        yield Cause("prefill", words, LATENCIES["ttft"].advice.removeprefix("to raise capacity, "), lasted_s)
    elif queue_s is None or prefill_s is None:
        words = "its series do not say whether requests waited, or their prompts took so long"
        yield Cause("unknown", f"{words} ({mean})", "keep vllm:request_queue_time_seconds in Prometheus", lasted_s)


def _queue(past: ServerPast, steps: Sequence[float], words: str) -> Cause:
    """Return why requests waited: for room in the KV cache, for a place in the batch, or for prompts before them."""
    usage = past.known("kv_cache_usage", steps)
    if sum(one >= FULL for one in usage) >= _MOST * len(steps):
        return Cause(
            "kv",
            f"{words}: the KV cache was up to {percent(max(usage))} full",
            f"raise --gpu-memory-utilization, set --kv-cache-dtype fp8, or {_REPLICA}",
        )
    ever, then = past.known("most_running"), past.known("most_running", steps)
    most = max(ever, default=0.0)
    if most and sum(one >= _AT_LIMIT * most for one in then) >= _MOST * len(steps):
        room = f" (the KV cache was at most {percent(max(usage))} full)" if usage else ""
        return Cause(
            "queue",
            f"{words}, while {number(most)} ran, as many as ever did: max_num_seqs may be {number(most)}",
            f"raise --max-num-seqs{room} if TPOT allows it, or {_REPLICA}",
        )
    advice = f"{_REPLICA}, or shorten prompts; more --max-num-batched-tokens admits prompts sooner and slows tokens"
    return Cause("queue", f"{words}, for the prompts before them", advice)


def _preemptions(past: ServerPast, found: Verdict) -> Iterator[Cause]:
    preempted, requests = past.sum("preemptions", found.bad), past.sum("requests", found.bad)
    if preempted and requests and preempted >= _PREEMPTED * requests:
        yield Cause(
            "preemptions",
            f"{number(round(preempted))} preemptions with {number(round(requests))} requests: each computes them again",
            f"lower --max-num-seqs, raise --gpu-memory-utilization, or {_REPLICA}",
            sum(1 for count in past.known("preemptions", found.bad) if count) * past.step_s,
        )


def _tokens(past: ServerPast, found: Verdict) -> Iterator[Cause]:
    """Yield that tokens came too slowly, with the batch and how it is otherwise."""
    slow = found.latencies.get("tpot") or found.latencies.get("e2e")
    steps = slow.missed if slow is not None else ()
    if not steps:
        return
    bad = set(steps)
    others = [at for at in past.steps if at not in bad]
    (now_s, now), (then_s, then) = _gap(past, steps), _gap(past, others)
    if now_s is None or (then_s is not None and now_s < _LONGER * then_s and "tpot" not in found.latencies):
        return
    beside = f"; otherwise {milliseconds(then_s)} with {number(then)} running" if then_s is not None and others else ""
    words = f"a mean gap of {milliseconds(now_s)} between tokens with {number(now)} requests running{beside}"
    advice = LATENCIES["tpot"].advice.removeprefix("to raise capacity, ")
    yield Cause("decode", words, advice, len(steps) * past.step_s)


def _gap(past: ServerPast, steps: Sequence[float]) -> tuple[float | None, float | None]:
    gaps, seconds = past.sum("gaps", steps), past.sum("gaps_s", steps)
    running = past.known("running", steps)
    mean = float(f"{sum(running) / len(running):.2g}") if running else None
    return (seconds / gaps if gaps and seconds is not None else None), mean


def _engines(past: ServerPast, steps: Sequence[float]) -> Iterator[Cause]:
    running, waiting = (past.parts.get(f"engine_{key}", {}) for key in ("running", "waiting"))
    loads = {engine: _mean(its, steps) + _mean(waiting.get(engine, {}), steps) for engine, its in running.items()}
    if (one := imbalance(loads, _LEAST_LOAD)) is not None:
        yield Cause("imbalance", f"engine {imbalance_words(one)}", "see how requests reach its data-parallel engines")


def imbalance(loads: Mapping[str, float], least: float) -> Imbalance | None:
    """Return the one with far more load than the mean of the others; None if there is none with at least `least`."""
    if len(loads) < 2:  # noqa: PLR2004 - nothing to compare
        return None
    name = max(loads, key=loads.__getitem__)
    others = (sum(loads.values()) - loads[name]) / (len(loads) - 1)
    found = Imbalance(name, loads[name], others, loads[name] / others if others else float("inf"))
    return found if loads[name] >= least and found.ratio >= IMBALANCES["load"] else None


def imbalance_words(one: Imbalance) -> str:
    """Return how the load differs."""
    return (
        f"{one.engine} had {number(float(f'{one.value:.2g}'))} requests running or waiting, the others"
        f" {number(float(f'{one.others:.2g}'))} on average"
    )


def replica_loads(servers: Sequence[ServerPast]) -> Mapping[str, float]:
    """Return the mean requests running or waiting of each replica in the busiest quarter of the time of all.

    Replicas that were not there, or took no part, are left out.
    """
    total = {at: sum(_load(one, at) for one in servers) for at in servers[0].steps}
    busiest = sorted(total, key=lambda at: total[at])[-max(len(total) // 4, 1) :]
    there = [one for one in servers if len(set(busiest) & set(one.seen)) >= _SEEN * len(busiest)]
    tokens = {one.name: one.sum("generation_tokens", busiest) or 0.0 for one in there}
    mean = sum(tokens.values()) / len(tokens) if tokens else 0.0
    return {
        one.name: sum(_load(one, at) for at in busiest) / len(busiest)
        for one in there
        if tokens[one.name] > _ACTIVE_SHARE * mean
    }


def _load(past: ServerPast, at: float) -> float:
    return past.values.get("running", {}).get(at, 0.0) + past.values.get("waiting", {}).get(at, 0.0)


def _gpus(past: ServerPast) -> Iterator[Cause]:
    for gpu in past.gpus:
        if gpu.xid and gpu.xid not in PROGRAM_XIDS:
            yield Cause("gpu", f"GPU {gpu.name} had XID {gpu.xid:.0f}", "see the node's log, and drain it")
    for kind, fix in (("heat", "see its cooling"), ("power", "see its power limit")):
        shares = [share for gpu in past.gpus if (share := getattr(gpu, f"throttled_for_{kind}")) is not None]
        if shares and max(shares) >= _THROTTLED:
            yield Cause("gpu", f"a GPU was throttled for {kind} {percent(max(shares))} of the time", fix)


def _mean(values: Mapping[float, float], steps: Iterable[float]) -> float:
    known = [values[at] for at in steps if at in values]
    return sum(known) / len(known) if known else 0.0


def _time(seconds: float) -> str:
    return milliseconds(seconds) if seconds < _SECONDS else f"{number(float(f'{seconds:.3g}'))} s"


def _minutes(past: ServerPast, steps: Sequence[float]) -> str:
    return f"{number(len(steps) * past.step_s / 60)} minutes"
