"""What is understood of a server, from snapshots of its metrics."""

import math
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_servers import CHAT, FAST, polled, profile, restarted, watched, without, workload

from probe.capacity.model import server_model
from probe.capacity.model.lengths import prompt_lengths
from probe.capacity.model.server_model import Hints, ServerModel, engine_shares
from probe.capacity.model.twin import UNLIMITED_SEQS, Twin
from probe.core.snapshot import EngineSnapshot, Histogram, ServerSnapshot
from probe.core.step import TrafficBeside
from probe.core.token_length import mean_length
from probe.core.workload import LognormalLength, Workload, lengths
from probe.observe.user_load import users_beside
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

pytestmark = pytest.mark.slow

KNOWN = profile(FAST)
BUSY = watched(KNOWN, CHAT, 12.0, 90.0)


def model(snapshots: list[ServerSnapshot], asked: Workload = CHAT, hints: Hints | None = None) -> ServerModel:
    found = ServerModel(asked, hints or Hints())
    found.learn_live(snapshots, TrafficBeside(users_beside((), snapshots)))
    return found


def fitted(seen: ServerModel) -> Twin | None:
    fit = seen.fit()
    return fit.twin if fit is not None else None


def test_a_twin_of_a_watched_server() -> None:
    fit = model(BUSY).fit()
    assert fit is not None
    twin = fit.twin
    assert twin.cost == fit.cost_model.cost
    assert twin.kv_tokens == 400_000
    assert (twin.engines, twin.accepted_tokens, twin.prefix_caching) == (1, 0.0, False)
    assert (twin.max_num_seqs, twin.chunk_tokens) == (UNLIMITED_SEQS, 2048)


def test_a_page_with_a_wrong_size_changes_neither_the_cache_nor_what_its_tokens_cost() -> None:
    """Usage times seven times the size would be seven times the tokens, each at a seventh of the cost."""
    known = profile(replace(FAST, per_kv_token_s=1e-6), kv_tokens=20_000)
    right = watched(known, CHAT, 8.0, 90.0)
    wrong = [replace(one, kv_cache_tokens=7 * (one.kv_cache_tokens or 0.0)) for one in right]
    seen, found = fitted(model(right)), fitted(model(wrong))
    assert seen is not None
    assert found is not None
    assert (seen.kv_tokens, found.kv_tokens) == (20_000, pytest.approx(20_000, rel=0.05))
    assert found.cost.per_kv_token_s == pytest.approx(seen.cost.per_kv_token_s, rel=0.1)


def test_before_there_is_traffic_a_search_takes_the_server_s_figure_and_a_forecast_what_is_certain() -> None:
    """By what is certain of a hybrid model's cache, hardly two requests of 500 tokens fit, and none would be tried."""
    sizes = {"kv_block_tokens": 41_600.0, "kv_longest_requests": 1.68}
    seen = ServerModel(CHAT, Hints())
    seen.learn([replace(BUSY[0], kv_cache_tokens=6888.0, others=sizes)])
    assert seen.kv_tokens == 6888
    assert seen.guessed_twin(FAST).kv_tokens == 6888
    assert seen.kv_size is not None
    assert seen.kv_size.tokens < 2000


def test_the_twin_s_cache_has_the_server_s_blocks() -> None:
    """A request wastes half a block: with blocks of 128 tokens that is a fifth of the memory of short requests."""
    coarse = watched(replace(KNOWN, block_size=128, num_blocks=513), CHAT, 12.0, 30.0)
    found = fitted(model(coarse))
    assert found is not None
    assert (found.block_size, found.kv_tokens) == (128, 65_536)
    assert (found.profile().block_size, found.profile().usable_blocks) == (128, 512)


@pytest.mark.parametrize("stated", ["", "None", "0", "-16", "1e9", "9" * 400])
def test_a_block_size_that_is_none_is_the_usual_one(stated: str) -> None:
    bare = ServerModel(CHAT, Hints())
    bare.learn([replace(BUSY[0], flags={"block_size": stated})])
    assert bare.block_size == 16


def test_the_live_rate_is_that_of_first_tokens() -> None:
    assert model(BUSY).live_rps == pytest.approx(12.0, rel=0.2)


def test_another_look_at_the_live_rate_counts_by_its_length() -> None:
    seen = model(BUSY)
    before = seen.live_rps
    seen.update_live_rate(before + 3.0, 45.0)
    assert seen.live_rps == pytest.approx(before + 1.0)
    seen.update_live_rate(1000.0, 0.0)
    assert seen.live_rps == pytest.approx(before + 1.0)


def test_before_anything_is_seen_there_is_no_twin() -> None:
    bare = ServerModel(CHAT, Hints())
    assert (fitted(bare), bare.parts, bare.live_rps, bare.has_other_live_lengths) == (None, 0, 0.0, False)
    for snapshots in ([], BUSY[:1], [BUSY[0], BUSY[0]], watched(KNOWN, CHAT, 0.0, 20.0)):
        seen = model(snapshots)
        assert (fitted(seen), seen.live_rps) == (None, 0.0)


def test_a_restart_while_watching_leaves_the_live_rate_unknown() -> None:
    late = restarted(BUSY, 20)
    assert late[-1].histograms["ttft"].count > late[0].histograms["ttft"].count  # the ends alone would not show it
    assert model(late).live_rps == 0.0


def test_a_snapshot_without_the_counter_does_not_hide_the_live_rate_of_the_others() -> None:
    assert model([without(BUSY[0], "ttft"), *BUSY[1:]]).live_rps == model(BUSY[1:]).live_rps > 0


def test_a_part_can_be_left_out() -> None:
    seen = ServerModel(CHAT, Hints())
    for begin in range(0, 90, 30):
        seen.learn(BUSY[begin : begin + 31])
    whole = seen.fit()
    part = seen.twin(whole, without=1)
    assert seen.parts == 3
    assert whole is not None
    assert part is not None
    assert part.cost != whole.twin.cost
    assert ServerModel(CHAT, Hints()).twin(None, without=0) is None


def test_a_variant_depends_on_the_fit_that_it_is_given_and_on_no_call_before() -> None:
    seen = model(BUSY)
    fit = seen.fit()
    assert fit is not None
    before = seen.twin(fit, chunk_tokens=512)
    biased = replace(fit, bias=(0.0, 0.0, fit.cost_model.cost.per_token_s, 0.0, 0.0, 0.0))
    assert seen.twin(biased, chunk_tokens=512) != before
    seen.fit()
    assert seen.twin(fit, chunk_tokens=512) == before


def test_live_users_of_the_same_lengths_do_not_differ() -> None:
    assert not model(BUSY).has_other_live_lengths
    assert model(BUSY).live == BackgroundTraffic(model(BUSY).live_rps, CHAT)


def test_live_users_of_other_lengths_do() -> None:
    heavy = workload(2000, 300, 0.3)
    seen = model(watched(KNOWN, heavy, 3.0, 120.0))
    assert seen.has_other_live_lengths
    live = seen.live.workload
    assert mean_length(live.prompt_tokens) == pytest.approx(mean_length(heavy.prompt_tokens), rel=0.1)
    assert mean_length(live.output_tokens) == pytest.approx(mean_length(heavy.output_tokens), rel=0.15)


def test_too_few_requests_give_no_lengths() -> None:
    assert not model(watched(KNOWN, workload(2000, 300), 0.05, 100.0)).has_other_live_lengths


def test_max_num_seqs_shows_when_requests_wait_with_memory_free() -> None:
    crowd = polled(VirtualServer(profile(FAST, max_num_seqs=16), users=BackgroundTraffic(20.0, CHAT)), 30.0)
    assert model(crowd).max_num_seqs == 16
    assert model(crowd, hints=Hints(max_num_seqs=99)).max_num_seqs == 99
    assert model(BUSY).max_num_seqs is None
    no_gauges = [replace(r, running=None, waiting=None) for r in crowd]
    assert model(no_gauges).max_num_seqs is None


def test_a_pulse_shows_max_num_seqs_where_all_that_may_run_do() -> None:
    """Sixteen at once show nothing by themselves, and are no evidence against it afterwards."""
    server, seen = VirtualServer(profile(FAST, max_num_seqs=16)), model([])
    for size, known in ((16, None), (40, 16)):
        for _ in range(size):
            server.submit(server.now_s, 100, 400)
        begin_s = server.now_s
        snapshots = []
        for i in range(5):
            server.advance(begin_s + 0.5 * i)
            snapshots.append(server.snapshot())
        server.advance(begin_s + 60.0)
        seen.learn_limits(snapshots)
        assert seen.max_num_seqs == known


def test_max_num_seqs_holds_for_each_of_several_engines() -> None:
    two = VirtualServer(profile(FAST, max_num_seqs=16), users=BackgroundTraffic(40.0, CHAT), shares=(0.5, 0.5))
    seen = model(polled(two, 40.0))
    assert seen.max_num_seqs == pytest.approx(16, abs=1)
    twin = fitted(seen)
    assert twin is not None
    assert twin.engines == 2


def test_requests_that_wait_for_memory_do_not_show_max_num_seqs() -> None:
    full = polled(VirtualServer(profile(FAST, kv_tokens=8000), users=BackgroundTraffic(20.0, CHAT)), 20.0)
    assert model(full).max_num_seqs is None


def test_speculation_shows_in_tokens_that_come_together() -> None:
    quick = VirtualServer(KNOWN, users=BackgroundTraffic(12.0, CHAT), accepted_tokens=1.0)
    twin = fitted(model(polled(quick, 60.0)))
    assert twin is not None
    assert twin.accepted_tokens == pytest.approx(1.0, abs=0.2)


def test_a_prefix_cache_shows_by_its_hits() -> None:
    shared = replace(workload(1000, 100, 0.3), shared_tokens=600)
    server = VirtualServer(replace(KNOWN, prefix_caching=True), users=BackgroundTraffic(10.0, shared))
    twin = fitted(model(polled(server, 60.0), shared))
    assert twin is not None
    assert twin.prefix_caching


def test_an_unknown_cache_size_is_no_limit() -> None:
    twin = fitted(model([replace(r, kv_cache_tokens=None) for r in BUSY]))
    assert twin is not None
    assert twin.kv_tokens >= 1e9
    assert twin.cost.per_kv_token_s == 0.0


def test_answers_of_one_token_decode_nothing() -> None:
    assert fitted(model(watched(KNOWN, workload(300, 1, 0), 10.0, 30.0))) is None


@pytest.mark.parametrize(
    "asked", [CHAT, workload(300, 20, 0), Workload("w", CHAT.api, LognormalLength(500, 1.2, 900), 1)]
)
def test_the_mean_of_lengths(asked: Workload) -> None:
    drawn = fmean(prompt for prompt, _, _ in islice(lengths(asked), 20_000))
    assert mean_length(asked.prompt_tokens) == pytest.approx(drawn, rel=0.02)


def test_a_spread_of_nothing_is_one_length() -> None:
    assert mean_length(LognormalLength(100, 0.0, 80)) == 80.0


@given(st.integers(1, 10_000), st.floats(0.0, 1.5), st.integers(1, 20_000), st.integers(0, 12_000), st.floats(0, 1))
def test_prompt_lengths_are_ordered_and_above_zero(
    median: int, sigma: float, maximum: int, shared: int, cached: float
) -> None:
    for prompt in (median, LognormalLength(median, sigma, maximum)):
        found = prompt_lengths(Workload("w", CHAT.api, prompt, 10, shared), cached_ratio=cached)
        assert found == sorted(found)
        assert 1 <= found[0] <= found[-1] <= max(median, maximum)


def _engines(made: tuple[float, ...], prompts: float) -> list[ServerSnapshot]:
    def snapshot(tokens: tuple[float, ...]) -> dict[str, EngineSnapshot]:
        return {str(i): EngineSnapshot(generation_tokens=made) for i, made in enumerate(tokens)}

    first = ServerSnapshot(
        at_ns=0, wall_s=0.0, engines=len(made), by_engine=snapshot((0.0,) * len(made)),
        histograms={"ttft": Histogram(((math.inf, 0.0),), 0.0)},
    )  # fmt: skip
    last = replace(
        first, at_ns=10**9, by_engine=snapshot(made), histograms={"ttft": Histogram(((math.inf, prompts),), 1.0)}
    )
    return [first, last]


def test_engines_with_different_shares_are_distinguished() -> None:
    assert engine_shares(_engines((6000.0, 4000.0), 1000)) == pytest.approx((0.6, 0.4), abs=0.01)


def test_a_difference_that_chance_makes_is_none() -> None:
    assert engine_shares(_engines((5200.0, 4800.0), 100)) == ()
    assert engine_shares(_engines((5000.0, 5000.0), 100)) == ()


def test_engines_that_nothing_is_known_of_are_alike() -> None:
    assert engine_shares([]) == ()
    assert engine_shares(BUSY) == ()
    first, last = _engines((6000.0, 4000.0), 1000)
    assert engine_shares([last, first]) == (), "they were restarted"
    _, three = _engines((1.0, 2.0, 3.0), 1000)
    assert engine_shares([first, three]) == (), "one was added"
    silent = dict.fromkeys(last.by_engine, EngineSnapshot(running=1.0))
    assert engine_shares([replace(first, by_engine=silent), replace(last, by_engine=silent)]) == (), "none tells tokens"


def test_shares_are_those_of_each_engine_whatever_the_order_on_the_page() -> None:
    first, last = _engines((6000.0, 4000.0), 1000)
    turned = replace(last, by_engine=dict(reversed(last.by_engine.items())))
    assert engine_shares([first, turned]) == engine_shares([first, last])


def test_shares_seen_on_a_server_are_those_it_gives() -> None:
    server = VirtualServer(KNOWN, seed=3, users=BackgroundTraffic(20.0, CHAT), shares=(0.65, 0.35))
    found = engine_shares(polled(server, 120.0))
    assert found == pytest.approx((0.65, 0.35), abs=0.05)


def test_the_bias_of_a_fit_is_corrected_after_load_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on how widely the lengths of requests spread: that is not known of users, whatever their means."""
    token_s = 1e-6
    monkeypatch.setattr(server_model, "estimate_bias", lambda *_: (0.0, 0.0, token_s, 0.0, 0.0, 0.0))
    seen = model(BUSY)
    before = fitted(seen)
    seen.learn([], of_load=True)
    after = fitted(seen)
    assert before is not None
    assert after is not None
    assert before.cost.per_token_s - after.cost.per_token_s == pytest.approx(token_s)


def test_a_load_has_the_lengths_of_its_workload_whatever_their_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine chats to one document: a few documents more, by chance, make another mean, but no other mixture."""
    found: list[Workload] = []

    def bias(*given: Any) -> tuple[float, ...]:
        found.extend(map(given[3], range(3)))
        return (0.0,) * 6

    monkeypatch.setattr(server_model, "estimate_bias", bias)
    other = watched(KNOWN, workload(2000, 300, 0.3), 3.0, 60.0)
    seen = model(BUSY)
    seen.learn(other, of_load=True)
    seen.learn(other)
    fitted(seen)
    assert found[:2] == [CHAT, CHAT]
    assert mean_length(found[2].prompt_tokens) > 1000
