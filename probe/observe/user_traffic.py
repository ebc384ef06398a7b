"""Users' own traffic: what a server has counted, less what we sent it. Pure.

In: readings of the server, and our requests as they begin and end. Out: totals that only grow, and histograms in the
server's own buckets, so that rates and shares of them can be taken as of any counter.

A server says how many, not whose. So accounts are made up when none of our requests is under way: what we have sent
since the last time has been counted by then, in full. Of each histogram's growth our own samples are taken off, each
from the bucket that our clock says, or else from the nearest below that has grown (we see a request later than the
server does), or above. What is left is the users'; where nobody else was there, exactly nothing is left.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from probe.core.request import Outcome, RequestRecord
from probe.core.request_cost import tokens_spent
from probe.core.snapshot import CountedTraffic, Histogram, ServerSnapshot, UserTotals
from probe.observe.restarts import restarted
from probe.observe.user_load import counts_first_tokens, requests_counted

# A server counts a request about when its last token leaves, a gateway some time later.
_SETTLES_NS = 10**9
# With a canary under way at every reading, accounts are made up after so long anyway: one request may be on the wrong
# side of them.
_PATIENCE_NS = 60 * 10**9
_REMEMBERED = 20
_ENDED = (Outcome.OK, Outcome.CLIENT_BOUND, Outcome.WRONG_ANSWER)
# What is promised. ITL and E2E would be twenty series more each, for what these and the lengths say too.
_KEYS = ("ttft", "tpot")


@dataclass(slots=True)
class _Ours:
    """What we sent since accounts were made up: counts, and latencies (s) as the server has them, from the send and not
    from when it was due.
    """

    begun: int = 0  # those that had a token
    ended: int = 0  # those that came to their end
    cut: int = 0  # those of `begun` that we cancelled: when their first token came was not kept
    all_well: bool = True
    prompt_tokens: int = 0
    output_tokens: int = 0
    samples: Mapping[str, "array[float]"] = field(default_factory=lambda: {key: array("d") for key in _KEYS})
    # Samples of the account before that the server had counted earlier still, as nobody's but a user's.
    owed: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def add(self, record: RequestRecord) -> None:
        ended = record.outcome in _ENDED
        self.ended += ended
        self.all_well &= ended
        if record.outcome is Outcome.ABORTED and record.reads:
            self.begun += 1
            self.cut += 1
            self.prompt_tokens += record.spec.prompt_tokens
            self.output_tokens += min(record.reads, record.spec.output_tokens)  # about a token in each
        if not record.events:
            return
        self.begun += 1
        prompt, output = tokens_spent(record)
        self.prompt_tokens += prompt
        self.output_tokens += output
        ttft = (record.events.at_ns[0] - record.sent_ns) * 1e-9
        self.samples["ttft"].append(ttft)
        if ended and output > 1:
            decoding = (record.events.at_ns[-1] - record.events.at_ns[0]) * 1e-9
            self.samples["tpot"].append(decoding / (output - 1))

    def of(self, key: str) -> list[float]:
        """Their samples; of those that were cut the usual one is taken for their TTFT."""
        its = list(self.samples[key])
        return its + [median(its)] * self.cut if key == "ttft" and its else its


class UserTraffic:
    """The accounts of one metrics page, whichever targets stand for it."""

    def __init__(self) -> None:
        self._last: ServerSnapshot | None = None  # accounts are made up to here
        self._last_was_quiet = False
        self._newest: ServerSnapshot | None = None
        self._under_way = 0
        self._loading = 0
        self._quiet_since_ns = -_SETTLES_NS
        self._spoilt = False  # since accounts were made up, another prober has loaded the server
        self._others_ended_ns = 0
        self._ours = _Ours()
        self._compared: deque[tuple[int, CountedTraffic]] = deque(maxlen=_REMEMBERED)
        self._sums = UserTotals()  # as they follow from the accounts: they may fall, when an account was too early
        self._totals = UserTotals()

    @property
    def totals(self) -> UserTotals:
        """Since the first reading."""
        return self._totals

    @property
    def made_up_ns(self) -> int:
        """Up to when accounts are made up."""
        return self._last.at_ns if self._last is not None else 0

    def compared_since(self, at_ns: int) -> list[tuple[int, CountedTraffic]]:
        """Both sides of the accounts of ours that were made up later, and when: by whichever target's reading."""
        return [(then_ns, counted) for then_ns, counted in self._compared if then_ns > at_ns]

    @property
    def loading(self) -> bool:
        """Whether there is load of ours, or another prober's: then users are not told from it yet."""
        return self._loading > 0

    def begun(self, *, load: bool = False) -> None:
        """Requests of ours are under way: one, or with `load` many. While there is load, accounts wait for its end."""
        self._under_way += 1
        self._loading += load

    def request(self, record: RequestRecord) -> None:
        """One of ours ended."""
        self._ours.add(record)

    def ended(self, now_ns: int, *, load: bool = False) -> None:
        """What had `begun` is over."""
        self._under_way -= 1
        self._loading -= load
        self._quiet_since_ns = now_ns

    def others_began(self) -> None:
        """Another prober loads the server. What it sends nobody tells us: of all that is counted until that is over,
        nothing is the users'.
        """
        self.begun(load=True)
        self._spoilt = True

    def others_ended(self, now_ns: int) -> None:
        """That is over."""
        self.ended(now_ns, load=True)
        self._others_ended_ns = now_ns

    def reading(self, server: ServerSnapshot) -> CountedTraffic | None:
        """The server was read. Gives both sides of an account at whose two ends nothing of ours was under way."""
        if self._newest is not None and server.at_ns < self._newest.at_ns:
            return None  # two targets read one page, and a large one is parsed for longer
        before, self._newest = self._newest, server
        quiet = not self._under_way and (server.asked_ns or server.at_ns) - self._quiet_since_ns >= _SETTLES_NS
        if before is None or self._last is None or restarted(before, server) is not None:
            # What it had counted after the reading before is lost with it.
            self._last, self._last_was_quiet, self._ours = server, quiet, _Ours()
            if before is None:
                self._totals = self._sums = _nothing(server)
            return None
        begins_ns = max(self._last.at_ns, self._others_ended_ns)
        late = not self._loading and server.at_ns - begins_ns >= _PATIENCE_NS
        if not quiet and not late:
            return None
        if self._spoilt:
            self._last, self._last_was_quiet, self._ours, self._spoilt = server, quiet, _Ours(), False
            return None
        counted = _counted(self._last, server, self._ours) if quiet and self._last_was_quiet else None
        if counted is not None and counted.requests:
            self._compared.append((server.at_ns, counted))
        added, uncounted = _added(self._sums, self._last, server, self._ours)
        self._sums = _floored(added, self._totals, self._ours)
        self._totals = _never_falling(self._totals, self._sums)
        # One that was under way when the last account was made up is taken off those that come.
        owed = {} if self._last_was_quiet else uncounted
        self._last, self._last_was_quiet, self._ours = server, quiet, _Ours(owed=owed)
        return counted


def _nothing(server: ServerSnapshot) -> UserTotals:
    def zero(value: float | None) -> float | None:
        return None if value is None else 0.0

    return UserTotals(
        zero(requests_counted(server)),
        zero(server.prompt_tokens),
        zero(server.generation_tokens),
        {key: _zeros(server.histograms[key]) for key in _KEYS if key in server.histograms},
    )


def _zeros(histogram: Histogram) -> Histogram:
    return Histogram(tuple((le, 0.0) for le, _ in histogram.buckets), 0.0)


def _counted(last: ServerSnapshot, server: ServerSnapshot, ours: _Ours) -> CountedTraffic | None:
    """Both sides; None where the server does not count requests, where some of ours did not end well, or where anybody
    else's was being worked on: whose tokens those are that it made meanwhile, nobody tells.
    """
    requests = _grown(requests_counted(last), requests_counted(server))
    if requests is None or not ours.all_well:
        return None
    if any(reading.running or reading.waiting for reading in (last, server)):
        return None
    before, after = (reading.histograms.get("ttft") for reading in (last, server))
    finished = sum(server.finished.values()) - sum(last.finished.values()) if server.finished else requests
    return CountedTraffic(
        requests=ours.ended,
        prompt_tokens=ours.prompt_tokens,
        output_tokens=ours.output_tokens,
        ttft_s=sum(ours.samples["ttft"]),
        server_requests=max(requests, finished),
        server_prompt_tokens=_grown(last.prompt_tokens, server.prompt_tokens),
        server_output_tokens=_grown(last.generation_tokens, server.generation_tokens),
        server_ttft_s=after.sum - before.sum if before is not None and after is not None else None,
    )


def _added(
    sums: UserTotals, last: ServerSnapshot, server: ServerSnapshot, ours: _Ours
) -> tuple[UserTotals, Mapping[str, Sequence[float]]]:
    """The sums with one account more, and those of our samples that the server did not count in it."""
    uncounted = {}
    requests = ours.begun if counts_first_tokens(server) else ours.ended
    histograms = dict(sums.histograms)
    for key in _KEYS:
        before, after = (reading.histograms.get(key) for reading in (last, server))
        if before is None or after is None or not _alike(before, after):
            continue
        grown, uncounted[key] = without(_difference(before, after), ours.of(key))
        grown, _ = without(grown, ours.owed.get(key, ()))
        known = histograms.get(key)
        histograms[key] = _sum(known, grown) if known is not None and _alike(known, grown) else grown
    totals = UserTotals(
        _plus(sums.requests, _grown(requests_counted(last), requests_counted(server)), requests),
        _plus(sums.prompt_tokens, _grown(last.prompt_tokens, server.prompt_tokens), ours.prompt_tokens),
        _plus(sums.output_tokens, _grown(last.generation_tokens, server.generation_tokens), ours.output_tokens),
        histograms,
    )
    return totals, uncounted


def _floored(sums: UserTotals, totals: UserTotals, ours: _Ours) -> UserTotals:
    """They are below what is shown by one account's requests of ours at most: what a server has not counted by the next
    one it never will, and users are not to make up for it.
    """

    def floor(summed: float | None, shown: float | None, own: int) -> float | None:
        return summed if summed is None else max(summed, (shown or 0.0) - own)

    return replace(
        sums,
        requests=floor(sums.requests, totals.requests, max(ours.begun, ours.ended)),
        prompt_tokens=floor(sums.prompt_tokens, totals.prompt_tokens, ours.prompt_tokens),
        output_tokens=floor(sums.output_tokens, totals.output_tokens, ours.output_tokens),
    )


def _never_falling(totals: UserTotals, sums: UserTotals) -> UserTotals:
    """A request that was on the wrong side of one account comes off with the next one."""

    def more(shown: float | None, summed: float | None) -> float | None:
        return summed if shown is None else max(shown, summed or 0.0)

    return replace(
        sums,
        requests=more(totals.requests, sums.requests),
        prompt_tokens=more(totals.prompt_tokens, sums.prompt_tokens),
        output_tokens=more(totals.output_tokens, sums.output_tokens),
    )


def without(grown: Histogram, ours: Iterable[float]) -> tuple[Histogram, Sequence[float]]:
    """A histogram less these samples: each from the bucket it belongs to by our clock, or from the nearest one below
    that holds something, or above. Samples that find nothing were not counted; they are given beside it. The sum stays
    within what the buckets that are left allow, and is zero where they are empty.
    """
    bounds = [le for le, _ in grown.buckets]
    counts = [after - before for before, after in pairwise([0.0, *(count for _, count in grown.buckets)])]
    taken_s = 0.0
    uncounted = []
    for value in sorted(ours, reverse=True):
        own = min(bisect_left(bounds, value), len(bounds) - 1)
        i = next((i for i in (*range(own, -1, -1), *range(own + 1, len(bounds))) if counts[i] >= 1), None)
        if i is not None:
            counts[i] -= 1
            taken_s += min(max(value, bounds[i - 1] if i else 0.0), bounds[i])
        else:
            uncounted.append(value)
    least = sum(count * (bounds[i - 1] if i else 0.0) for i, count in enumerate(counts))
    most = sum(count * bounds[i] for i, count in enumerate(counts) if count)
    cumulative, total = [], 0.0
    for count in counts:
        total += count
        cumulative.append(total)
    left = Histogram(tuple(zip(bounds, cumulative, strict=True)), min(max(grown.sum - taken_s, least), most))
    return left, uncounted


def _grown(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None else None


def _plus(total: float | None, grown: float | None, ours: int) -> float | None:
    """A server may come to count what it did not count at first."""
    return total if grown is None else (total or 0.0) + grown - ours


def _alike(one: Histogram, other: Histogram) -> bool:
    return [le for le, _ in one.buckets] == [le for le, _ in other.buckets]


def _difference(before: Histogram, after: Histogram) -> Histogram:
    buckets = tuple((le, new - old) for (le, old), (_, new) in zip(before.buckets, after.buckets, strict=True))
    return Histogram(buckets, after.sum - before.sum)


def _sum(one: Histogram, other: Histogram) -> Histogram:
    buckets = tuple((le, a + b) for (le, a), (_, b) in zip(one.buckets, other.buckets, strict=True))
    return Histogram(buckets, one.sum + other.sum)
