"""What no single source tells: client, server and GPU of one target, next to each other. Pure.

In: readings of the server and of its GPUs, canaries, and accounts of both sides (users.py), as they come. Out: the
CrossChecks of the last five minutes. What cannot be told now is None or absent, never zero.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from probe.gpu.use import utilization
from probe.latency import ttft_s
from probe.live import requests_counted
from probe.records import (
    Counted,
    CrossChecks,
    GpuSnapshot,
    Histogram,
    RequestRecord,
    ServerSnapshot,
)
from probe.restart import restarted, slim

_WINDOW_NS = 300 * 10**9
_LEAST_S = 60.0  # over less, one request more or less decides
_ACCOUNTS = 20
# Of the KV cache. From there on vLLM preempts within a second or two of a burst (docs/guard.md).
FULL = 0.9
_PRESSURE_NS = 60 * 10**9
_KEPT = ("ttft", "queue")  # of histograms

# The signs of KV pressure, in the order in which they come.
SIGNS = ("usage", "waiting", "preemptions", "rejections")
METHODS = ("matched", "mean")


@dataclass(frozen=True, slots=True)
class _Seen:
    """An engine's state, and since when it has been the same."""

    state: tuple[float | None, ...]
    since_ns: int


class Joined:
    """The last minutes of one target."""

    def __init__(self) -> None:
        self._readings: deque[ServerSnapshot] = deque()
        self._canaries: deque[RequestRecord] = deque()
        self._gpus: deque[GpuSnapshot] = deque()
        self._gaps_s: deque[float] = deque(maxlen=_ACCOUNTS)
        self._counted: dict[str, deque[float]] = {}
        self._engines: dict[str, _Seen] = {}
        self._stalled_s: float | None = None

    def reading(self, server: ServerSnapshot) -> None:
        """The server was read."""
        if self._readings and restarted(self._readings[-1], server) is not None:
            self._readings.clear()
            self._engines.clear()
        self._readings.append(slim(server, _KEPT))
        _forget(self._readings, server.at_ns)
        self._stalled_s = self._watch_progress(server)

    def unread(self) -> None:
        """It could not be read: nothing is known of it now."""
        self._readings.clear()
        self._engines.clear()
        self._stalled_s = None

    def canary(self, record: RequestRecord) -> None:
        """A canary ended."""
        self._canaries.append(record)
        while self._canaries and self._canaries[0].done_ns < record.done_ns - _WINDOW_NS:
            self._canaries.popleft()

    def gpus(self, snapshot: GpuSnapshot) -> None:
        """The GPUs were read."""
        self._gpus.append(snapshot)
        _forget(self._gpus, snapshot.at_ns)

    def counted(self, both: Counted) -> None:
        """Accounts of both sides were made up."""
        if not both.requests or both.server_requests > both.requests:
            return  # there were others: whose the tokens are, nobody tells
        for kind, ours, theirs in (
            ("prompt", both.prompt_tokens, both.server_prompt_tokens),
            ("output", both.output_tokens, both.server_output_tokens),
        ):
            if ours and theirs is not None:
                self._counted.setdefault(kind, deque(maxlen=_ACCOUNTS)).append(theirs / ours)
        if both.server_requests == both.requests and both.server_ttft_s is not None:
            self._gaps_s.append((both.ttft_s - both.server_ttft_s) / both.requests)

    def view(self) -> CrossChecks:
        """What can be told now."""
        return CrossChecks(
            ttft_gap_s=dict(self._gap()),
            queue_share=self._queue_share(),
            counted={kind: median(ratios) for kind, ratios in self._counted.items()},
            neighbour_utilization=self._neighbour(),
            stalled_s=self._stalled_s,
            pressure=pressure(self._readings),
        )

    def _gap(self) -> Iterator[tuple[str, float]]:
        if self._gaps_s:
            yield "matched", median(self._gaps_s)
        ours = [first for record in self._canaries if (first := ttft_s(record)) is not None]
        theirs = self._grown("ttft")
        if ours and theirs is not None:
            yield "mean", fmean(ours) - theirs.sum / theirs.count

    def _queue_share(self) -> float | None:
        """TTFT as the server has it holds its queue."""
        queue, ttft = self._grown("queue"), self._grown("ttft")
        if queue is None or ttft is None or ttft.sum <= 0:
            return None
        return min((queue.sum / queue.count) / (ttft.sum / ttft.count), 1.0)

    def _grown(self, key: str) -> Histogram | None:
        """By how much a histogram's count and sum have grown since the oldest reading; None: not at all."""
        told = [reading.histograms[key] for reading in self._readings if key in reading.histograms]
        count = told[-1].count - told[0].count if told else 0.0
        return Histogram(((float("inf"), count),), told[-1].sum - told[0].sum) if count > 0 else None

    def _neighbour(self) -> float | None:
        """How busy the busiest GPU was on the mean, less the time that our own canaries ran; None where users asked
        something meanwhile, or too little has been seen.
        """
        if not self._readings:
            return None
        first, last = self._readings[0], self._readings[-1]
        gpus = [snapshot for snapshot in self._gpus if first.at_ns <= snapshot.at_ns <= last.at_ns]
        seconds = (last.at_ns - first.at_ns) * 1e-9
        busy = _utilizations(gpus)
        if seconds < _LEAST_S or not busy or gpus[-1].at_ns - gpus[0].at_ns < seconds * 1e9 / 2:
            return None
        ours = [one for one in self._canaries if first.at_ns <= one.sent_ns and one.done_ns <= last.at_ns]
        if not _nobody_asked(self._readings, len(ours)):
            return None
        own = sum((record.done_ns - record.sent_ns) * 1e-9 for record in ours) / seconds
        return max(max(map(fmean, busy.values())) - own, 0.0)

    def _watch_progress(self, server: ServerSnapshot) -> float | None:
        """For how long the engine that is worst off has had requests and done nothing with them."""
        stalled: list[float] = []
        for name, busy, state in _engines(server):
            seen = self._engines.get(name)
            if seen is None or not busy or state != seen.state:
                self._engines[name] = seen = _Seen(state, server.at_ns)
            stalled.append((server.at_ns - seen.since_ns) * 1e-9)
        return max(stalled, default=None)


def pressure(readings: Sequence[ServerSnapshot]) -> Mapping[str, bool]:
    """Which signs of a KV cache that is too small the last minute has; a sign that the server does not tell is absent.

    Together they are sure: a full cache alone is well used, and requests also wait for other reasons.
    """
    if not readings:
        return {}
    last = readings[-1]
    within = [reading for reading in readings if reading.at_ns >= last.at_ns - _PRESSURE_NS]
    usage = [reading.kv_cache_usage for reading in within if reading.kv_cache_usage is not None]
    signs: dict[str, bool] = {}
    if usage:
        signs["usage"] = max(usage) >= FULL
    if last.waiting_by_reason:
        signs["waiting"] = any(reading.waiting_by_reason.get("capacity", 0.0) > 0 for reading in within)
    elif last.waiting is not None and usage:
        # Before vLLM 0.20 nothing says why a request waits: beside a full cache it waits for room in it.
        signs["waiting"] = any(
            (reading.waiting or 0.0) > 0 and (reading.kv_cache_usage or 0.0) >= FULL for reading in within
        )
    for sign in ("preemptions", "rejections"):
        counts = [count for reading in within if (count := getattr(reading, sign)) is not None]
        if counts:
            signs[sign] = counts[-1] > counts[0]
    return signs


def _nobody_asked(readings: Sequence[ServerSnapshot], ours: int) -> bool:
    """Whether all requests were ours. One of them may lie across an end of the time that was read."""
    before, after = requests_counted(readings[0]), requests_counted(readings[-1])
    if before is None or after is None or after - before > ours + 1:
        return False
    return all((reading.running or 0.0) <= 1 and not reading.waiting for reading in readings)


def _engines(server: ServerSnapshot) -> Iterator[tuple[str, bool, tuple[float | None, ...]]]:
    """Each engine, where they are told apart: its name, whether it has requests, and what moves while it works.

    That is its tokens and, as vLLM reads a long prompt, which shows in no counter, the KV cache that it fills. How many
    run and wait does not belong there: users go on asking an engine that is stuck.
    """
    if server.by_engine:
        for name, engine in server.by_engine.items():
            if engine.generation_tokens is not None:
                yield name, bool(engine.running or engine.waiting), (engine.generation_tokens, engine.kv_cache_usage)
    elif server.progress is not None:
        state = (server.progress, server.kv_cache_usage, server.estimated_flops)
        yield "", bool(server.running or server.waiting), state


def _utilizations(snapshots: Sequence[GpuSnapshot]) -> Mapping[tuple[str, ...], list[float]]:
    """By GPU, as ratios."""
    found: dict[tuple[str, ...], list[float]] = {}
    for snapshot in snapshots:
        for gpu in snapshot.gpus:
            if (busy := utilization(gpu)) is not None:
                key = tuple(gpu.labels.get(name, "") for name in ("UUID", "gpu", "GPU_I_ID"))
                found.setdefault(key, []).append(busy)
    return found


def _forget(seen: deque[ServerSnapshot] | deque[GpuSnapshot], now_ns: int) -> None:
    while seen and seen[0].at_ns < now_ns - _WINDOW_NS:
        seen.popleft()
