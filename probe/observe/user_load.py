"""The load of users between two snapshots of a server: its counters less the probe requests. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from probe.core.request import Outcome, RequestRecord
from probe.core.snapshot import ServerSnapshot, UserLoad
from probe.observe.probe_traffic import Tokens
from probe.observe.restarts import restarted
from probe.scrape.engines import ENGINES

_SHORTEST_S = 1.0
_STREAMED_ONLY = frozenset(engine.name for engine in ENGINES if engine.facts.streamed_only)


def users_beside(
    records: Iterable[RequestRecord], snapshots: Sequence[ServerSnapshot], uncertain: Sequence[Tokens] = ()
) -> UserLoad:
    """Return the load of everybody but the senders of `records`, from the first snapshot to the last.

    Unknown if one of the requests was cancelled (only the server knows how many of its tokens were counted), if the
    server restarted in between, and where it counts late, so that it counts earlier requests in between. `uncertain`:
    the tokens, at most, of probe requests that the server may have counted; the rest is certainly users'.
    """
    probes = list(records)
    usable = [snapshot for snapshot in snapshots if "ttft" in snapshot.histograms]
    if not usable or any(record.outcome is Outcome.ABORTED for record in probes):
        return UserLoad()
    first, last = usable[0], usable[-1]
    if last.delay_s:
        return UserLoad()
    seconds = (last.at_ns - first.at_ns) * 1e-9
    if seconds < _SHORTEST_S or any(restarted(before, after) is not None for before, after in pairwise(usable)):
        return UserLoad()
    events = [record.events for record in probes]
    begun = [one for one in probes if one.events and first.at_ns < one.events.at_ns[0] <= last.at_ns]
    tokens = sum(sum(e.tokens[bisect_right(e.at_ns, first.at_ns) : bisect_right(e.at_ns, last.at_ns)]) for e in events)
    tokens += sum(most.output for most in uncertain) + sum(map(_unseen_tokens, begun))
    return UserLoad(
        _rate(requests_counted(first), requests_counted(last), len(begun) + len(uncertain), seconds),
        _rate(first.generation_tokens, last.generation_tokens, tokens, seconds),
    )


def _unseen_tokens(record: RequestRecord) -> int:
    """Return how many tokens more than were seen the server may have counted for an answer that did not end."""
    has_ended = record.outcome is Outcome.OK or record.finish_reason is not None
    return 0 if has_ended else max(record.spec.output_tokens - sum(record.events.tokens), 0)


def mean(parts: Sequence[tuple[UserLoad, float]]) -> UserLoad:
    """Return the mean load of several periods, each weighted with its seconds. Unknown periods do not count."""

    def over_time(rates: Sequence[tuple[float | None, float]]) -> float | None:
        known = [(rate, seconds) for rate, seconds in rates if rate is not None]
        whole = sum(seconds for _, seconds in known)
        return sum(rate * seconds for rate, seconds in known) / whole if whole else None

    return UserLoad(
        over_time([(users.requests_per_second, seconds) for users, seconds in parts]),
        over_time([(users.output_tokens_per_second, seconds) for users, seconds in parts]),
    )


def counts_first_tokens(server: ServerSnapshot) -> bool:
    """Return whether `requests_counted` counts a request at its first token, and not at its end."""
    return "ttft" in server.histograms and not (server.engine in _STREAMED_ONLY and server.finished)


def requests_counted(server: ServerSnapshot) -> float | None:
    """Return the number of requests so far, by first tokens where the server counts them.

    Finished requests include errors and cancelled ones, and long answers are late in them.
    """
    if counts_first_tokens(server):
        return server.histograms["ttft"].count
    return sum(server.finished.values()) if server.finished else None


def _rate(before: float | None, after: float | None, probes: int, seconds: float) -> float | None:
    return max(after - before - probes, 0.0) / seconds if before is not None and after is not None else None
