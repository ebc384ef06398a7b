"""Users' own traffic: what is left of a server's counters when our requests are taken off."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_records import failure, poll, record
from property_examples import examples

from probe.core.request import Outcome, RequestRecord
from probe.core.snapshot import CountedTraffic, Histogram, ServerSnapshot
from probe.observe.histogram_arithmetic import remove_samples
from probe.observe.probe_traffic import Tokens
from probe.observe.user_traffic import UserTraffic

INF = float("inf")
BOUNDS = (0.05, 0.2, 1.0, INF)
S = 10**9


def histogram(samples: Sequence[float], bounds: Sequence[float] = BOUNDS) -> Histogram:
    return Histogram(tuple((le, float(sum(s <= le for s in samples))) for le in bounds), float(sum(samples)))


class Server:
    """Counts what it is sent, as vLLM does."""

    def __init__(self) -> None:
        self.ttft: list[float] = []
        self.prompt = self.output = 0.0

    def serve(self, ttft_s: float, prompt: int = 8, output: int = 3) -> None:
        self.ttft.append(ttft_s)
        self.prompt += prompt
        self.output += output

    def read(self, at_s: float) -> ServerSnapshot:
        return poll(
            at_ns=round(at_s * S),
            prompt_tokens=self.prompt,
            generation_tokens=self.output,
            histograms={"ttft": histogram(self.ttft)},
        )


def probe(ttft_s: float, at_s: float = 0.0) -> RequestRecord:
    """Return the request that `Server.serve` counts, as the client records it a little later."""
    return record(at_ms=1000 * at_s, ttft_ms=1000 * ttft_s + 2)


def canary(traffic: UserTraffic, server: Server, at_s: float, ttft_s: float = 0.1) -> None:
    """Send one request, from its beginning to its end."""
    traffic.begin()
    server.serve(ttft_s)
    traffic.add_record(probe(ttft_s, at_s))
    traffic.end(round((at_s + 0.2) * S))


def learn_distance(traffic: UserTraffic, server: Server, at_s: float) -> None:
    """Send three canaries that are alone, from which the distance follows."""
    for i in range(3):
        canary(traffic, server, at_s=at_s + 10 * i + 1)
        traffic.add(server.read(at_s + 10 * i + 5))


def test_a_server_that_only_we_ask_has_no_users() -> None:
    traffic, server = UserTraffic(), Server()
    server.serve(3.0)
    traffic.add(server.read(0))
    for i in range(5):
        canary(traffic, server, at_s=10 * i + 1)
        traffic.add(server.read(10 * i + 5))
    totals = traffic.totals
    assert (totals.requests, totals.prompt_tokens, totals.output_tokens) == (0, 0, 0)
    assert totals.histograms["ttft"] == histogram([])


def test_user_latencies_are_the_servers_buckets_less_probe_traffic() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    learn_distance(traffic, server, at_s=0)
    canary(traffic, server, at_s=41)
    for ttft_s in (0.01, 0.15, 0.7, 5.0):
        server.serve(ttft_s, prompt=100, output=50)
    traffic.add(server.read(45))
    totals = traffic.totals
    assert (totals.requests, totals.prompt_tokens, totals.output_tokens) == (4, 400, 200)
    assert totals.histograms["ttft"].buckets == histogram([0.01, 0.15, 0.7, 5.0]).buckets
    assert totals.histograms["ttft"].sum == pytest.approx(0.01 + 0.15 + 0.7 + 5.0, abs=0.003)


def test_settlement_waits_until_no_probe_is_in_flight_and_all_are_counted() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    traffic.begin()
    server.serve(0.1)
    assert traffic.add(server.read(1)) is None
    traffic.add_record(probe(0.1, 0.5))
    traffic.end(2 * S)
    assert traffic.add(server.read(2.5)) is None
    assert traffic.add(server.read(3.5)) is not None
    assert traffic.totals.requests == 0


def test_users_show_though_a_canary_is_always_under_way() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    traffic.begin()
    for second in range(10, 70, 10):
        server.serve(0.1)
        assert traffic.add(server.read(second)) is None
        assert traffic.totals.requests == second / 10 - 1, "one of them may be the canary"
    traffic.add_record(failure())
    traffic.end(70 * S)
    traffic.add(server.read(72))
    assert traffic.totals.requests == 6


@pytest.mark.fault(
    "TR13",
    "Another Kneewatch loads the server",
    area="Truth",
    users_see="its counts are no user traffic",
    stays="-",
)
def test_counts_during_another_probers_load_are_not_user_traffic() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    server.serve(0.04)
    traffic.add(server.read(5))
    traffic.other_prober_began()
    assert traffic.is_loaded
    for second in range(10, 200, 10):
        server.serve(3.0)
        canary(traffic, server, at_s=second)
        assert traffic.add(server.read(second + 5)) is None
    traffic.other_prober_ended(200 * S)
    assert not traffic.is_loaded
    server.serve(3.0)  # the last of it is counted late
    assert traffic.add(server.read(200.5)) is None
    traffic.add(server.read(202))
    assert traffic.totals.requests == 1
    server.serve(0.7)
    canary(traffic, server, at_s=203)
    traffic.add(server.read(208))
    totals = traffic.totals
    assert (totals.requests, totals.output_tokens) == (2, 6)
    assert totals.histograms["ttft"].buckets == histogram([0.04, 0.7]).buckets


def test_another_probers_load_is_not_user_traffic_though_a_canary_is_always_in_flight() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    traffic.other_prober_began()
    traffic.begin()
    for second in range(10, 100, 10):
        server.serve(3.0)
        traffic.add(server.read(second))
    traffic.other_prober_ended(100 * S)
    server.serve(3.0)
    for second in range(101, 162, 10):  # only then has waiting for quiet been enough
        traffic.add(server.read(second))
    for second in range(170, 240, 10):
        server.serve(0.1)
        traffic.add(server.read(second))
    assert traffic.totals.requests == 7 - 1, "one of them may be the canary"


def test_a_server_that_restarts_under_others_load_has_no_users_of_it() -> None:
    traffic, server = UserTraffic(), Server()
    server.serve(0.1)
    traffic.add(server.read(0))
    traffic.other_prober_began()
    server = Server()
    traffic.add(server.read(10), is_new_process=True)
    for _ in range(5):
        server.serve(3.0)
    traffic.other_prober_ended(20 * S)
    traffic.add(server.read(22))
    assert traffic.totals.requests == 0


def test_user_counters_pause_during_a_capacity_run_and_catch_up_afterwards() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    learn_distance(traffic, server, at_s=0)
    traffic.begin(is_load=True)
    for i in range(40, 340):
        server.serve(0.3)
        server.serve(0.04)
        traffic.add_record(probe(0.3, i))
        traffic.add(server.read(i))
    assert traffic.totals.requests == 0
    traffic.end(340 * S, is_load=True)
    traffic.add(server.read(342))
    assert traffic.totals.requests == 300
    assert traffic.totals.histograms["ttft"].buckets == histogram([0.04] * 300).buckets


def test_a_restart_loses_what_came_after_the_last_reading_and_nothing_else() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    for _ in range(4):
        server.serve(0.1)
    traffic.add(server.read(5))
    canary(traffic, server, at_s=6)
    server = Server()
    server.serve(0.1)
    traffic.add(server.read(10), is_new_process=True)
    server.serve(0.1)
    traffic.add(server.read(15))
    assert traffic.totals.requests == 5
    assert traffic.totals.histograms["ttft"].count == 5


def test_a_request_without_a_token_was_not_counted_by_the_server() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    traffic.add_record(failure())
    server.serve(0.1)
    traffic.add(server.read(5))
    assert traffic.totals.requests == 1


def test_both_sides_of_a_settlement_are_reported() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    canary(traffic, server, at_s=1, ttft_s=0.1)
    assert traffic.add(server.read(5)) == CountedTraffic(
        requests=1,
        prompt_tokens=8,
        output_tokens=3,
        ttft_s=pytest.approx(0.102),
        server_requests=1,
        server_prompt_tokens=8,
        server_output_tokens=3,
        server_ttft_s=pytest.approx(0.1),
    )


def test_first_tokens_of_other_requests_are_not_compared() -> None:
    """A user's request that was cancelled after its first token is in that histogram, and not among those answered."""
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    canary(traffic, server, at_s=1, ttft_s=0.1)
    server.ttft.append(0.5)
    both = traffic.add(server.read(5))
    assert both is not None
    assert both.server_ttft_s is None


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.TIMEOUT, Outcome.SERVER_ERROR])
def test_nothing_is_compared_if_a_probe_request_failed(outcome: Outcome) -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    traffic.add_record(failure(outcome))
    assert traffic.add(server.read(5)) is None


def test_a_server_without_counters_has_no_user_traffic() -> None:
    traffic = UserTraffic()
    traffic.add(poll(at_ns=0))
    traffic.add(poll(at_ns=5 * S))
    assert traffic.totals.requests is traffic.totals.output_tokens is None


def test_a_histogram_with_other_buckets_starts_again() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    server.serve(0.1)
    traffic.add(server.read(5))
    other = [histogram([0.1] * n, (0.1, INF)) for n in (1, 2)]
    for at_s, one in zip((10, 15), other, strict=True):
        traffic.add(poll(at_ns=at_s * S, histograms={"ttft": one}))
    assert traffic.totals.histograms["ttft"] == histogram([0.1], (0.1, INF))


samples = st.lists(st.floats(0.001, 30.0), max_size=30)


@given(users=samples, own=samples, late_s=st.floats(0.0, 0.5))
@examples(60)
def test_users_are_as_many_as_they_were_and_never_faster(users: list[float], own: list[float], late_s: float) -> None:
    """Of what the client saw later, by an unknown part of that, no slow user is taken for one of ours."""
    left = remove_samples(histogram([*users, *own]), [(value, value + late_s) for value in own])
    counts, true = (tuple(count for _, count in one.buckets) for one in (left.histogram, histogram(users)))
    assert left.histogram.count == len(users)
    assert list(counts) == sorted(counts)
    assert not left.missing
    assert all(count <= most <= count + doubt for count, most, doubt in zip(counts, true, left.doubt, strict=True))
    assert left.histogram.sum >= 0


@given(users=samples, own=samples)
@examples(60)
def test_on_one_clock_nothing_but_users_is_left(users: list[float], own: list[float]) -> None:
    left = remove_samples(histogram([*users, *own]), exactly(own))
    assert not left.missing
    assert not any(left.doubt)
    assert left.histogram.buckets == histogram(users).buckets
    assert all(value >= 0 for _, value in left.histogram.buckets)
    inside = [BOUNDS[bisect_left(BOUNDS, value) - 1] if value > BOUNDS[0] else 0.0 for value in users]
    assert left.histogram.sum >= sum(inside) - 1e-9


def exactly(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(value, value) for value in values]


def test_samples_that_the_server_has_not_counted_take_nothing() -> None:
    left = remove_samples(histogram([]), exactly([0.1, 0.2]))
    assert (left.histogram, left.missing) == (histogram([]), exactly([0.1, 0.2]))


def test_a_sample_that_fits_one_bucket_only_is_not_crowded_out() -> None:
    left = remove_samples(histogram([0.1, 0.7]), [(0.0, 0.9), (0.06, 0.15)])
    assert left.histogram == histogram([])


def test_what_may_have_been_faster_is_counted_and_is_never_more_than_there_are_in_its_reach() -> None:
    """Two canaries took 0 to 0.9 s; of the users one took 0.7 s and one 5 s, which no canary did."""
    left = remove_samples(histogram([0.01, 0.01, 0.7, 5.0]), [(0.0, 0.9), (0.0, 0.9)])
    assert left.histogram.buckets == histogram([0.7, 5.0]).buckets
    assert left.doubt == (1, 1, 0, 0)


def cut(reads: int) -> RequestRecord:
    """Return a probe request cancelled after this many pieces of its answer."""
    return replace(failure(Outcome.ABORTED), reads=reads)


def test_cancelled_probe_requests_count_as_far_as_they_had_come() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    traffic.begin(is_load=True)
    for i in range(30):
        server.serve(0.3, prompt=16, output=2)
        traffic.add_record(probe(0.3, i) if i % 2 else cut(reads=2))
    traffic.add_record(cut(reads=0))  # waited, and was never begun
    server.serve(5.0, prompt=7, output=4)
    traffic.end(40 * S, is_load=True)
    traffic.add(server.read(50))
    assert traffic.totals.requests == 1
    assert traffic.totals.histograms["ttft"].buckets == histogram([5.0]).buckets


def test_an_account_that_begins_in_the_middle_of_a_canary_is_not_compared() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.begin()
    traffic.add(server.read(0))
    server.serve(0.1)
    traffic.add_record(probe(0.1))
    traffic.end(1 * S)
    assert traffic.add(server.read(5)) is None
    canary(traffic, server, at_s=6)
    assert traffic.add(server.read(10)) is not None


def test_nor_is_one_in_which_another_request_was_in_progress() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(replace(server.read(0), running=1.0))
    canary(traffic, server, at_s=1)
    server.output += 5000
    assert traffic.add(server.read(5)) is None


def test_a_canary_that_a_late_settlement_cut_in_two_is_no_user() -> None:
    traffic, server, most = UserTraffic(), Server(), Tokens(8, 3)
    traffic.add(server.read(0))
    for minute in range(20):
        at_s = 61 * (minute + 1)
        traffic.begin(most=most)
        server.serve(0.1)  # its first token
        traffic.add(server.read(at_s))  # late, in the middle of it
        traffic.add_record(probe(0.1))
        traffic.end(at_s * S + S // 2, most=most)
    traffic.add(server.read(at_s + 5))
    assert traffic.totals.requests == traffic.totals.output_tokens == traffic.totals.prompt_tokens == 0
    assert traffic.totals.histograms["ttft"] == histogram([])


def test_a_reading_that_was_asked_for_before_our_last_token_is_not_a_quiet_one() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    before = server.read(5)
    canary(traffic, server, at_s=1)
    slow = replace(before, asked_ns=S, at_ns=4 * S)
    assert traffic.add(slow) is None
    assert traffic.add(server.read(6)) is not None
    assert traffic.totals.requests == 0


def test_where_first_tokens_are_counted_of_streams_only_requests_are_counted_at_their_end() -> None:
    traffic = UserTraffic()

    def read(at_s: float, finished: float) -> ServerSnapshot:
        counts = {"finished": {"finished": finished}, "histograms": {"ttft": histogram([])}}
        return poll(at_ns=round(at_s * S), engine="sglang", **counts)

    traffic.add(read(0, 0.0))
    traffic.add(read(5, 4.0))
    assert traffic.totals.requests == 4


def test_uncounted_probe_requests_do_not_reduce_user_traffic() -> None:
    traffic, server = UserTraffic(), Server()
    traffic.add(server.read(0))
    for i in range(50):
        traffic.add_record(probe(0.1))  # another replica's
        traffic.add(server.read(10 * (i + 1)))
    for _ in range(20):
        server.serve(0.1)
    traffic.add(server.read(600))
    assert 18 <= traffic.totals.requests <= 20
