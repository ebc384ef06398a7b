"""Failures in groups, as text."""

import time

from example_records import failing, record, status

from probe.core.request import Outcome, RequestRecord
from probe.core.target_status import TargetStatus
from probe.report.figures import when
from probe.web.failures import failures, since_words

NIGHT_S = 1_795_402_140.0  # 2026-11-23 02:49:00 UTC


def _canaries(*outcomes: Outcome) -> list[RequestRecord]:
    """Return a canary every 15 s, newest first; `outcomes` oldest first."""
    ends = {Outcome.CLIENT_BOUND: "length"}  # answered
    made = [
        record(outcome=each, done_wall_s=NIGHT_S + 15 * i, finish_reason=ends.get(each))
        for i, each in enumerate(outcomes)
    ]
    return made[::-1]


def _status(name: str, *outcomes: Outcome) -> TargetStatus:
    return status(name=name, **failing(*_canaries(*outcomes)))


def test_failures_of_one_kind_are_one_line_that_counts_all_of_them() -> None:
    (one,) = failures([_status("a", Outcome.OK, *[Outcome.UNREACHABLE] * 2000)])
    assert one.words == "2000 x unreachable since 2026-11-23 02:49:15 UTC"
    assert one.is_current


def test_another_outcome_or_a_success_begins_another_group() -> None:
    bad = Outcome.SERVER_ERROR
    found = failures([_status("a", bad, Outcome.OK, Outcome.TIMEOUT, Outcome.TIMEOUT, bad, Outcome.CLIENT_BOUND)])
    assert [one.words for one in found] == [
        "server error at 2026-11-23 02:50:00 UTC",
        "2 x timeout from 2026-11-23 02:49:30 to 02:49:45 UTC",
        "server error at 2026-11-23 02:49:00 UTC",
    ]
    assert not any(one.is_current for one in found)
    assert [one.group.recovered_s for one in found] == [NIGHT_S + 75, NIGHT_S + 75, NIGHT_S + 15]


def test_failures_that_end_the_next_day_name_both_days() -> None:
    late = [record(outcome=Outcome.TIMEOUT, done_wall_s=NIGHT_S + 86400 * i) for i in (1, 0)]
    shown = status(**failing(record(done_wall_s=NIGHT_S + 2 * 86400), *late))
    assert failures([shown])[0].words == "2 x timeout from 2026-11-23 02:49:00 to 2026-11-24 02:49:00 UTC"


def test_present_failures_are_listed_before_past_ones() -> None:
    later_s = NIGHT_S + 1e4
    over = status(name="over", **failing(record(done_wall_s=later_s), record(outcome=Outcome.TIMEOUT)))
    found = failures([over, _status("down", Outcome.UNREACHABLE)])
    assert [one.name for one in found] == ["down", "over"]
    many = [_status(f"t{i}", Outcome.TIMEOUT) for i in range(30)]
    assert len(failures(many)) == 20


def test_since_when_a_target_is_up_or_down() -> None:
    shown = _status("a", Outcome.TIMEOUT, Outcome.OK, Outcome.OK, Outcome.ABORTED)
    assert since_words(shown, NIGHT_S + 15 + 120) == "2026-11-23 02:49:15 UTC (2 min ago)"
    first = _status("a", Outcome.OK, Outcome.OK)
    assert since_words(first, NIGHT_S + 120) == f"{when(NIGHT_S)} (2 min ago, the first canary)"
    assert since_words(status(), time.time()) == ""
