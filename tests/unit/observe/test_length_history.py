"""The lengths of users' requests over the last day."""

from dataclasses import replace

from example_records import record, snapshot, spec

from probe.core.snapshot import Histogram, ServerSnapshot, UserTotals
from probe.observe.length_history import LengthHistory
from probe.observe.probe_traffic import Tokens
from probe.observe.server_state import ServerState

HOUR_NS = 3600 * 10**9
BOUNDS = (100.0, 1000.0, float("inf"))


def lengths(short: float, long: float, bounds: tuple[float, ...] = BOUNDS) -> Histogram:
    counts = (short, short + long, short + long)
    return Histogram(tuple(zip(bounds, counts, strict=True)), 50 * short + 500 * long)


def server(at_ns: int = 0, hits: float = 0.0, queries: float = 0.0) -> ServerSnapshot:
    return replace(snapshot(prefix_cache_hits=hits, prefix_cache_queries=queries), at_ns=at_ns)


def totals(short: float, long: float, bounds: tuple[float, ...] = BOUNDS) -> UserTotals:
    one = lengths(short, long, bounds)
    return UserTotals(histograms={"prompt_length": one, "output_length": one})


def test_what_was_sent_a_day_ago_no_longer_counts() -> None:
    history = LengthHistory()
    for hour in range(49):
        history.add(server(hour * HOUR_NS), totals(10.0 * min(hour, 24), 10.0 * max(hour - 24, 0)))
    recent = history.recent()
    assert recent is not None
    assert recent.prompts.buckets[0][1] == 0, "short ones ended a day ago"
    assert 200 <= recent.prompts.count <= 240


def test_buckets_of_another_context_length_begin_anew() -> None:
    history = LengthHistory()
    history.add(server(), totals(5, 5))
    history.add(server(HOUR_NS), totals(9, 9, (100.0, 2000.0, float("inf"))))
    recent = history.recent()
    assert recent is not None
    assert recent.prompts.count == 0


def test_a_server_without_lengths_has_none() -> None:
    history = LengthHistory()
    history.add(server(), UserTotals(5.0))
    assert history.recent() is None


def test_the_hit_ratio_leaves_out_what_a_load_looked_up() -> None:
    history = LengthHistory()
    for at, (hits, queries) in enumerate([(0, 0), (30, 100), (30, 1100), (60, 1200)]):
        if queries == 1100:
            history.pause()
        history.add(server(at, hits, queries), totals(at, at))
    recent = history.recent()
    assert recent is not None
    assert recent.hit_ratio == 0.3


def test_lengths_of_probe_requests_are_not_users() -> None:
    state = ServerState()

    def page(at_s: float, short: float, long: float) -> ServerSnapshot:
        histograms = dict.fromkeys(("prompt_length", "output_length"), lengths(short, long))
        ttft = Histogram(((1.0, short + long), (float("inf"), short + long)), short + long)
        return replace(snapshot(histograms={**histograms, "ttft": ttft}), at_ns=round(at_s * 1e9))

    state.add(page(0, 0, 0))
    state.begin(10**9, most=Tokens(8, 3))
    state.add_record(record(start_s=1.0, asked=spec(prompt_tokens=8, output_tokens=3)))
    state.end(10**9, 2 * 10**9)
    state.add(page(10, 4, 2))
    recent = state.lengths.recent()
    assert recent is not None
    assert [count for _, count in recent.prompts.buckets] == [3, 5, 5], "five users and one canary"
    assert [count for _, count in recent.outputs.buckets] == [3, 5, 5]
    assert all("prompt_length" not in each.histograms for _, each in state.user_history)
