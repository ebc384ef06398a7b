"""User traffic: a server's counters less the probe traffic. Pure.

In: snapshots of the server, and the probe requests as they begin and end. Out: totals that only grow, and histograms in
the server's own buckets, so that PromQL can take rates and shares of them as of any counter.

Server counters do not say who sent a request. User traffic is therefore settled only while no probe request is in
flight: by then the server has counted all probe traffic since the last settlement in full. Settling subtracts that
traffic from the growth of the server's counters, and its latency samples from the growth of each histogram. The rest is
user traffic; without users it is exactly zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probe.core.request import RequestRecord
from probe.core.snapshot import CountedTraffic, ServerSnapshot, UserTotals
from probe.observe import histogram_arithmetic
from probe.observe.histogram_arithmetic import growth, have_same_buckets, remove_samples
from probe.observe.probe_traffic import KEYS, ProbeTraffic
from probe.observe.user_load import counts_first_tokens, requests_counted

# A server counts a request about when its last token leaves, a gateway some time later.
_COUNTED_WITHIN_NS = 10**9
# If a canary is in flight at every snapshot, settle after this time anyway: one request may be on the wrong side.
_LATEST_NS = 60 * 10**9


class UserTraffic:
    """The user traffic of one metrics page, shared by all targets with that page."""

    def __init__(self) -> None:
        self._settled: ServerSnapshot | None = None  # the snapshot of the last settlement
        self._was_settled_quietly = False  # no probe request was in flight at the last settlement
        self._in_flight = 0
        self._loads = 0
        self._quiet_since_ns = -_COUNTED_WITHIN_NS
        self._has_other_probers = False  # another prober has loaded the server since the last settlement
        self._other_probers_ended_ns = 0
        self._probe = ProbeTraffic()
        self._sums = UserTotals()  # the sums of all settlements; they may fall after a settlement that came too early
        self._totals = UserTotals()

    @property
    def totals(self) -> UserTotals:
        """User traffic since the first snapshot."""
        return self._totals

    @property
    def settled_ns(self) -> int | None:
        """The time of the last settlement, or None before the first one."""
        return self._settled.at_ns if self._settled is not None else None

    @property
    def is_loaded(self) -> bool:
        """Whether a capacity run or another prober loads the server. User traffic is unknown until it ends."""
        return self._loads > 0

    def begin(self, *, is_load: bool = False) -> None:
        """Note that a probe request begins, or the load of a capacity run. Settling waits for its end."""
        self._in_flight += 1
        self._loads += is_load

    def add_record(self, record: RequestRecord) -> None:
        """Add a probe request that has ended."""
        self._probe.add(record)

    def end(self, now_ns: int, *, is_load: bool = False) -> None:
        """Note the end of what `begin` began."""
        self._in_flight -= 1
        self._loads -= is_load
        self._quiet_since_ns = now_ns

    def other_prober_began(self) -> None:
        """Note load of another prober. Its requests are not known, so nothing counted until its end is user traffic."""
        self.begin(is_load=True)
        self._has_other_probers = True

    def other_prober_ended(self, now_ns: int) -> None:
        """Note the end of another prober's load."""
        self.end(now_ns, is_load=True)
        self._other_probers_ended_ns = now_ns

    def settle(self, server: ServerSnapshot, *, is_new_process: bool = False) -> CountedTraffic | None:
        """Settle up to this snapshot if that is possible now.

        Return both sides' counts if no probe request was in flight at either end. `is_new_process`: the server has
        restarted since the last snapshot; what the old process counted after that snapshot is lost.
        """
        is_quiet = (
            not self._in_flight and (server.asked_ns or server.at_ns) - self._quiet_since_ns >= _COUNTED_WITHIN_NS
        )
        last = self._settled
        if last is None or is_new_process:
            if last is None:
                self._totals = self._sums = _zero(server)
            self._start_from(server, is_quiet=is_quiet)
            return None
        waits_since_ns = max(last.at_ns, self._other_probers_ended_ns)
        is_late = not self.is_loaded and server.at_ns - waits_since_ns >= _LATEST_NS
        if not is_quiet and not is_late:
            return None
        if self._has_other_probers:
            self._has_other_probers = False
            self._start_from(server, is_quiet=is_quiet)
            return None
        probe, was_quiet = self._probe, self._was_settled_quietly
        counted = _compare(last, server, probe) if is_quiet and was_quiet else None
        sums, uncounted = _add_growth(self._sums, last, server, probe)
        self._sums = _limit_fall(sums, self._totals, probe)
        self._totals = _never_falling(self._totals, self._sums)
        # A request in flight at the last settlement may have been counted before it: its sample is subtracted later.
        self._start_from(server, is_quiet=is_quiet, counted_before={} if was_quiet else uncounted)
        return counted

    def _start_from(
        self, server: ServerSnapshot, *, is_quiet: bool, counted_before: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        self._settled, self._was_settled_quietly = server, is_quiet
        self._probe = ProbeTraffic(counted_before=counted_before or {})


def _zero(server: ServerSnapshot) -> UserTotals:
    """Return totals of zero for what the server counts."""

    def zero(value: float | None) -> float | None:
        return None if value is None else 0.0

    return UserTotals(
        zero(requests_counted(server)),
        zero(server.prompt_tokens),
        zero(server.generation_tokens),
        {key: histogram_arithmetic.empty(server.histograms[key]) for key in KEYS if key in server.histograms},
    )


def _compare(last: ServerSnapshot, server: ServerSnapshot, probe: ProbeTraffic) -> CountedTraffic | None:
    """Return what the client and the server counted between two snapshots.

    Return None if the server does not count requests, if a probe request failed, or if a request was running at either
    end: the tokens of users' requests cannot be distinguished from those of probe requests.
    """
    requests = _difference(requests_counted(last), requests_counted(server))
    if requests is None or not probe.all_ended_well:
        return None
    if any(snapshot.running or snapshot.waiting for snapshot in (last, server)):
        return None
    before, after = (snapshot.histograms.get("ttft") for snapshot in (last, server))
    finished = sum(server.finished.values()) - sum(last.finished.values()) if server.finished else requests
    return CountedTraffic(
        requests=probe.ended,
        prompt_tokens=probe.prompt_tokens,
        output_tokens=probe.output_tokens,
        ttft_s=sum(probe.samples["ttft"]),
        server_requests=max(requests, finished),
        server_prompt_tokens=_difference(last.prompt_tokens, server.prompt_tokens),
        server_output_tokens=_difference(last.generation_tokens, server.generation_tokens),
        server_ttft_s=after.sum - before.sum if before is not None and after is not None else None,
    )


def _add_growth(
    sums: UserTotals, last: ServerSnapshot, server: ServerSnapshot, probe: ProbeTraffic
) -> tuple[UserTotals, Mapping[str, Sequence[float]]]:
    """Return the sums plus the user traffic between two snapshots, and the probe samples that the server has not
    counted there.
    """
    uncounted = {}
    requests = probe.begun if counts_first_tokens(server) else probe.ended
    histograms = dict(sums.histograms)
    for key in KEYS:
        before, after = (snapshot.histograms.get(key) for snapshot in (last, server))
        if before is None or after is None or not have_same_buckets(before, after):
            continue
        users, uncounted[key] = remove_samples(growth(before, after), probe.samples_of(key))
        users, _ = remove_samples(users, probe.counted_before.get(key, ()))
        known = histograms.get(key)
        if known is not None and have_same_buckets(known, users):
            users = histogram_arithmetic.add(known, users)
        histograms[key] = users
    totals = UserTotals(
        _plus(sums.requests, _difference(requests_counted(last), requests_counted(server)), requests),
        _plus(sums.prompt_tokens, _difference(last.prompt_tokens, server.prompt_tokens), probe.prompt_tokens),
        _plus(sums.output_tokens, _difference(last.generation_tokens, server.generation_tokens), probe.output_tokens),
        histograms,
    )
    return totals, uncounted


def _limit_fall(sums: UserTotals, totals: UserTotals, probe: ProbeTraffic) -> UserTotals:
    """Keep the sums at most one settlement's probe traffic below the totals.

    Probe requests that the server has not counted by the next settlement never will be; later user traffic must not
    disappear to compensate for them.
    """

    def limit(summed: float | None, total: float | None, probes: int) -> float | None:
        return summed if summed is None else max(summed, (total or 0.0) - probes)

    return replace(
        sums,
        requests=limit(sums.requests, totals.requests, max(probe.begun, probe.ended)),
        prompt_tokens=limit(sums.prompt_tokens, totals.prompt_tokens, probe.prompt_tokens),
        output_tokens=limit(sums.output_tokens, totals.output_tokens, probe.output_tokens),
    )


def _never_falling(totals: UserTotals, sums: UserTotals) -> UserTotals:
    """Return the sums, where they are above the totals. A request on the wrong side of a settlement is subtracted at
    the next one, and the totals wait until the sums have caught up.
    """

    def highest(total: float | None, summed: float | None) -> float | None:
        return summed if total is None else max(total, summed or 0.0)

    return replace(
        sums,
        requests=highest(totals.requests, sums.requests),
        prompt_tokens=highest(totals.prompt_tokens, sums.prompt_tokens),
        output_tokens=highest(totals.output_tokens, sums.output_tokens),
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None else None


def _plus(total: float | None, grown: float | None, probes: int) -> float | None:
    """Return the new total. A server may begin to count a value that it did not have at first."""
    return total if grown is None else (total or 0.0) + grown - probes
