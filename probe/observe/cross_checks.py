"""Comparison of what client, server and GPU of one target report. Pure.

In: the state of the server (its snapshots, and both sides' counts of probe requests), snapshots of its GPUs, and
canaries. Out: the CrossChecks of the last five minutes. A value that is unknown now is None or absent, never zero.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median

from probe.core.latency import held_back_ratio, ttft_s
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.core.server_limits import limits_of
from probe.core.snapshot import CrossChecks, GpuSnapshot, Histogram, ServerSnapshot, UserTotals
from probe.gpu.fields import utilization
from probe.observe import kv_pressure
from probe.observe.kv_pressure import RunningLimit
from probe.observe.last_minutes import engine_minutes, user_minutes
from probe.observe.server_state import WINDOW_NS, ServerState
from probe.observe.user_objectives import UsersHour

_LEAST_S = 60.0  # over a shorter time, a single request decides
_LEAST_COMPARISONS = 3
METHODS = ("matched", "mean")


class CrossChecker:
    """The cross-checks of one target over the last five minutes."""

    def __init__(self, state: ServerState, objectives: Objectives, max_num_seqs: int | None = None) -> None:
        """Take `max_num_seqs`: the server's, if it is known."""
        self._state = state
        self._objectives = objectives
        self.max_num_seqs = max_num_seqs
        self._canaries: deque[RequestRecord] = deque()
        self._gpus: deque[GpuSnapshot] = deque()
        self._users_hour = UsersHour(objectives)

    def add_canary(self, record: RequestRecord) -> None:
        """Add a canary that has ended."""
        self._canaries.append(record)
        while self._canaries[0].done_ns < record.done_ns - WINDOW_NS:
            self._canaries.popleft()

    def add_users(self, at_ns: int, totals: UserTotals) -> None:
        """Add the user totals at a snapshot of the server."""
        self._users_hour.add(at_ns, totals)

    def add_gpus(self, snapshot: GpuSnapshot) -> None:
        """Add a snapshot of the GPUs."""
        self._gpus.append(snapshot)
        while self._gpus[0].at_ns < snapshot.at_ns - WINDOW_NS:
            self._gpus.popleft()

    def view(self) -> CrossChecks:
        """Return what is known now."""
        if self._state.has_multiple_backends:
            return CrossChecks(has_multiple_backends=True, held_back_ratio=self._held_back())
        pressure = self._pressure()
        users = list(self._users_hour.recent())
        return CrossChecks(
            ttft_gap_s=dict(self._ttft_gap()),
            queue_share=self._queue_share(),
            counted=dict(self._counted()),
            neighbour_utilization=self._neighbour(),
            stalled_s=self._state.stalled_s,
            pressure=pressure,
            is_kv_cache_too_small=kv_pressure.is_too_small(pressure),
            imbalance=self._state.balance.view(self._objectives),
            held_back_ratio=self._held_back(),
            users_met={name: met for name, _, met in users if met is not None},
            users_uncertain={name: one.uncertain_ratio for name, one, _ in users},
            user_minutes=user_minutes(self._state.user_history, self._objectives),
            engine_minutes=engine_minutes(self._state.recent),
        )

    def _held_back(self) -> float | None:
        """Return the median share of a canary's tokens that came together with the first one."""
        ratios = [ratio for canary in self._canaries if (ratio := held_back_ratio(canary)) is not None]
        return median(ratios) if len(ratios) >= _LEAST_COMPARISONS else None

    def _pressure(self) -> Mapping[str, bool]:
        recent, queue = list(self._state.recent), self._growth("queue")
        users = [totals for _, totals in self._state.user_history]
        wait_s = queue.sum / queue.count if queue is not None else None
        is_late = kv_pressure.is_late(self._objectives, self._canaries, users, recent, wait_s)
        return kv_pressure.signs(recent, self._running_limit(recent), is_late=is_late)

    def _running_limit(self, recent: Sequence[ServerSnapshot]) -> RunningLimit:
        """Return how many requests an engine runs at once: by its flags or its page, whichever is lower."""
        shown = recent[-1].scheduler_limits if recent else {}
        by_page = limits_of({flag: str(value) for flag, value in shown.items()}).running
        known = [limit for limit in (self.max_num_seqs, by_page) if limit is not None]
        return RunningLimit(min(known, default=self._state.most_running), is_exact=bool(known))

    def _counted(self) -> Iterator[tuple[str, float]]:
        """Yield the median ratio of tokens that the server counted to tokens that the client received.

        Of at least three comparisons: a single one may lie across a change of everything.
        """
        for kind in ("prompt", "output"):
            pairs = [
                (getattr(both, f"{kind}_tokens"), getattr(both, f"server_{kind}_tokens"))
                for _, both in self._state.comparisons
            ]
            ratios = [server / client for client, server in pairs if client and server is not None]
            if len(ratios) >= _LEAST_COMPARISONS:
                yield kind, median(ratios)

    def _ttft_gap(self) -> Iterator[tuple[str, float]]:
        matched = [
            (both.ttft_s - both.server_ttft_s) / both.requests
            for _, both in self._state.comparisons
            if both.server_requests == both.requests and both.server_ttft_s is not None
        ]
        if matched and (gap_s := median(matched)) >= 0:  # else the server measured something else: it cannot be later
            yield "matched", gap_s
        client = [first for record in self._canaries if (first := ttft_s(record)) is not None]
        server = self._growth("ttft")
        if client and server is not None:
            yield "mean", fmean(client) - server.sum / server.count

    def _queue_share(self) -> float | None:
        """Return the queue's share of queue and prefill. They add up to the engine's TTFT, and both are counted when a
        request ends.
        """
        queue, prefill = self._growth("queue"), self._growth("prefill")
        if queue is None or prefill is None or queue.sum + prefill.sum <= 0:
            return None
        waited = queue.sum / queue.count
        return waited / (waited + prefill.sum / prefill.count)

    def _growth(self, key: str) -> Histogram | None:
        """Return the growth of a histogram's count and sum over the recent snapshots, or None if there is none."""
        states = [snapshot.histograms[key] for snapshot in self._state.recent if key in snapshot.histograms]
        count = states[-1].count - states[0].count if states else 0.0
        return Histogram(((float("inf"), count),), states[-1].sum - states[0].sum) if count > 0 else None

    def _neighbour(self) -> float | None:
        """Return the mean utilization of the busiest GPU, less the time that canaries ran.

        None if users sent requests meanwhile, or after too short a time.
        """
        snapshots = list(self._state.recent)
        while snapshots and (snapshots[-1].running or snapshots[-1].waiting):
            snapshots.pop()  # a canary that is in flight, or users
        if not snapshots:
            return None
        first_ns, last_ns = snapshots[0].at_ns, snapshots[-1].at_ns
        gpus = [snapshot for snapshot in self._gpus if first_ns <= snapshot.at_ns <= last_ns]
        seconds = (last_ns - first_ns) * 1e-9
        busy = _utilizations(gpus)
        if seconds < _LEAST_S or not busy or gpus[-1].at_ns - gpus[0].at_ns < seconds * 1e9 / 2:
            return None
        if not self._is_without_users(snapshots):
            return None
        canaries_s = _covered_ns(self._canaries, first_ns, last_ns) * 1e-9
        return max(max(map(fmean, busy.values())) - canaries_s / seconds, 0.0)

    def _is_without_users(self, snapshots: Sequence[ServerSnapshot]) -> bool:
        """Return whether user traffic stood still, and no snapshot shows a request that is not a canary."""
        history = self._state.user_history
        within = [users for at_ns, users in history if snapshots[0].at_ns <= at_ns <= snapshots[-1].at_ns]
        if not within or within[-1].requests is None or within[-1].requests != within[0].requests:
            return False
        if within[-1].output_tokens != within[0].output_tokens:
            return False
        canaries = [(one.sent_ns, one.done_ns) for one in self._canaries if one.events]
        return all(
            not each.waiting and (not each.running or any(sent <= each.at_ns <= done for sent, done in canaries))
            for each in snapshots
        )


def _covered_ns(records: Iterable[RequestRecord], first_ns: int, last_ns: int) -> int:
    """Return for how long between two times at least one of the requests was in flight."""
    covered = 0
    for record in sorted(records, key=lambda each: each.sent_ns):
        covered += max(min(record.done_ns, last_ns) - max(record.sent_ns, first_ns), 0)
        first_ns = max(first_ns, record.done_ns)
    return covered


def _utilizations(snapshots: Sequence[GpuSnapshot]) -> Mapping[tuple[str, ...], list[float]]:
    """Return each GPU's utilizations, as ratios."""
    found: dict[tuple[str, ...], list[float]] = {}
    for snapshot in snapshots:
        for gpu in snapshot.gpus:
            if (busy := utilization(gpu)) is not None:
                key = tuple(gpu.labels.get(name, "") for name in ("UUID", "gpu", "GPU_I_ID"))
                found.setdefault(key, []).append(busy)
    return found
