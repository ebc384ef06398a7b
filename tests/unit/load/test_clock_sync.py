"""Times of a worker on another machine: what is told of its clock, and that nothing but the moment changes."""

from array import array
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from probe.client.secrets import Secrets
from probe.core.latency import e2e_s, itl_s, ttft_s
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, TokenEvents, Traffic
from probe.load.clock_sync import SAME_CLOCK, ClockOffset, ClockRound, offset_of, to_controller_time, to_worker_time
from probe.load.messages import Heartbeat, Ready, Report, Start, StepFinished
from probe.load.sent_request import unpack

AHEAD = st.integers(-(10**18), 10**18)
NS = st.integers(0, 10**18)
WAY = st.integers(0, 10**9)


@given(ahead=AHEAD, ways=st.lists(st.tuples(NS, WAY, WAY), min_size=1, max_size=9))
def test_an_offset_is_never_more_wrong_than_it_says(ahead: int, ways: list[tuple[int, int, int]]) -> None:
    """Whatever the ways there and back take: they need not be alike."""
    rounds = [ClockRound(asked, asked + there + ahead, asked + there + back) for asked, there, back in ways]
    found = offset_of(rounds)
    assert abs(found.ns - ahead) <= found.error_ns
    assert found.error_ns == (min(there + back for _, there, back in ways) + 1) // 2


@given(ahead=AHEAD, asked=NS, way=WAY)
def test_ways_that_are_alike_leave_no_error(ahead: int, asked: int, way: int) -> None:
    assert offset_of([ClockRound(asked, asked + way + ahead, asked + 2 * way)]).ns == ahead


def _record(times: list[int]) -> RequestRecord:
    scheduled, sent, *at, done = sorted(times)
    events = TokenEvents(array("q", at), array("q", [7] * len(at)), array("i", [1] * len(at)), 0)
    spec = RequestSpec("w", Api.COMPLETIONS, (), 16, len(at))
    return RequestRecord(
        "a", "m", Traffic.CAPACITY, spec, scheduled, sent, done, 1e9, Outcome.OK, events=events, output_tokens=len(at)
    )


RECORDS = st.lists(NS, min_size=5, max_size=30).map(_record)


@given(record=RECORDS, ahead=AHEAD)
def test_a_record_changes_its_moment_and_no_latency(record: RequestRecord, ahead: int) -> None:
    offset = ClockOffset(ahead, 1)
    heard = to_controller_time(Report((record,), None, 3, at_ns=record.done_ns), offset)
    assert isinstance(heard, Report)
    (moved,) = heard.records
    assert (heard.in_flight, heard.sending) == (None, 3)
    assert heard.at_ns == moved.done_ns
    assert moved.done_ns == record.done_ns - ahead
    assert [at + ahead for at in moved.events.at_ns] == list(record.events.at_ns)
    assert (ttft_s(moved), e2e_s(moved)) == (ttft_s(record), e2e_s(record))
    assert list(itl_s(moved)) == list(itl_s(record))
    back = to_controller_time(heard, ClockOffset(-ahead))
    assert back == Report((record,), None, 3, at_ns=record.done_ns)


@given(requests=st.lists(st.tuples(NS, NS, NS, NS), max_size=9), ahead=AHEAD)
def test_of_what_is_in_flight_only_the_due_time_is_one(requests: list[tuple[int, ...]], ahead: int) -> None:
    report = Report((), array("q", [number for one in requests for number in one]), len(requests), at_ns=5)
    heard = to_controller_time(report, ClockOffset(ahead))
    assert isinstance(heard, Report)
    assert heard.in_flight is not None
    assert list(unpack(heard.in_flight)) == [(due - ahead, *others) for due, *others in requests]
    assert report.in_flight == array("q", [number for one in requests for number in one]), "the report itself stays"


@given(window=st.tuples(NS, NS), ahead=AHEAD, start=NS)
def test_windows_and_beginnings_are_translated_and_the_rest_is_left(
    window: tuple[int, int], ahead: int, start: int
) -> None:
    offset = ClockOffset(ahead)
    ended = StepFinished(window, (0.1,), is_cut_short=False, is_capped=True)
    assert to_controller_time(ended, offset) == replace(ended, window_ns=(window[0] - ahead, window[1] - ahead))
    assert to_worker_time(Start(start), offset) == Start(start + ahead)
    assert to_controller_time(Ready(), offset) == Ready()
    secrets = Secrets("k")
    assert to_worker_time(Heartbeat(secrets), offset) == Heartbeat(secrets)
    assert to_worker_time(Heartbeat(secrets, sent_ns=start), offset) == Heartbeat(secrets, sent_ns=start + ahead)


def test_on_one_clock_nothing_is_converted() -> None:
    report = Report((_record([1, 2, 3, 4, 5]),), array("q", [1, 2, 3, 4]), 1, at_ns=4)
    assert to_controller_time(report, SAME_CLOCK) is report
