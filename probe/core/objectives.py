"""Objectives applied to requests. Pure.

Availability judges every request that Kneewatch did not cancel. A latency objective judges answered requests only, so
that an outage spends only the availability budget.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from probe.core import latency
from probe.core.request import Outcome, RequestRecord
from probe.core.step import Distribution, StepSummary

AVAILABILITY = "availability"
ALL = "all"  # every objective met: what goodput counts
# A client that did not run for less than this share of a request's time has not caused its failure.
_STOPPED_SHARE = 0.1
_UNREAD_S = 1.0  # a server gives up on a client that reads nothing for longer


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency that can have an objective.

    `tokens`: the fewest output tokens of an answer that has one. `usual`: its limit where no objectives are configured;
    empty: it has none, and is shown only with an objective. `of_request`: what is judged, None where undefined.
    `client_error_s`: by how much the client may have lengthened it, with how late the operating system ran the process;
    `hidden_s`: by how much it may have shortened it, 0 where each delay of the client makes it longer.
    `advice`: what raises a capacity that it limits. `which`: the one judged, where a request has several.
    """

    name: str
    tokens: int
    usual: str
    of_request: Callable[[RequestRecord], float | None]
    of_step: Callable[[StepSummary], Distribution]
    client_error_s: Callable[[RequestRecord, float], float]
    advice: str
    which: str = ""
    hidden_s: Callable[[RequestRecord, float], float] = lambda _record, _waking_s: 0.0

    @property
    def title(self) -> str:
        """Return the name as texts write it."""
        return self.name.upper()


def _last_error_s(record: RequestRecord, waking_s: float) -> float:
    """Return by how much the client may have delayed the last token."""
    late_ns = record.events.late_ns
    return (late_ns[-1] * 1e-9 if len(late_ns) else 0.0) + waking_s


# By name, in this order everywhere. What each judges is in docs/numbers.md.
LATENCIES: Mapping[str, Latency] = {
    row.name: row
    for row in (
        Latency(
            "ttft",
            tokens=1,
            usual="500ms",
            of_request=latency.ttft_s,
            of_step=lambda step: step.ttft_s,
            client_error_s=lambda record, waking_s: (latency.ttft_error_s(record) or 0.0) + waking_s,
            advice="to raise capacity, shorten the wait for the first token: add a replica, shorten the prompts, or"
            " share a prefix that the server can cache",
        ),
        Latency(
            "tpot",
            tokens=2,
            usual="50ms",
            of_request=latency.tpot_s,
            of_step=lambda step: step.tpot_s,
            client_error_s=lambda record, waking_s: (
                _last_error_s(record, waking_s) / max(latency.tokens_after_first(record), 1)
            ),
            advice="to raise capacity, make each step cheaper: add a replica, lower --max-num-seqs, or quantise the"
            " weights",
            hidden_s=latency.tpot_hidden_s,
        ),
        Latency(
            "e2e",
            tokens=0,
            usual="",
            of_request=latency.e2e_s,
            of_step=lambda step: step.e2e_s,
            client_error_s=lambda record, waking_s: (
                max(latency.schedule_lag_s(record), 0.0) + _last_error_s(record, waking_s)
            ),
            advice="to raise capacity, finish answers sooner: add a replica, shorten prompts or answers, or see which"
            " of TTFT and TPOT grew and shorten that",
        ),
        Latency(
            "itl",
            tokens=2,
            usual="",
            of_request=latency.stall_s,
            of_step=lambda step: step.stall_s,
            client_error_s=lambda record, waking_s: latency.stall_error_s(record) + waking_s,
            advice="to raise capacity, let prompts hold up the tokens of others for less long: lower"
            " --max-num-batched-tokens, keep chunked prefill on, or add a replica",
            which="longest gap",
            hidden_s=latency.stall_hidden_s,
        ),
    )
}
# Undefined for one token, and unknown where a stream does not show the times between tokens.
BY_GAPS = tuple(name for name, row in LATENCIES.items() if row.tokens > 1)


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
        return {name: one for name in LATENCIES if (one := getattr(self, name)) is not None}


def met(record: RequestRecord, objectives: Objectives) -> Mapping[str, bool]:
    """Return, for each objective that judges this request, whether it was met; empty for an aborted request.

    A client-bound request meets its availability objective, and no other judges it: the client may have caused the
    rest. `unknown` latencies are not judged either. Undefined ones (one output token) meet their objectives.
    """
    if record.outcome is Outcome.ABORTED:
        return {}
    if record.outcome is Outcome.CLIENT_BOUND:
        return {AVAILABILITY: True}
    verdict = {AVAILABILITY: record.outcome is Outcome.OK}
    if record.outcome is Outcome.OK:
        hidden = unknown(record, objectives)
        for name, objective in objectives.latencies().items():
            if name not in hidden:
                value = LATENCIES[name].of_request(record)
                verdict[name] = value <= objective.within_s if value is not None else name in BY_GAPS
    return {**verdict, ALL: all(verdict.values())}


def certainly_met(record: RequestRecord, objectives: Objectives, waking_s: float) -> Mapping[str, bool]:
    """Return `met`, with an objective met only if it was however late the client read the answer.

    A latency that is unknown is not met: the client's own delay may hide it. `waking_s`: how late the operating system
    ran the process at most.
    """
    good = dict(met(record, objectives))
    if record.outcome is not Outcome.OK:
        return good
    for name, objective in objectives.latencies().items():
        row = LATENCIES[name]
        if (value := row.of_request(record)) is not None:
            good[name] = value + row.hidden_s(record, waking_s) <= objective.within_s
    good |= dict.fromkeys(unknown(record, objectives), False)
    return {**good, ALL: all(met for name, met in good.items() if name != ALL)}


def unknown(record: RequestRecord, objectives: Objectives) -> tuple[str, ...]:
    """Return the objectives that cannot judge an answered request: the times of its tokens are unknown.

    The stream was held back, or it does not show where hidden tokens were.
    """
    if record.outcome is not Outcome.OK or record.output_tokens <= 1:
        return ()
    gaps = (name for name in objectives.latencies() if name in BY_GAPS)
    return tuple(name for name in gaps if LATENCIES[name].of_request(record) is None)


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
        (LATENCIES[name].of_request(record) or 0.0) - LATENCIES[name].client_error_s(record, waking_s)
        <= limits[name].within_s
        for name in missed
    )


def may_be_client_stop(record: RequestRecord, waking_s: float) -> bool:
    """Return whether a request may have failed because the client did not run, such as while it was stopped.

    When the client runs again, time limits are over before it reads what has arrived, and a server may have closed a
    connection that was not read. A refused connection was refused by the server's machine. `waking_s`: how late the
    operating system ran the process just before the failure.
    """
    least_s = {Outcome.TIMEOUT: 0.0, Outcome.UNREACHABLE: _UNREAD_S, Outcome.BROKEN_STREAM: _UNREAD_S}
    if record.outcome not in least_s or record.is_refused:
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
