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

    def latencies(self) -> Mapping[str, Objective]:
        """Return the latency objectives that are set, by name, in the order ttft, tpot."""
        return {k: o for k, o in (("ttft", self.ttft), ("tpot", self.tpot)) if o is not None}


def met(record: RequestRecord, objectives: Objectives) -> Mapping[str, bool]:
    """Return, for each objective that judges this request, whether it was met; empty for an aborted request.

    A client-bound request meets its availability objective, and no other judges it: the client may have caused the
    rest. The TPOT of a stream that was held back is not judged either. An undefined TPOT (one output token) meets its
    objective.
    """
    if record.outcome is Outcome.ABORTED:
        return {}
    if record.outcome is Outcome.CLIENT_BOUND:
        return {AVAILABILITY: True}
    verdict = {AVAILABILITY: record.outcome is Outcome.OK}
    if record.outcome is Outcome.OK:
        for name, objective in objectives.latencies().items():
            value = latency.PROMISED[name](record)
            if name != "tpot" or not latency.is_held_back(record):
                verdict[name] = value <= objective.within_s if value is not None else name == "tpot"
    return {**verdict, ALL: all(verdict.values())}


def may_be_client_delay(record: RequestRecord, objectives: Objectives, waking_s: float) -> bool:
    """Return whether the client's own delay may explain every missed latency objective of a request.

    The client's delay only makes latencies longer: a request that met its objectives really did, and one that missed
    them by more than the delay really missed them. `waking_s`: how late the operating system ran the process.
    """
    if record.outcome is not Outcome.OK:
        return False
    good, tokens = met(record, objectives), record.output_tokens
    late_ns = record.events.late_ns
    errors = {
        "ttft": (latency.ttft_error_s(record) or 0.0) + waking_s,
        "tpot": ((late_ns[-1] * 1e-9 if len(late_ns) else 0.0) + waking_s) / max(tokens - 1, 1),
    }
    values = {"ttft": latency.ttft_s(record) or 0.0, "tpot": latency.tpot_s(record) or 0.0}
    missed = [name for name in objectives.latencies() if not good.get(name, True)]
    limits = objectives.latencies()
    return bool(missed) and all(values[name] - errors[name] <= limits[name].within_s for name in missed)


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
    """Return the objectives whose ratio is too low, in the order availability, ttft, tpot."""
    return tuple(name for name, ratio in promised(objectives).items() if ratios.get(name, 1.0) < ratio)


def promised(objectives: Objectives) -> dict[str, float]:
    """Return the required ratio of each objective that is set, in the order availability, ttft, tpot."""
    first = {AVAILABILITY: objectives.availability} if objectives.availability is not None else {}
    return {**first, **{name: objective.ratio for name, objective in objectives.latencies().items()}}
