"""What users asked of a server beside a load of ours: by its counters, less what we have sent."""

from array import array
from dataclasses import replace

import pytest
from plain_records import failure, poll, record, spec
from wire_cases.chunks import comp

from probe.client.exchange import read_answer
from probe.client.judgement import Transcript
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec
from probe.core.snapshot import Histogram, ServerSnapshot, UserLoad
from probe.observe.user_load import mean, users_beside

INF = float("inf")


def _read(at_s: float, first_tokens: float | None, tokens: float | None = None) -> ServerSnapshot:
    histograms = {} if first_tokens is None else {"ttft": Histogram(((INF, first_tokens),), 0.0)}
    return poll(at_ns=round(at_s * 1e9), histograms=histograms, generation_tokens=tokens)


def _ours(count: int, start_s: float = 1.0) -> list[RequestRecord]:
    """Return probe requests of three tokens each, one every tenth of a second."""
    return [record(at_ms=1000 * start_s + 100 * i, tokens=3) for i in range(count)]


def test_requests_that_are_not_probes_are_user_traffic() -> None:
    users = users_beside(_ours(10), [_read(0.0, 100, 5000), _read(5.0, 120, 6000), _read(10.0, 140, 7000)])
    assert users == UserLoad(pytest.approx(3.0), pytest.approx((2000 - 30) / 10))


def test_only_probe_traffic_between_the_scrapes_is_subtracted() -> None:
    ours = [*_ours(5, start_s=-3.0), *_ours(5, start_s=2.0), *_ours(5, start_s=20.0)]
    assert users_beside(ours, [_read(0.0, 0, 0), _read(10.0, 15, 25)]) == UserLoad(1.0, 1.0)


def test_an_idle_server_has_no_users_and_never_less_than_none() -> None:
    assert users_beside(_ours(10), [_read(0.0, 0, 0), _read(10.0, 10, 30)]) == UserLoad(0.0, 0.0)
    assert users_beside(_ours(10), [_read(0.0, 0, 0), _read(10.0, 9, 29)]) == UserLoad(0.0, 0.0)


def test_a_restart_in_between_makes_the_users_unknown_though_the_counters_are_higher_afterwards() -> None:
    pages = [_read(0.0, 10, 100), _read(5.0, 2, 20), _read(10.0, 40, 400)]
    assert users_beside([], pages) == UserLoad()


def test_a_request_that_failed_without_a_token_was_not_counted_by_the_server() -> None:
    assert users_beside([failure(at_ms=2000)] * 5, [_read(0.0, 0, 0), _read(10.0, 10, 0)]).requests_per_second == 1.0


def test_tokens_that_our_streams_do_not_show_one_by_one_are_no_users() -> None:
    """Four tokens an event, and a usage at the end only; one answer broke off before it."""
    parts = [comp("four words of text ", None, "length" if i == 15 else None) for i in range(16)]
    whole = read_answer([(i, i, part) for i, part in enumerate([*parts, comp(None, 64)])], Api.COMPLETIONS)
    cut = read_answer([(i, i, part) for i, part in enumerate(parts[:10])], Api.COMPLETIONS)
    asked = replace(spec(3, 64), output_tokens=64)
    ours = [_answered(whole, asked, Outcome.OK, i) for i in range(39)]
    assert users_beside(ours, [_read(0.0, 0, 0), _read(40.0, 39, 39 * 64)]) == UserLoad(0.0, 0.0)
    ours.append(_answered(cut, asked, Outcome.BROKEN_STREAM, 39))
    assert users_beside(ours, [_read(0.0, 0, 0), _read(40.0, 40, 39 * 64 + 43)]) == UserLoad(0.0, 0.0)
    assert users_beside(ours, [_read(0.0, 0, 0), _read(40.0, 60, 80 * 64)]) == UserLoad(0.5, 64.0)


def _answered(answer: Transcript, asked: RequestSpec, outcome: Outcome, second: int) -> RequestRecord:
    at_ns = array("q", [at * 10**6 + 10**9 * second + 1 for at in answer.events.at_ns])
    events = replace(answer.events, at_ns=at_ns)
    return record(spec=asked, outcome=outcome, events=events, finish_reason=answer.finish_reason)


@pytest.mark.parametrize(
    ("ours", "readings"),
    [
        ([], []),
        ([], [_read(0.0, 5)]),
        ([], [_read(0.0, 5), _read(0.5, 9)]),
        ([], [_read(0.0, None), _read(10.0, None)]),
        ([failure(Outcome.ABORTED)], [_read(0.0, 5), _read(10.0, 9)]),
        ([], [_read(0.0, 100, 9000), _read(10.0, 3, 50)]),
        ([], [_read(0.0, 5), replace(_read(10.0, 9), delay_s=15.0)]),  # the requests of a step before may be in it
    ],
)
def test_where_user_load_is_unknown_there_is_none(ours: list[RequestRecord], readings: list[ServerSnapshot]) -> None:
    assert users_beside(ours, readings) == UserLoad(None, None)


def test_stretches_count_by_their_length_and_unknown_ones_not_at_all() -> None:
    parts = [(UserLoad(1.0, 100.0), 30.0), (UserLoad(4.0, None), 10.0), (UserLoad(), 50.0)]
    assert mean(parts) == UserLoad(pytest.approx(1.75), 100.0)
    assert mean([]) == mean([(UserLoad(), 10.0)]) == UserLoad(None, None)
