"""Everything that follows from the successive snapshots of one metrics page. Pure.

In: snapshots as they are taken, and all probe traffic (canaries, requests on demand, capacity runs) as it begins and
ends. Out: the load of users, restarts, and the last minutes and hours of snapshots. The check before a capacity run,
the run itself, headroom, the pages and the API all ask here. Targets with the same metrics page share one ServerState.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from probe.core.request import RequestRecord, Traffic
from probe.core.snapshot import CountedTraffic, ServerSnapshot, UserLoad, UserTotals
from probe.observe.engine_balance import EngineBalance
from probe.observe.kv_pressure import most_running
from probe.observe.length_history import LengthHistory
from probe.observe.probe_traffic import LENGTHS, NO_TOKENS, Tokens
from probe.observe.restarts import BackendDetector, restarted
from probe.observe.snapshot_history import SnapshotHistory, slim
from probe.observe.user_load import users_beside
from probe.observe.user_traffic import UserTraffic


@dataclass(frozen=True, slots=True)
class _Progress:
    """An engine's progress values, and since when they have not changed."""

    values: tuple[float | None, ...]
    since_ns: int


class StallDetector:
    """Follows the progress of each engine of one server."""

    def __init__(self) -> None:
        self._engines: dict[str, _Progress] = {}

    def add(self, snapshot: ServerSnapshot) -> float | None:
        """Return for how long (s) the worst engine has had requests without progress; None if progress is unknown."""
        stalled: list[float] = []
        for name, is_busy, values in _engines(snapshot):
            last = self._engines.get(name)
            if last is None or not is_busy or values != last.values:
                self._engines[name] = last = _Progress(values, snapshot.at_ns)
            stalled.append((snapshot.at_ns - last.since_ns) * 1e-9)
        return max(stalled, default=None)

    def clear(self) -> None:
        self._engines.clear()


def _engines(server: ServerSnapshot) -> Iterator[tuple[str, bool, tuple[float | None, ...]]]:
    """Yield each engine that the server reports separately: its name, whether it has requests, its progress values.

    The values are its tokens and its KV cache usage: while vLLM prefills a long prompt no counter moves, but the KV
    cache fills. The numbers of running and waiting requests do not count: users keep asking an engine that is stuck.
    """
    if server.by_engine:
        for name, engine in server.by_engine.items():
            if engine.generation_tokens is not None:
                yield name, bool(engine.running or engine.waiting), (engine.generation_tokens, engine.kv_cache_usage)
    elif server.progress is not None:
        values = (server.progress, server.kv_cache_usage, server.estimated_flops)
        yield "", bool(server.running or server.waiting), values


# How long a server still counts as asleep when its page cannot be read any more. It may have died, and then its
# canaries have to fail.
_UNREAD_NS = 60 * 10**9


class Sleep:
    """The sleep of one server.

    While it sleeps nothing may be sent to it: it answers /health and /metrics, but a request waits until it wakes up,
    and in some versions of vLLM ends the engine. `since_s`: wall time of the first snapshot that showed it; None: the
    server is awake. `is_reported`: whether the last snapshot shows it; None: there has been none.
    """

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.is_reported: bool | None = None
        self._last_ns = -_UNREAD_NS  # the last snapshot of a sleeping server

    def add(self, snapshot: ServerSnapshot) -> None:
        """Take the next snapshot."""
        self.is_reported = snapshot.is_asleep is not None
        if not snapshot.is_asleep:
            self.since_s = None
            return
        self._last_ns = snapshot.at_ns
        if self.since_s is None:
            self.since_s = snapshot.wall_s

    def is_recent(self, now_ns: int) -> bool:
        """Return whether the server sleeps by the last snapshot, and within the last minute."""
        return self.since_s is not None and now_ns - self._last_ns < _UNREAD_NS

    def was_since(self, since_ns: int) -> bool:
        """Return whether a snapshot since then showed the server asleep."""
        return self._last_ns >= since_ns


WINDOW_NS = 300 * 10**9
_MIN_RATE_WINDOW_S = 10.0
_MAX_COMPARISONS = 20
_COMPARISON_AGE_NS = 3600 * 10**9
_RECENT_HISTOGRAMS = ("ttft", "queue", "prefill")


class ServerState:
    """The state of the server, or servers, behind one metrics page."""

    def __init__(self) -> None:
        self.recent: deque[ServerSnapshot] = deque()  # the last five minutes, with only _RECENT_HISTOGRAMS
        self.history = SnapshotHistory()
        self.lengths = LengthHistory()
        # User totals at the snapshots of the last minutes, without lengths, with their time in ns; none of before
        # a load.
        self.user_history: deque[tuple[int, UserTotals]] = deque()
        # The client's and the server's token counts over periods without users, and the time in ns.
        self.comparisons: deque[tuple[int, CountedTraffic]] = deque(maxlen=_MAX_COMPARISONS)
        self.balance = EngineBalance()
        self.has_multiple_backends = False
        self.sleep = Sleep()
        self.stalled_s: float | None = None
        self.most_running = 0.0  # most requests that have run at once on one engine since the server's start
        self._newest: ServerSnapshot | None = None
        self._restart: tuple[int, str] | None = None
        self._has_unsettled_restart = False
        self._backends = BackendDetector()
        self._stall = StallDetector()
        self._traffic = UserTraffic()
        self._in_flight: list[tuple[int, Tokens]] = []  # canaries and requests on demand: when they began (ns)
        self._runs = 0  # capacity runs of this process that send load now
        self._canaries_during_runs: list[RequestRecord] = []  # that ended meanwhile, with requests on demand

    def add(self, snapshot: ServerSnapshot) -> None:
        """Take the next snapshot.

        One that was asked for before the last one had arrived is ignored: which of the two is newer is unknown, and an
        older one would pass for a restart.
        """
        before = self._newest
        if before is not None and (snapshot.asked_ns or snapshot.at_ns) < before.at_ns:
            return
        self._newest = snapshot
        restart = restarted(before, snapshot) if before is not None else None
        if before is not None:
            is_same = before.replicas.keys() == snapshot.replicas.keys()  # else no process was replaced
            self.has_multiple_backends = self._backends.add(
                before, snapshot, is_restart=restart is not None and is_same
            )
        if restart is not None:
            self._restart = (snapshot.at_ns, restart)
            self._has_unsettled_restart = True
            for kept in (self.recent, self.user_history, self.comparisons, self.history, self._stall):
                kept.clear()
            self.most_running = 0.0
        elif before is not None and _have_flags_changed(before, snapshot):
            self.history.clear()
        self.recent.append(slim(snapshot, _RECENT_HISTOGRAMS))
        self.history.add(snapshot)
        self.balance.add(snapshot)
        self.sleep.add(snapshot)
        if snapshot.is_asleep:
            self._stall.clear()  # it makes no progress on purpose
        self.stalled_s = None if snapshot.is_asleep else self._stall.add(snapshot)
        self.most_running = max(self.most_running, most_running(snapshot))
        if not self.has_multiple_backends:
            self._settle(snapshot)
        self._drop_old(snapshot.at_ns)

    def _settle(self, snapshot: ServerSnapshot) -> None:
        counted = self._traffic.add(snapshot, is_new_process=self._has_unsettled_restart)
        self._has_unsettled_restart = False
        if self._traffic.is_known:
            totals = self._traffic.totals
            self.lengths.add(snapshot, totals)
            latencies = {key: one for key, one in totals.histograms.items() if key not in LENGTHS}
            self.user_history.append((snapshot.at_ns, replace(totals, histograms=latencies)))
        else:
            self.user_history.clear()
            self.lengths.pause()
        # With users there, the server's tokens are not of probe requests alone.
        if counted is not None and counted.requests and counted.server_requests <= counted.requests:
            self.comparisons.append((snapshot.at_ns, counted))

    def _drop_old(self, now_ns: int) -> None:
        while self.recent[0].at_ns < now_ns - WINDOW_NS:
            self.recent.popleft()
        # Two are kept whatever their age: a server may be scraped every ten minutes.
        while len(self.user_history) > 2 and self.user_history[0][0] < now_ns - WINDOW_NS:  # noqa: PLR2004
            self.user_history.popleft()
        while self.comparisons and self.comparisons[0][0] < now_ns - _COMPARISON_AGE_NS:
            self.comparisons.popleft()

    # Probe traffic.

    def begin(self, now_ns: int, *, is_load: bool = False, most: Tokens = NO_TOKENS) -> None:
        """Note that a canary or a request on demand begins, of at most these tokens, or with `is_load` the load of a
        capacity run.
        """
        if is_load:
            self._runs += 1
        else:
            self._in_flight.append((now_ns, most))
        self._traffic.begin(is_load=is_load, most=most)

    def add_record(self, record: RequestRecord) -> None:
        """Add a probe request that has ended, of whatever kind, before its `end`."""
        if self._runs and record.traffic is not Traffic.CAPACITY:
            self._canaries_during_runs.append(record)
        self._traffic.add_record(record)

    def end(self, began_ns: int, now_ns: int, *, is_load: bool = False) -> None:
        """Note the end of what began at `began_ns`."""
        most = NO_TOKENS
        if is_load:
            self._runs -= 1
        else:
            began = next(each for each in self._in_flight if each[0] == began_ns)
            self._in_flight.remove(began)
            most = began[1]
        self._traffic.end(now_ns, is_load=is_load, most=most)
        if not self._runs:
            self._canaries_during_runs.clear()

    def other_prober_began(self) -> None:
        """Note load of another prober: until it ends, user traffic is unknown."""
        self._traffic.other_prober_began()

    def other_prober_ended(self, now_ns: int) -> None:
        """Note the end of another prober's load."""
        self._traffic.other_prober_ended(now_ns)

    def forget_user_rates(self) -> None:
        """Forget the last minutes' rates: they may include load that came through another target of the server."""
        self.user_history.clear()

    # What follows.

    @property
    def user_totals(self) -> UserTotals:
        """Return the user traffic since the first snapshot.

        Empty, which means unknown, if several servers answer at this address, and from the begin of a load until it is
        settled: what users did meanwhile is in the next totals.
        """
        is_known = self._traffic.is_known and not self.has_multiple_backends
        return self._traffic.totals if is_known else UserTotals()

    def users(self) -> UserLoad | None:
        """Return the load of users over the last minutes.

        None during a capacity run's load, if several servers answer at this address, or after too short a time.
        """
        if self._traffic.is_loaded or self.has_multiple_backends or not self.user_history:
            return None
        (first_ns, before), (last_ns, after) = self.user_history[0], self.user_history[-1]
        seconds = (last_ns - first_ns) * 1e-9
        if seconds < _MIN_RATE_WINDOW_S:
            return None

        def rate(earlier: float | None, later: float | None) -> float | None:
            return (later - earlier) / seconds if earlier is not None and later is not None else None

        return UserLoad(rate(before.requests, after.requests), rate(before.output_tokens, after.output_tokens))

    def users_between(self, records: Iterable[RequestRecord], snapshots: Sequence[ServerSnapshot]) -> UserLoad:
        """Return the load of users from the first of a capacity run's snapshots to the last.

        `records` are the run's requests in between; other canaries and requests on demand are known here.
        How much the server has counted of a request in flight is unknown. Snapshots since it began are left
        out, unless that leaves less than half of the time: then it counts in full, and users may have sent one more.
        """
        before_ns = min((began_ns for began_ns, _ in self._in_flight), default=math.inf)
        earlier = [each for each in snapshots if each.at_ns < before_ns]
        probes = [*records, *self._canaries_during_runs]
        if 2 * _span_ns(earlier) >= _span_ns(snapshots):
            return users_beside(probes, earlier)
        return users_beside(probes, snapshots, uncertain=[most for _, most in self._in_flight])

    def other_probes(self) -> tuple[RequestRecord, ...]:
        """Return the canaries and requests on demand that have ended during the present capacity runs."""
        return tuple(self._canaries_during_runs)

    def restarted_ago(self, now_ns: int) -> tuple[float, str] | None:
        """Return how many seconds ago the server was found to have restarted, and the evidence; None if never."""
        return ((now_ns - self._restart[0]) * 1e-9, self._restart[1]) if self._restart else None


def _have_flags_changed(before: ServerSnapshot, after: ServerSnapshot) -> bool:
    """Return whether a flag that both show has another value: without a start time no restart may have shown."""
    return any(after.flags.get(name, value) != value for name, value in before.flags.items())


def _span_ns(snapshots: Sequence[ServerSnapshot]) -> int:
    return snapshots[-1].at_ns - snapshots[0].at_ns if snapshots else 0
