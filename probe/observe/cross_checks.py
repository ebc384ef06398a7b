"""What no single source tells: client, server and GPU of one target, next to each other. Pure.

In: readings of the server and of its GPUs, canaries, and accounts of both sides (users.py), as they come. Out: the
CrossChecks of the last five minutes. What cannot be told now is None or absent, never zero.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from probe.core.latency import ttft_s
from probe.core.request import RequestRecord
from probe.core.snapshot import (
    CountedTraffic,
    CrossChecks,
    GpuSnapshot,
    Histogram,
    ServerSnapshot,
    UserLoad,
    UserTotals,
)
from probe.gpu.utilization import utilization
from probe.observe.restarts import BackendChanges, restarted, slim

_WINDOW_NS = 300 * 10**9
_LEAST_S = 60.0  # over less, one request more or less decides
_LEAST_RATE_S = 10.0
_ACCOUNTS, _LEAST_ACCOUNTS = 20, 3
_ACCOUNTS_NS = 3600 * 10**9
# A KV cache in use by so much counts as full. The guard, which asks whether load may go on, waits for 95 %.
FULL = 0.9
_PRESSURE_NS = 60 * 10**9
_KEPT = ("ttft", "queue", "prefill")  # of histograms

# The signs of KV pressure, in the order in which they come.
SIGNS = ("usage", "waiting", "preemptions", "rejections")
METHODS = ("matched", "mean")


@dataclass(frozen=True, slots=True)
class _Seen:
    """An engine's state, and since when it has been the same."""

    state: tuple[float | None, ...]
    since_ns: int


class CrossChecker:
    """The last minutes of one target."""

    def __init__(self) -> None:
        self._readings: deque[ServerSnapshot] = deque()
        self._canaries: deque[RequestRecord] = deque()
        self._gpus: deque[GpuSnapshot] = deque()
        self._users: deque[tuple[int, UserTotals]] = deque()
        self._accounts: deque[tuple[int, CountedTraffic]] = deque(maxlen=_ACCOUNTS)
        self._engines: dict[str, _Seen] = {}
        self._stalled_s: float | None = None
        self._is_read = False
        self._replicas = BackendChanges()
        self.several = False

    def reading(self, server: ServerSnapshot) -> None:
        """The server was read. `several` then says whether there is more than one at its address."""
        self._is_read = True
        self.several = self._replicas.reading(server)
        if self._readings and restarted(self._readings[-1], server) is not None:
            for seen in (self._readings, self._users, self._accounts):
                seen.clear()
            self._engines.clear()
        self._readings.append(slim(server, _KEPT))
        _forget(self._readings, server.at_ns)
        while self._users and self._users[0][0] < server.at_ns - _WINDOW_NS:
            self._users.popleft()
        while self._accounts and self._accounts[0][0] < server.at_ns - _ACCOUNTS_NS:
            self._accounts.popleft()
        self._stalled_s = self._watch_progress(server)

    def unread(self) -> None:
        """It could not be read: nothing is known of it now. What was seen is kept: an engine may stand still."""
        self._is_read = False

    def canary(self, record: RequestRecord) -> None:
        """A canary ended."""
        self._canaries.append(record)
        while self._canaries and self._canaries[0].done_ns < record.done_ns - _WINDOW_NS:
            self._canaries.popleft()

    def gpus(self, snapshot: GpuSnapshot) -> None:
        """The GPUs were read."""
        self._gpus.append(snapshot)
        _forget(self._gpus, snapshot.at_ns)

    def accounts(self, at_ns: int, users: UserTotals, both: CountedTraffic | None) -> None:
        """An account was made up: the users' part so far, and both sides of it, where they can be compared."""
        self._users.append((at_ns, users))
        if both is not None:
            self.compare(at_ns, both)

    def compare(self, at_ns: int, both: CountedTraffic) -> None:
        """Both sides of an account."""
        # With others there, nobody tells whose the tokens are.
        if both.requests and both.server_requests <= both.requests:
            self._accounts.append((at_ns, both))

    def loaded(self) -> None:
        """There is load of ours: the next account is of all the time it takes, and no rate of the last minutes."""
        self._users.clear()

    def users(self) -> UserLoad | None:
        """What others ask, over the last minutes; None where too little was seen, or of several servers."""
        if not self._is_read or self.several or not self._users:
            return None
        (first_ns, before), (last_ns, after) = self._users[0], self._users[-1]
        seconds = (last_ns - first_ns) * 1e-9
        if seconds < _LEAST_RATE_S:
            return None

        def rate(earlier: float | None, later: float | None) -> float | None:
            return (later - earlier) / seconds if earlier is not None and later is not None else None

        return UserLoad(rate(before.requests, after.requests), rate(before.output_tokens, after.output_tokens))

    def view(self) -> CrossChecks:
        """What can be told now."""
        if not self._is_read:
            return CrossChecks()
        if self.several:
            return CrossChecks(several=True)
        return CrossChecks(
            ttft_gap_s=dict(self._gap()),
            queue_share=self._queue_share(),
            counted=dict(self._counted()),
            neighbour_utilization=self._neighbour(),
            stalled_s=self._stalled_s,
            pressure=pressure(self._readings),
        )

    def _counted(self) -> Iterator[tuple[str, float]]:
        """By the median of the last accounts, of three at least: one may lie across a change of everything."""
        for kind in ("prompt", "output"):
            pairs = [
                (getattr(both, f"{kind}_tokens"), getattr(both, f"server_{kind}_tokens")) for _, both in self._accounts
            ]
            ratios = [theirs / ours for ours, theirs in pairs if ours and theirs is not None]
            if len(ratios) >= _LEAST_ACCOUNTS:
                yield kind, median(ratios)

    def _gap(self) -> Iterator[tuple[str, float]]:
        matched = [
            (both.ttft_s - both.server_ttft_s) / both.requests
            for _, both in self._accounts
            if both.server_requests == both.requests and both.server_ttft_s is not None
        ]
        if matched:
            yield "matched", median(matched)
        ours = [first for record in self._canaries if (first := ttft_s(record)) is not None]
        theirs = self._grown("ttft")
        if ours and theirs is not None:
            yield "mean", fmean(ours) - theirs.sum / theirs.count

    def _queue_share(self) -> float | None:
        """Of queue and prefill, which are the engine's TTFT and both told when a request ends."""
        queue, prefill = self._grown("queue"), self._grown("prefill")
        if queue is None or prefill is None or queue.sum + prefill.sum <= 0:
            return None
        waited = queue.sum / queue.count
        return waited / (waited + prefill.sum / prefill.count)

    def _grown(self, key: str) -> Histogram | None:
        """By how much a histogram's count and sum have grown since the oldest reading; None: not at all."""
        told = [reading.histograms[key] for reading in self._readings if key in reading.histograms]
        count = told[-1].count - told[0].count if told else 0.0
        return Histogram(((float("inf"), count),), told[-1].sum - told[0].sum) if count > 0 else None

    def _neighbour(self) -> float | None:
        """How busy the busiest GPU was on the mean, less the time that our own canaries ran; None where users asked
        something meanwhile, or too little has been seen.
        """
        readings = list(self._readings)
        while readings and (readings[-1].running or readings[-1].waiting):
            readings.pop()  # a canary that is under way, or users
        if not readings:
            return None
        first_ns, last_ns = readings[0].at_ns, readings[-1].at_ns
        gpus = [snapshot for snapshot in self._gpus if first_ns <= snapshot.at_ns <= last_ns]
        seconds = (last_ns - first_ns) * 1e-9
        busy = _utilizations(gpus)
        if seconds < _LEAST_S or not busy or gpus[-1].at_ns - gpus[0].at_ns < seconds * 1e9 / 2:
            return None
        if not self._nobody_asked(readings):
            return None
        own = sum(max(min(one.done_ns, last_ns) - max(one.sent_ns, first_ns), 0) for one in self._canaries) * 1e-9
        return max(max(map(fmean, busy.values())) - own / seconds, 0.0)

    def _nobody_asked(self, readings: Sequence[ServerSnapshot]) -> bool:
        """Whether users asked for nothing, and nothing but a canary ran at any reading."""
        within = [users for at_ns, users in self._users if readings[0].at_ns <= at_ns <= readings[-1].at_ns]
        if not within or within[-1].requests is None or within[-1].requests != within[0].requests:
            return False
        if within[-1].output_tokens != within[0].output_tokens:
            return False
        asked = [(one.sent_ns, one.done_ns) for one in self._canaries if one.events]
        return all(
            not reading.waiting and (not reading.running or any(sent <= reading.at_ns <= done for sent, done in asked))
            for reading in readings
        )

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
    if len(within) == 1:
        within = list(readings)[-2:]  # it is read less than once a minute
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
        # A gateway rejects for reasons of its own.
        if len(counts) > 1 and usage:
            signs[sign] = counts[-1] > counts[0]
    return signs


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
