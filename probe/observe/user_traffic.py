"""User traffic: a server's counters less the probe traffic. Pure.

In: snapshots of the server, and the probe requests as they begin and end. Out: totals that only grow, and histograms in
the server's own buckets, so that PromQL can take rates and shares of them as of any counter.

Server counters do not say who sent a request. What a probe request adds to them is known once it has ended: it is
subtracted from their growth, and its latency samples from the growth of each histogram: from the lowest bucket that the
server may have counted them in, so that users' latency is never better than is certain. How much of a probe request the
server has counted while it is in flight is unknown, but not more than one request, one sample and the tokens that it
may have. The totals grow by what is certainly users': they lag by one request for each probe request in flight, and
without users they are exactly zero.

A snapshot that was taken while no probe request was in flight settles what came before it: the server has counted the
probe traffic in full, and growth is compared with the next such snapshot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probe.core.request import RequestRecord
from probe.core.snapshot import CountedTraffic, ServerSnapshot, UserTotals
from probe.observe import histogram_arithmetic
from probe.observe.distance import UNKNOWN, Distance
from probe.observe.histogram_arithmetic import growth, have_same_buckets, remove_samples
from probe.observe.probe_traffic import KEYS, NO_TOKENS, ProbeTraffic, Tokens
from probe.observe.user_load import counts_first_tokens, requests_counted


def zero(server: ServerSnapshot) -> UserTotals:
    """Return totals of zero for what the server counts."""

    def zeroed(value: float | None) -> float | None:
        return None if value is None else 0.0

    known = {key: server.histograms[key] for key in KEYS if key in server.histograms}
    return UserTotals(
        zeroed(requests_counted(server)),
        zeroed(server.prompt_tokens),
        zeroed(server.generation_tokens),
        {key: histogram_arithmetic.empty(histogram) for key, histogram in known.items()},
        dict.fromkeys(_outcomes(server, server), 0.0),
        {key: (0.0,) * len(histogram.buckets) for key, histogram in known.items()},
    )


def add_growth(
    sums: UserTotals, last: ServerSnapshot, server: ServerSnapshot, probe: ProbeTraffic, *, was_quiet: bool
) -> UserTotals:
    """Return the sums plus the user traffic between two snapshots.

    `was_quiet`: no probe request was in flight at the first one. Otherwise a sample that the server has not counted
    between the two is among the sums.
    """
    histograms, doubts = dict(sums.histograms), dict(sums.doubts)
    for key in KEYS:
        before, after = (snapshot.histograms.get(key) for snapshot in (last, server))
        if before is None or after is None or not have_same_buckets(before, after):
            continue
        grown = growth(before, after)
        known = histograms.get(key)
        if known is None or not have_same_buckets(known, grown):
            known, doubts[key] = histogram_arithmetic.empty(grown), (0.0,) * len(grown.buckets)
        if not was_quiet:
            known, grown = histogram_arithmetic.empty(known), histogram_arithmetic.add(known, grown)
        left = remove_samples(grown, probe.samples_of(key))
        histograms[key] = histogram_arithmetic.add(known, left.histogram)
        doubts[key] = tuple(map(sum, zip(doubts[key], left.doubt, strict=True)))
    ended = _outcomes(last, server)
    return UserTotals(
        _plus(
            sums.requests,
            difference(requests_counted(last), requests_counted(server)),
            probe.begun if counts_first_tokens(server) else probe.ended,
        ),
        _plus(sums.prompt_tokens, difference(last.prompt_tokens, server.prompt_tokens), probe.prompt_tokens),
        _plus(sums.output_tokens, difference(last.generation_tokens, server.generation_tokens), probe.output_tokens),
        histograms,
        {name: sums.outcomes.get(name, 0.0) + count - probe.outcomes[name] for name, count in ended.items()},
        doubts,
    )


def _outcomes(last: ServerSnapshot, server: ServerSnapshot) -> Mapping[str, float]:
    """Return the requests that ended between two snapshots, by outcome.

    A counter that was not there has appeared with its first request. A request that the engine ends with an error is
    answered with status 5xx, unless its stream had begun: of the two counts of failed requests the larger one holds.
    """
    grown = {name: count - last.outcomes.get(name, 0.0) for name, count in server.outcomes.items()}
    if server.http_errors is not None:
        grown["failed"] = max(grown.get("failed", 0.0), server.http_errors - (last.http_errors or 0.0))
    return grown


def limit_fall(sums: UserTotals, totals: UserTotals, probe: ProbeTraffic) -> UserTotals:
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
        outcomes={
            name: max(summed, totals.outcomes.get(name, 0.0) - probe.outcomes[name])
            for name, summed in sums.outcomes.items()
        },
    )


def raised(totals: UserTotals, sums: UserTotals, in_flight: Sequence[Tokens]) -> UserTotals:
    """Return the totals, raised to the sums less what may be of the probe requests in flight. Totals never fall."""
    uncertain = len(in_flight)

    def certain(total: float | None, summed: float | None, most: int) -> float | None:
        return total if summed is None else max(total or 0.0, summed - most)

    histograms, doubts = {}, {}
    for key, summed in sums.histograms.items():
        total, doubt = totals.histograms.get(key), totals.doubts.get(key)
        if total is None or doubt is None or not have_same_buckets(total, summed):
            total, doubt = histogram_arithmetic.empty(summed), (0.0,) * len(summed.buckets)
        histograms[key] = histogram_arithmetic.raised(total, summed, uncertain)
        doubts[key] = tuple(map(max, doubt, sums.doubts[key]))
    return UserTotals(
        certain(totals.requests, sums.requests, uncertain),
        certain(totals.prompt_tokens, sums.prompt_tokens, sum(each.prompt for each in in_flight)),
        certain(totals.output_tokens, sums.output_tokens, sum(each.output for each in in_flight)),
        histograms,
        {name: max(totals.outcomes.get(name, 0.0), summed - uncertain) for name, summed in sums.outcomes.items()},
        doubts,
    )


def difference(before: float | None, after: float | None) -> float | None:
    """Return the growth of a counter, or None if it is not counted."""
    return after - before if before is not None and after is not None else None


def _plus(total: float | None, grown: float | None, probes: int) -> float | None:
    """Return the new total. A server may begin to count a value that it did not have at first."""
    return total if grown is None else (total or 0.0) + grown - probes


# A server counts a request about when its last token leaves, a gateway some time later.
_COUNTED_WITHIN_NS = 10**9
# If a canary is in flight at every snapshot, settle after this time anyway: each may be on the wrong side.
_LATEST_NS = 60 * 10**9


class UserTraffic:
    """The user traffic of one metrics page, shared by all targets with that page."""

    def __init__(self) -> None:
        self._settled: ServerSnapshot | None = None  # the snapshot of the last settlement
        self._was_settled_quietly = False  # no probe request was in flight at the last settlement
        self._in_flight: list[Tokens] = []  # probe requests that belong to no load
        self._loads = 0
        self._quiet_since_ns = -_COUNTED_WITHIN_NS
        self._was_loaded = False  # a load, of a run or of another prober, has begun since the last settlement
        self._has_other_probers = False  # another prober has loaded the server since the last settlement
        self._other_probers_ended_ns = 0
        self._probe = ProbeTraffic()
        self._distances: dict[str, Distance] = {}  # by target
        self._sums = UserTotals()  # the sums of all settlements; they may fall after a settlement that came too early
        self._totals = UserTotals()

    @property
    def totals(self) -> UserTotals:
        """Return the known user traffic since the first snapshot."""
        return self._totals

    @property
    def is_known(self) -> bool:
        """Return whether the totals are of the last snapshot: not from when a load begins until it is settled."""
        return self._settled is not None and not self._was_loaded

    @property
    def is_loaded(self) -> bool:
        """Return whether a capacity run or another prober loads the server. User traffic is unknown until it ends."""
        return self._loads > 0

    def begin(self, *, is_load: bool = False, most: Tokens = NO_TOKENS) -> None:
        """Note that a probe request of at most these tokens begins, or the load of a capacity run."""
        if is_load:
            self._loads += 1
            self._was_loaded = True
        else:
            self._in_flight.append(most)

    def add_record(self, record: RequestRecord) -> None:
        """Add a probe request that has ended."""
        distance = self._distances.get(record.target)
        self._probe.add(record, distance.range_s(record.done_ns) if distance is not None else UNKNOWN)

    def end(self, now_ns: int, *, is_load: bool = False, most: Tokens = NO_TOKENS) -> None:
        """Note the end of what `begin` began."""
        if is_load:
            self._loads -= 1
        else:
            self._in_flight.remove(most)
        self._quiet_since_ns = now_ns

    def other_prober_began(self) -> None:
        """Note load of another prober. Its requests are not known, so nothing counted until its end is user traffic."""
        self.begin(is_load=True)
        self._has_other_probers = True

    def other_prober_ended(self, now_ns: int) -> None:
        """Note the end of another prober's load."""
        self.end(now_ns, is_load=True)
        self._other_probers_ended_ns = now_ns

    def add(self, server: ServerSnapshot, *, is_new_process: bool = False) -> CountedTraffic | None:
        """Raise the totals to what is known at this snapshot, and settle up to it if that is possible.

        Return both sides' counts if no probe request was in flight at either end. `is_new_process`: the server has
        restarted since the last snapshot; what the old process counted after that snapshot is lost.
        """
        is_calm = (server.asked_ns or server.at_ns) - self._quiet_since_ns >= _COUNTED_WITHIN_NS
        is_quiet = not self._in_flight and not self._loads and is_calm
        last = self._settled
        if last is None or is_new_process:
            if last is None:
                self._totals = zero(server)
            self._start_from(server, self._totals, is_quiet=is_quiet)
            return None
        waits_since_ns = max(last.at_ns, self._other_probers_ended_ns)
        is_late = not self.is_loaded and server.at_ns - waits_since_ns >= _LATEST_NS
        is_late &= is_calm or not self._was_loaded  # the last requests of a load are many
        if self._has_other_probers:
            if is_quiet or is_late:
                self._start_from(server, self._totals, is_quiet=is_quiet)
            return None
        if self.is_loaded:
            return None
        probe, was_quiet = self._probe, self._was_settled_quietly
        sums = add_growth(self._sums, last, server, probe, was_quiet=was_quiet)
        if not is_quiet and not is_late:
            self._totals = raised(self._totals, sums, self._in_flight)
            return None
        sums = limit_fall(sums, self._totals, probe)
        self._totals = raised(self._totals, sums, self._in_flight)
        self._start_from(server, sums, is_quiet=is_quiet)
        if not (is_quiet and was_quiet):
            return None
        self._learn_distance(last, server, probe)
        return _compare(last, server, probe)

    def _learn_distance(self, last: ServerSnapshot, server: ServerSnapshot, probe: ProbeTraffic) -> None:
        """Compare the first tokens of a target's requests with the growth of the histogram that counts them."""
        before, after = (snapshot.histograms.get("ttft") for snapshot in (last, server))
        if before is None or after is None or not have_same_buckets(before, after):
            return
        if probe.have_all_ended and len(probe.firsts) == 1:
            ((target, ttfts_s),) = probe.firsts.items()
            self._distances.setdefault(target, Distance()).add(server.at_ns, growth(before, after), ttfts_s)

    def _start_from(self, server: ServerSnapshot, sums: UserTotals, *, is_quiet: bool) -> None:
        self._settled, self._sums, self._was_settled_quietly = server, sums, is_quiet
        self._was_loaded = self.is_loaded
        self._has_other_probers &= self.is_loaded
        self._probe = ProbeTraffic()


def _compare(last: ServerSnapshot, server: ServerSnapshot, probe: ProbeTraffic) -> CountedTraffic | None:
    """Return what the client and the server counted between two snapshots.

    Return None if the server does not count requests, if a probe request failed, or if a request was running at either
    end: the tokens of users and of probe requests cannot be told apart.
    """
    requests = difference(requests_counted(last), requests_counted(server))
    if requests is None or not probe.have_all_ended:
        return None
    if any(snapshot.running or snapshot.waiting for snapshot in (last, server)):
        return None
    before, after = (snapshot.histograms.get("ttft") for snapshot in (last, server))
    has_same = before is not None and after is not None and after.count - before.count == probe.ended
    finished = sum(server.finished.values()) - sum(last.finished.values()) if server.finished else requests
    return CountedTraffic(
        requests=probe.ended,
        prompt_tokens=probe.prompt_tokens,
        output_tokens=probe.output_tokens,
        ttft_s=probe.ttft_s,
        server_requests=max(requests, finished),
        server_prompt_tokens=difference(last.prompt_tokens, server.prompt_tokens),
        server_output_tokens=difference(last.generation_tokens, server.generation_tokens),
        server_ttft_s=after.sum - before.sum if has_same and before is not None and after is not None else None,
    )
