"""Totals of several processes' counters: they never fall, and grow by what was counted while it was read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.snapshot import Histogram, ServerSnapshot
from probe.observe.counted_totals import CountedTotals, by_engine
from probe.scrape.engines import parse
from probe.scrape.replicas import merged

S = 10**9
INF = float("inf")
A, B, C = "a:8000", "b:8000", "c:8000"
OLD_S, NEW_S = 1_700_000_000.0, 1_700_009_000.0


def page(tokens: float, at_s: float = 0.0, started_s: float | None = OLD_S, **more: float) -> ServerSnapshot:
    """Return a replica's page with as many tokens, and as many samples of TTFT: half of them within 100 ms."""
    ttft = Histogram(((0.1, tokens // 2), (1.0, tokens), (INF, tokens)), tokens / 10)
    return ServerSnapshot(
        round(at_s * S), OLD_S + at_s, started_s=started_s, generation_tokens=tokens, others=more,
        histograms={"ttft": ttft},
    )  # fmt: skip


def exported(scrapes: Sequence[Mapping[str, ServerSnapshot]]) -> list[tuple[float, tuple[float, ...]]]:
    """Return tokens and the counts of TTFT at each scrape of the replicas."""
    totals = CountedTotals()
    found = [totals.add(merged(replicas)) for replicas in scrapes]
    return [(one.generation_tokens or 0.0, tuple(n for _, n in one.histograms["ttft"].buckets)) for one in found]


def tokens(scrapes: Sequence[Mapping[str, ServerSnapshot]]) -> list[float]:
    return [count for count, _ in exported(scrapes)]


@pytest.mark.parametrize("started_s", [NEW_S, OLD_S, None])
def test_a_replica_that_restarts_counts_from_zero(started_s: float | None) -> None:
    """By its start time, or by the fall: a page may have no start time, and a process may count anew."""
    first = {A: page(5e8, 0), B: page(4e8, 0, OLD_S if started_s else None)}
    second = {A: page(5e8 + 1000, 15), B: page(300, 15, started_s)}
    assert exported([first, second]) == [(0, (0, 0, 0)), (1300, (650, 1300, 1300))]


def test_a_restarted_replica_that_has_counted_more_than_before_counts_from_zero_by_its_start_time() -> None:
    assert tokens([{A: page(10, 0), B: page(20, 0)}, {A: page(10, 60), B: page(500, 60, NEW_S)}]) == [0, 500]


def test_a_replica_that_goes_leaves_what_it_counted_and_one_that_comes_brings_nothing() -> None:
    scrapes = [
        {A: page(1000, 0), B: page(7e8, 0)},
        {A: page(1010, 15), B: page(7e8 + 5, 15)},
        {A: page(1020, 30)},
        {A: page(1030, 45), C: page(3e8, 45)},
        {A: page(1040, 60), C: page(3e8 + 7, 60)},
    ]
    assert tokens(scrapes) == [0, 15, 25, 35, 52]


@pytest.mark.parametrize(("away_s", "lost"), [(60, 0), (600, 90)])
def test_a_replica_that_is_back_soon_counts_on_and_after_long_from_its_page(away_s: float, lost: float) -> None:
    scrapes = [
        {A: page(0, 0), B: page(1000, 0)},
        {A: page(0, 15)},
        {A: page(0, away_s - 15)},
        {A: page(0, away_s), B: page(1090, away_s)},
    ]
    assert tokens(scrapes)[-1] == 90 - lost


def test_a_replica_at_another_address_counts_from_its_page() -> None:
    assert tokens([{A: page(5, 0), B: page(900, 0)}, {A: page(6, 15), C: page(950, 15)}]) == [0, 1]


def test_a_set_that_restarts_as_a_whole_counts_on() -> None:
    scrapes = [
        {A: page(1000, 0), B: page(1000, 0)},
        {A: page(1100, 15), B: page(1100, 15)},
        {A: page(5, 90, NEW_S), B: page(7, 90, NEW_S)},
        {C: page(3, 180, NEW_S)},
        {C: page(5, 195, NEW_S)},
    ]
    assert tokens(scrapes) == [0, 200, 212, 212, 214]


def test_an_older_process_at_the_address_is_another_one_and_not_a_restart() -> None:
    """As behind a load balancer among metrics_urls, whose page is now one server's and now another's."""
    one, other = page(1e6, 0, NEW_S), page(7e6, 15, OLD_S)
    assert tokens([{A: one}, {A: other}, {A: page(1e6 + 5, 30, NEW_S)}, {A: page(7e6 + 1, 45, OLD_S)}]) == [0, 0, 5, 6]
    long_there = page(7e6, 20_000, NEW_S)
    assert tokens([{A: page(1e6, 19_985)}, {A: long_there}]) == [0, 0]


def test_a_new_kneewatch_begins_at_zero_which_no_rate_counts() -> None:
    """It does not know what replicas that are gone had counted, nor what those that came had counted before."""
    assert tokens([{A: page(5e8, 0), B: page(4e8, 0)}]) == [0]


def test_the_counters_of_a_single_server_are_its_own_and_a_restart_is_a_reset() -> None:
    totals = CountedTotals()
    for one in (page(5e8, 0), page(20, 15, NEW_S), page(30, 30, NEW_S)):
        assert totals.add(one) is one


def test_a_value_that_appears_with_its_first_event_was_zero_and_any_other_may_be_old() -> None:
    totals = CountedTotals()
    totals.add(merged({A: page(0, 0), B: page(0, 0)}))
    found = totals.add(merged({A: page(0, 15, corrupted=2, drafts=900), B: page(0, 15, drafts=900)}))
    assert (found.value("corrupted"), found.value("drafts")) == (2, 0)
    assert totals.add(merged({B: page(0, 30)})).value("corrupted") == 2  # although no page has it any more


def test_finished_requests_of_a_replica_that_has_gone_stay_counted() -> None:
    def one(at_s: float, **finished: float) -> ServerSnapshot:
        return replace(page(0, at_s), finished=finished)

    totals = CountedTotals()
    totals.add(merged({A: one(0, stop=10), B: one(0, stop=20, abort=1)}))
    assert totals.add(merged({A: one(15, stop=13), B: one(15, stop=21, abort=3)})).finished == {"stop": 4, "abort": 2}
    assert totals.add(merged({A: one(30, stop=14)})).finished == {"stop": 5, "abort": 2}


def test_of_replicas_with_other_buckets_no_count_falls_and_none_is_better_than_it_was() -> None:
    """A rolling update may change the buckets."""

    def one(at_s: float, started_s: float, *buckets: tuple[float, float]) -> ServerSnapshot:
        histogram = Histogram((*buckets, (INF, buckets[-1][1])), 1.0)
        return replace(page(0, at_s, started_s), histograms={"ttft": histogram})

    totals = CountedTotals()
    scrapes = (
        {A: one(0, OLD_S, (0.1, 0), (1, 0)), B: one(0, OLD_S, (0.1, 0), (1, 0))},
        {A: one(15, OLD_S, (0.1, 4), (1, 9)), B: one(15, OLD_S, (0.1, 0), (1, 0))},
        {A: one(30, OLD_S, (0.1, 5), (1, 9)), B: one(9000, NEW_S, (0.1, 1), (0.5, 2), (1, 3))},
        {A: one(9015, NEW_S, (0.1, 0), (0.5, 6), (1, 6)), B: one(9015, NEW_S, (0.1, 1), (0.5, 2), (1, 3))},
    )
    found = [dict(totals.add(merged(replicas)).histograms["ttft"].buckets) for replicas in scrapes]
    assert found == [
        {0.1: 0, 1: 0, INF: 0},
        {0.1: 4, 1: 9, INF: 9},
        {0.1: 6, 1: 12, INF: 12},
        {0.1: 6, 0.5: 13, 1: 18, INF: 18},  # the four within 0.5 s before it was a bound are only known as within 0.1
    ]


def engines_page(*counts: tuple[str, int]) -> ServerSnapshot:
    lines = "".join(
        f'vllm:num_requests_running{{model_name="m",engine="{engine}"}} 1\n'
        f'vllm:generation_tokens_total{{model_name="m",engine="{engine}"}} {count}\n'
        f'vllm:time_to_first_token_seconds_bucket{{model_name="m",engine="{engine}",le="1.0"}} {count}\n'
        f'vllm:time_to_first_token_seconds_bucket{{model_name="m",engine="{engine}",le="+Inf"}} {count}\n'
        f'vllm:time_to_first_token_seconds_sum{{model_name="m",engine="{engine}"}} {count}\n'
        for engine, count in counts
    )
    return parse(lines + f"process_start_time_seconds {OLD_S}\n", 0, OLD_S)


def test_an_engine_on_a_page_that_restarts_goes_or_comes_is_as_a_replica() -> None:
    totals = CountedTotals()
    pages = [
        [("0", 5000), ("1", 9000)],
        [("0", 5010), ("1", 9010)],
        [("0", 5020), ("1", 4)],  # restarts
        [("0", 5030)],  # scaled down
        [("0", 5040)],
        [("0", 5050), ("2", 7000)],  # another comes
        [("0", 5060), ("2", 7001)],
    ]
    found = [totals.add(engines_page(*each)) for each in pages]
    # A page with one engine is read as a whole, and then as another one: what the change hides is not counted.
    assert [one.generation_tokens for one in found] == [0, 20, 34, 34, 44, 44, 55]
    assert [one.histograms["ttft"].count for one in found] == [0, 20, 34, 34, 44, 44, 55]


def test_a_server_that_gets_a_second_engine_counts_on_from_its_page() -> None:
    totals = CountedTotals()
    found = [totals.add(engines_page(*each)) for each in ([("0", 500)], [("0", 3), ("1", 2)], [("0", 5), ("1", 2)])]
    assert [one.generation_tokens for one in found] == [500, 500, 502]


def test_engines_of_replicas_are_apart_with_the_names_of_their_gauges() -> None:
    both = merged({A: engines_page(("0", 1), ("1", 2)), B: engines_page(("0", 3))})
    counts = {name: one.generation_tokens for name, one in by_engine(both)}
    assert counts == {f"{A}/0": 1, f"{A}/1": 2, B: 3}
    assert both.by_engine.keys() == counts.keys()


@st.composite
def _histories(draw: st.DrawFn) -> list[dict[str, ServerSnapshot]]:
    """Draw scrapes of three replicas that come, go, restart and grow."""
    scrapes: list[dict[str, ServerSnapshot]] = []
    state = {name: (draw(st.integers(0, 10**9)), OLD_S) for name in (A, B, C)}
    for i in range(draw(st.integers(2, 12))):
        for name, (count, started_s) in state.items():
            grown = draw(st.integers(0, 50))
            restarts = draw(st.integers(0, 4)) == 0
            state[name] = (grown, OLD_S + 15 * i - 1) if restarts and i else (count + grown, started_s)
        there = draw(st.sets(st.sampled_from((A, B, C)), min_size=1))
        scrapes.append({name: page(state[name][0], 15 * i, state[name][1]) for name in sorted(there)})
    return scrapes


@given(_histories())
def test_no_total_falls_and_none_grows_by_more_than_was_counted(scrapes: list[dict[str, ServerSnapshot]]) -> None:
    found = exported(scrapes)
    for (was, counts), (now, later) in pairwise(found):
        assert was <= now
        assert all(a <= b for a, b in zip(counts, later, strict=True))
        assert list(later) == sorted(later)
    assert found[-1][0] <= 3 * 50 * len(scrapes)
