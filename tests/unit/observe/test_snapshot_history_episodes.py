"""Episodes by regime: few of each, and those of rare regimes outlive the usual ones."""

from dataclasses import replace

import pytest
from example_records import snapshot
from hypothesis import given
from hypothesis import strategies as st

from probe.core.snapshot import ServerSnapshot
from probe.observe.snapshot_history import Episode, Episodes, Regime, regime_of

MINUTE = 60 * 10**9
regimes = st.builds(Regime, st.integers(0, 12), st.integers(0, 3), st.integers(0, 3))


def _kept(*added: Regime) -> list[Episode]:
    episodes = Episodes()
    for number, regime in enumerate(added):
        episodes.add(Episode(number, 2 * number * MINUTE, regime, (b"",)))
    return episodes.kept


def test_of_each_regime_the_newest_four_are_kept() -> None:
    usual, rare = Regime(4, 0, 2), Regime(12, 2, 2)
    kept = _kept(rare, *[usual] * 20)
    assert [each.number for each in kept] == [0, 17, 18, 19, 20]


@given(st.lists(regimes, max_size=200))
def test_they_are_bounded_in_order_and_the_highest_level_of_three_days_is_among_them(added: list[Regime]) -> None:
    kept = _kept(*added)
    assert len(kept) <= 24
    assert [each.number for each in kept] == sorted(each.number for each in kept)
    assert {each.regime.level for each in kept} == {each.level for each in added}


def test_three_days_later_they_are_gone() -> None:
    episodes = Episodes()
    episodes.add(Episode(0, 0, Regime(12, 2, 2), (b"",)))
    episodes.drop_old(72 * 60 * MINUTE)
    assert len(episodes.kept) == 1
    episodes.drop_old(72 * 60 * MINUTE + 1)
    assert episodes.kept == []


def _episode(running: float, kv: float, prompt: float, generated: float) -> list[ServerSnapshot]:
    busy = {"running": running, "kv_cache_usage": kv}
    return [
        snapshot(**busy, prompt_tokens=5.0, generation_tokens=7.0),
        snapshot(**busy, prompt_tokens=5.0 + prompt, generation_tokens=7.0 + generated),
    ]


@pytest.mark.parametrize(
    ("episode", "regime"),
    [
        (_episode(1.0, 0.0, 0.0, 10.0), Regime(0, 0, 0)),
        (_episode(80.0, 0.6, 60.0, 40.0), Regime(13, 2, 2)),
        (_episode(40.0, 1.0, 100.0, 0.0), Regime(11, 3, 3)),
        (_episode(40.0, float("nan"), 100.0, 0.0), Regime(11, 0, 3)),
        (_episode(0.5, 0.0, 60.0, 40.0), None),
        (_episode(float("nan"), 0.0, 60.0, 40.0), None),
        (_episode(4.0, 0.0, 0.0, 0.0), None),
    ],
    ids=["least", "peak", "prompts", "cache unknown", "idle", "running unknown", "nothing done"],
)
def test_a_regime_is_requests_running_cache_and_share_of_prompts(
    episode: list[ServerSnapshot], regime: Regime | None
) -> None:
    assert regime_of(episode) == regime


def test_without_a_count_of_tokens_there_is_no_regime() -> None:
    one, other = _episode(80.0, 0.6, 60.0, 40.0)
    assert regime_of([one, replace(other, prompt_tokens=None)]) is None
