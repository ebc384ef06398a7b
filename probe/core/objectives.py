"""Objectives applied to requests. Pure.

Availability judges every request that Kneewatch did not cancel. A latency objective judges answered requests only, so
that an outage spends only the availability budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe.core import latency
from probe.core.request import Outcome, RequestRecord

AVAILABILITY = "availability"
ALL = "all"  # every objective met: what goodput counts
# The latency objectives, in this order everywhere. What each judges is in docs/numbers.md.
LATENCIES = ("ttft", "tpot", "e2e", "itl")
BY_GAPS = ("tpot", "itl")  # undefined for one token event, unknown for a stream that was held back
# A client that did not run for less than this share of a request's time has not caused its failure.
_STOPPED_SHARE = 0.1
_UNREAD_S = 1.0  # a server gives up on a client that reads nothing for longer


@dataclass(frozen=True, slots=True)
class Objective:
    """At least `ratio` of requests have a latency of at most `within_s`."""

    ratio: float
    within_s: float


@dataclass(frozen=True, slots=True)
class Objectives:
    """The service level objectives of a target over `window_s`. None: no such objective."""

    name: str
    window_s: float = 30 * 86400.0
    availability: float | None = None
    ttft: Objective | None = None
    tpot: Objective | None = None
    e2e: Objective | None = None
    itl: Objective | None = None  # of a request's longest gap

    def latencies(self) -> Mapping[str, Objective]:
        """Return the latency objectives that are set, by name, in the order of LATENCIES."""
        each = (self.ttft, self.tpot, self.e2e, self.itl)
        return {name: one for name, one in zip(LATENCIES, each, strict=True) if one is not None}

    @property
    def judges_gaps(self) -> bool:
        """Return whether an objective needs the times between tokens, which a held-back stream does not show."""
        return self.tpot is not None or self.itl is not None


def met(record: RequestRecord, objectives: Objectives) -> Mapping[str, bool]:
    """Return, for each objective that judges this request, whether it was met; empty for an aborted request.

    A client-bound request meets its availability objective, and no other judges it: the client may have caused the
    rest. TPOT and ITL of a stream that was held back are not judged either. Undefined ones (one output token) meet
    their objectives.
    """
    if record.outcome is Outcome.ABORTED:
        return {}
    if record.outcome is Outcome.CLIENT_BOUND:
        return {AVAILABILITY: True}
    verdict = {AVAILABILITY: record.outcome is Outcome.OK}
    if record.outcome is Outcome.OK:
        for name, objective in objectives.latencies().items():
            value = latency.PROMISED[name](record)
            if name not in BY_GAPS or not latency.is_held_back(record):
                verdict[name] = value <= objective.within_s if value is not None else name in BY_GAPS
    return {**verdict, ALL: all(verdict.values())}


def may_be_client_delay(record: RequestRecord, objectives: Objectives, waking_s: float) -> bool:
    """Return whether the client's own delay may explain every missed latency objective of a request.

    The client's delay only makes latencies longer: a request that met its objectives really did, and one that missed
    them by more than the delay really missed them. `waking_s`: how late the operating system ran the process.
    """
    if record.outcome is not Outcome.OK:
        return False
    good, limits = met(record, objectives), objectives.latencies()
    missed = [name for name in limits if not good.get(name, True)]
    return bool(missed) and all(
        (latency.PROMISED[name](record) or 0.0) - _client_error_s(name, record, waking_s) <= limits[name].within_s
        for name in missed
    )


def _client_error_s(name: str, record: RequestRecord, waking_s: float) -> float:
    """Return by how much the client may have lengthened a latency of a request."""
    late_ns = record.events.late_ns
    last_s = (late_ns[-1] * 1e-9 if len(late_ns) else 0.0) + waking_s
    if name == "ttft":
        return (latency.ttft_error_s(record) or 0.0) + waking_s
    if name == "e2e":
        return max(latency.schedule_lag_s(record), 0.0) + last_s
    if name == "tpot":
        return last_s / max(record.output_tokens - 1, 1)
    return latency.stall_error_s(record) + waking_s


def may_be_client_stop(record: RequestRecord, waking_s: float) -> bool:
    """Return whether a request may have failed because the client did not run, such as while it was stopped.

    When the client runs again, time limits are over before it reads what has arrived, and a server may have closed a
    connection that was not read. `waking_s`: how late the operating system ran the process just before the failure.
    """
    least_s = {Outcome.TIMEOUT: 0.0, Outcome.UNREACHABLE: _UNREAD_S, Outcome.BROKEN_STREAM: _UNREAD_S}
    if record.outcome not in least_s:
        return False
    took_s = (record.done_ns - record.scheduled_ns) * 1e-9
    return waking_s > max(least_s[record.outcome], _STOPPED_SHARE * took_s)


def good_ratio(records: Sequence[RequestRecord], objectives: Objectives) -> dict[str, float]:
    """Return, per objective, the ratio of judged requests that met it; no entry if none was judged."""
    return shares([met(record, objectives) for record in records], objectives)


def shares(verdicts: Sequence[Mapping[str, bool]], objectives: Objectives) -> dict[str, float]:
    """Return the ratios of `good_ratio` for verdicts of `met`."""
    ratios = {}
    for name in (AVAILABILITY, *objectives.latencies(), ALL):
        judged = [verdict[name] for verdict in verdicts if name in verdict]
        if judged:
            ratios[name] = sum(judged) / len(judged)
    return ratios


def broken(ratios: Mapping[str, float], objectives: Objectives) -> tuple[str, ...]:
    """Return the objectives with too low a ratio, availability first."""
    return tuple(name for name, ratio in promised(objectives).items() if ratios.get(name, 1.0) < ratio)


def promised(objectives: Objectives) -> dict[str, float]:
    """Return the required ratio of each objective that is set, availability first."""
    first = {AVAILABILITY: objectives.availability} if objectives.availability is not None else {}
    return {**first, **{name: objective.ratio for name, objective in objectives.latencies().items()}}
