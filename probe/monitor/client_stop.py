"""Requests that failed while Kneewatch itself did not run: a stopped process, a frozen virtual machine. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from probe.core import objectives as slo
from probe.core.request import Outcome, RequestRecord

# A failure may be the client's if it did not run just before: what arrived earlier was read once it ran again. The
# failure is known within this many hundredths of a second.
_LAST_SAMPLES = 10


def excuse_stop(record: RequestRecord, lag: Sequence[float]) -> RequestRecord:
    """Return the record, as client-bound if it may have failed because this process did not run.

    `lag`: samples (s) of how late the system ran this process meanwhile.
    """
    stopped_s = max(lag[-_LAST_SAMPLES:], default=0.0)
    if not slo.may_be_client_stop(record, stopped_s):
        return record
    words = f"{record.detail or record.outcome.value}, but Kneewatch itself did not run for {stopped_s:.1f} s"
    return replace(record, outcome=Outcome.CLIENT_BOUND, detail=words)
