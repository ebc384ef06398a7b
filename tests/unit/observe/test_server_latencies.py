"""What a server may have measured of a request, by what the client saw."""

from dataclasses import replace
from math import inf

import pytest
from plain_records import record

from probe.core.request import Outcome, RequestRecord, ServerTimes, WireTimes
from probe.observe import server_latencies
from probe.observe.distance import UNKNOWN

MS = 1_000_000


def seen(ttft_ms: float = 150.0, **others: object) -> RequestRecord:
    """Return a request whose connection was there after 60 ms, and whose first of 3 tokens came after `ttft_ms`."""
    return record(ttft_ms=ttft_ms, **{"wire": WireTimes(60 * MS, None, round(ttft_ms * MS)), **others})


def approx(*values: float) -> tuple[object, ...]:
    return tuple(pytest.approx(value) for value in values)


def test_connecting_is_not_the_servers_time_and_the_rest_may_be_the_networks() -> None:
    assert server_latencies.ttft(seen(), UNKNOWN) == approx(0.0, 0.09)
    assert server_latencies.e2e(seen(), UNKNOWN) == approx(0.0, 0.11)
    assert server_latencies.ttft(record(ttft_ms=150), UNKNOWN) == approx(0.0, 0.15), (
        "nothing is known of the connection"
    )


def test_a_delay_that_is_known_is_taken_off() -> None:
    assert server_latencies.ttft(seen(), (0.03, 0.04)) == approx(0.05, 0.06)
    assert server_latencies.e2e(seen(), (0.03, 0.04)) == approx(0.07, 0.08)


def test_after_the_head_the_server_took_what_the_client_waited() -> None:
    """The head came 34 ms after the request was written: no more than that, and jitter, is the way's."""
    one = seen(wire=WireTimes(60 * MS, 94 * MS, 150 * MS))
    assert server_latencies.ttft(one, UNKNOWN) == approx(0.051, 0.076)
    assert server_latencies.e2e(one, UNKNOWN) == approx(0.071, 0.096)


def test_a_head_that_a_gateway_sends_of_its_own_does_not_shorten_a_delay_that_is_known() -> None:
    one = seen(wire=WireTimes(60 * MS, 61 * MS, 150 * MS))
    assert server_latencies.ttft(one, (0.05, 0.06)) == approx(0.04, 0.04)


def test_the_head_says_nothing_of_a_stream_that_was_held_back() -> None:
    one = record(ttft_ms=150, gap_ms=0, tokens=8, wire=WireTimes(60 * MS, 94 * MS, 150 * MS))
    assert server_latencies.ttft(one, UNKNOWN) == approx(0.0, 0.09)
    assert server_latencies.tpot(one, 8) == approx(0.0, 0.09 / 7)


def test_a_first_event_of_several_tokens_says_only_that_the_first_was_not_later() -> None:
    """As of reasoning that is not shown, or of a gateway that gathers tokens."""
    one = seen(wire=WireTimes(60 * MS, 94 * MS, 150 * MS))
    one.events.tokens[0] = 4
    assert server_latencies.ttft(one, (0.03, 0.04)) == approx(0.0, 0.09)
    assert server_latencies.tpot(one, 6) == approx(0.0, 0.11 / 5)
    assert server_latencies.ttft(replace(one, server_times=ServerTimes(0.02, 0.05)), UNKNOWN) == approx(0.07, 0.09)


def test_the_servers_own_queue_and_prefill_are_the_least_it_took() -> None:
    one = seen(server_times=ServerTimes(0.02, 0.05))
    assert server_latencies.ttft(one, UNKNOWN) == approx(0.07, 0.09)
    assert server_latencies.ttft(replace(one, server_times=ServerTimes(1.0, 0.5)), UNKNOWN) == approx(0.09, 0.09)


def test_what_the_client_read_late_is_not_the_servers() -> None:
    one = seen()
    one.events.late_ns[0] = 4 * MS
    assert server_latencies.ttft(one, (0.03, 0.04)) == approx(0.046, 0.06)


def test_between_tokens_only_jitter_is_the_ways() -> None:
    assert server_latencies.tpot(seen(), 3) == approx(0.0075, 0.0125)


def test_of_a_cancelled_request_the_first_read_and_the_end_are_known() -> None:
    cut = seen(tokens=0, outcome=Outcome.ABORTED, reads=2, done_ns=900 * MS)
    assert server_latencies.cut_ttft(cut, (0.03, 0.04)) == approx(0.05, 0.81)
    assert server_latencies.cut_ttft(replace(cut, wire=None), (0.0, inf)) == approx(0.0, 0.9)
