"""The arithmetic of user totals: growth of a server's counters less probe traffic. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probe.core.snapshot import ServerSnapshot, UserTotals
from probe.observe import histogram_arithmetic
from probe.observe.histogram_arithmetic import growth, have_same_buckets, remove_samples
from probe.observe.probe_traffic import KEYS, ProbeTraffic, Tokens
from probe.observe.user_load import counts_first_tokens, requests_counted


def zero(server: ServerSnapshot) -> UserTotals:
    """Return totals of zero for what the server counts."""

    def zeroed(value: float | None) -> float | None:
        return None if value is None else 0.0

    return UserTotals(
        zeroed(requests_counted(server)),
        zeroed(server.prompt_tokens),
        zeroed(server.generation_tokens),
        {key: histogram_arithmetic.empty(server.histograms[key]) for key in KEYS if key in server.histograms},
        dict.fromkeys(_outcomes(server, server), 0.0),
    )


def add_growth(
    sums: UserTotals, last: ServerSnapshot, server: ServerSnapshot, probe: ProbeTraffic, *, was_quiet: bool
) -> UserTotals:
    """Return the sums plus the user traffic between two snapshots.

    `was_quiet`: no probe request was in flight at the first one. Otherwise a sample that the server has not counted
    between the two is among the sums.
    """
    histograms = dict(sums.histograms)
    for key in KEYS:
        before, after = (snapshot.histograms.get(key) for snapshot in (last, server))
        if before is None or after is None or not have_same_buckets(before, after):
            continue
        users, uncounted = remove_samples(growth(before, after), probe.samples_of(key))
        known = histograms.get(key)
        if known is not None and have_same_buckets(known, users):
            if not was_quiet:
                known, _ = remove_samples(known, uncounted)
            users = histogram_arithmetic.add(known, users)
        histograms[key] = users
    grown = _outcomes(last, server)
    return UserTotals(
        _plus(
            sums.requests,
            difference(requests_counted(last), requests_counted(server)),
            probe.begun if counts_first_tokens(server) else probe.ended,
        ),
        _plus(sums.prompt_tokens, difference(last.prompt_tokens, server.prompt_tokens), probe.prompt_tokens),
        _plus(sums.output_tokens, difference(last.generation_tokens, server.generation_tokens), probe.output_tokens),
        histograms,
        {name: sums.outcomes.get(name, 0.0) + count - probe.outcomes[name] for name, count in grown.items()},
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

    histograms = {}
    for key, summed in sums.histograms.items():
        total = totals.histograms.get(key)
        if total is None or not have_same_buckets(total, summed):
            total = histogram_arithmetic.empty(summed)
        histograms[key] = histogram_arithmetic.raised(total, summed, uncertain)
    return UserTotals(
        certain(totals.requests, sums.requests, uncertain),
        certain(totals.prompt_tokens, sums.prompt_tokens, sum(each.prompt for each in in_flight)),
        certain(totals.output_tokens, sums.output_tokens, sum(each.output for each in in_flight)),
        histograms,
        {name: max(totals.outcomes.get(name, 0.0), summed - uncertain) for name, summed in sums.outcomes.items()},
    )


def difference(before: float | None, after: float | None) -> float | None:
    """Return the growth of a counter, or None if it is not counted."""
    return after - before if before is not None and after is not None else None


def _plus(total: float | None, grown: float | None, probes: int) -> float | None:
    """Return the new total. A server may begin to count a value that it did not have at first."""
    return total if grown is None else (total or 0.0) + grown - probes
