"""Whether a step that the client was late in shows all the same that the server holds its load. Pure.

A late client makes these quantities only longer: TTFT and E2E, which count from when a request was due to a stamp that
is never early, and the number of failures. So the server met what was met. It may make others smaller, and each counts
at its worst:

    TPOT and gaps          by how late the read at their beginning may have been (`hidden_s` in core/objectives.py)
    unknown TPOT, gaps     not met: tokens that are read together may hide a gap
    open loop: the rate    what was sent in the window, at most the plan's (`StepSummary.load`)
    open loop: bursts      are spread where requests are sent late by more than a small share of an answer's time
    closed loop: load      fewer than planned are in flight between an answer and the late read of its end
    throughput             at most what was sent (`StepSummary.certain_rps`)

Whether a late step that missed an objective broke it remains unknown, and so does whether a load was too high that the
guard stopped for what the client's lateness may explain.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from probe.core import latency
from probe.core import objectives as slo
from probe.core.objectives import Objectives
from probe.core.percentiles import percentile
from probe.core.reasons import OBJECTIVE_BROKEN
from probe.core.request import Outcome, RequestRecord
from probe.core.step import StepRun
from probe.load.loop_lag import lag_of_most_moments
from probe.observe.guard import broken_for_certain

# Requests in flight average the arrivals over an answer's time. Delays of a tenth of it move few of them out of a peak.
_MAX_DELAY_SHARE = 0.1
_MOST = 0.95  # of the requests are sent within this delay; of the planned requests in flight


def has_held(run: StepRun, records: Sequence[RequestRecord], objectives: Objectives) -> bool:
    """Return whether the objectives were met, and the load was sent, however late the client was.

    `records`: those of the run that are judged.
    """
    if run.plan.is_pulse or not run.loop_lag_s:
        return False  # a pulse is no load that is held; of a loop that never woke nothing is known
    waking_s = max(run.loop_lag_s)
    good = slo.shares([slo.certainly_met(record, objectives, waking_s) for record in records], objectives)
    return not slo.broken(good, objectives) and _are_bursts_whole(records) and _was_in_flight(run)


def may_explain(trip: str, run: StepRun, objectives: Objectives) -> bool:
    """Return whether the lateness of a late step may be why the guard stopped it for an overload.

    For missed objectives: without those that the lateness may explain, too few are left. For all else: the client sent
    at once what was due in as long a time as users may wait, or did not read for as long.
    """
    lags_s = run.loop_lag_s
    if not lags_s:
        return True
    if trip == OBJECTIVE_BROKEN.word:
        waking_s = lag_of_most_moments(lags_s)
        due = [record for record in run.records if record.scheduled_ns >= run.window_ns[0]]
        certain = (slo.met(r, objectives) for r in due if not slo.may_be_client_delay(r, objectives, waking_s))
        missed = Counter(name for good in certain for name, is_good in good.items() if not is_good)
        return broken_for_certain(missed, run.plan.load * run.plan.seconds, objectives) is None
    wait = objectives.ttft or objectives.e2e
    late_s = max([*lags_s, *(latency.schedule_lag_s(record) for record in run.records)])
    return wait is not None and late_s >= wait.within_s


def _are_bursts_whole(records: Sequence[RequestRecord]) -> bool:
    """Return whether the requests were sent nearly when they were due, compared with the time of an answer."""
    took_s = [took for record in records if (took := latency.e2e_s(record)) is not None]
    lags_s = sorted(latency.schedule_lag_s(record) for record in records)
    return bool(took_s) and percentile(lags_s, _MOST) <= _MAX_DELAY_SHARE * median(took_s)


def _was_in_flight(run: StepRun) -> bool:
    """Return whether the server had a closed loop's requests in flight until the last one was sent.

    An answer may have ended as long before its stamp as the client was late.
    """
    if run.plan.arrivals is not None:
        return True
    begin_ns, last_ns = run.window_ns[0], max(record.sent_ns for record in run.records)
    waking_ns = round(lag_of_most_moments(run.loop_lag_s) * 1e9)
    spans = ((max(r.sent_ns, begin_ns), min(_ended_ns(r) - waking_ns, last_ns)) for r in run.records)
    served_ns = sum(max(end - begin, 0) for begin, end in spans)
    return last_ns > begin_ns and served_ns >= _MOST * run.plan.concurrency * (last_ns - begin_ns)


def _ended_ns(record: RequestRecord) -> int:
    """Return when the request may have ended, but for the time in which the process did not run."""
    events = record.events
    return events.at_ns[-1] - events.late_ns[-1] if record.outcome is Outcome.OK and events else record.done_ns
