"""Which engine of several has more than the others, and which are not compared."""

from collections.abc import Callable, Mapping

import pytest
from engine_pages import NOW_S, OLD_S, Engine, ranks, replicas

from probe.core.objectives import Objective, Objectives
from probe.core.snapshot import Imbalance, ServerSnapshot
from probe.observe.engine_balance import EngineBalance

PROMISED = Objectives("o", ttft=Objective(0.95, 0.5), tpot=Objective(0.9, 0.05))
A, B, C, D = "a:8000", "b:8000", "c:8000", "d:8000"


def view(
    engines: Mapping[str, Engine], seconds: float = 300, page: Callable[..., ServerSnapshot] = replicas
) -> Mapping[str, Imbalance]:
    balance = EngineBalance()
    for i in range(int(seconds / 60) + 1):
        balance.add(page(engines, 60.0 * i))
    return balance.view(PROMISED)


EVEN = Engine()


def ratios(found: Mapping[str, Imbalance]) -> dict[str, float]:
    return {reason: round(one.ratio, 3) for reason, one in found.items()}


def test_even_engines_have_a_ratio_of_one() -> None:
    assert ratios(view({A: EVEN, B: EVEN, C: EVEN})) == {"load": 1, "kv_cache": 1, "ttft": 1, "itl": 1}


@pytest.mark.parametrize("page", [replicas, ranks])
@pytest.mark.parametrize(
    ("reason", "busy", "expected"),
    [
        ("load", Engine(running=40, waiting=20), (60, 12, 5)),
        ("kv_cache", Engine(kv=0.96), (0.96, 0.4, 2.4)),
        ("ttft", Engine(ttft=1.6), (1.6, 0.2, 8)),
        ("itl", Engine(itl=0.06), (0.06, 0.02, 3)),
    ],
)
def test_the_engine_with_most_is_named(
    page: Callable[..., ServerSnapshot], reason: str, busy: Engine, expected: tuple[float, float, float]
) -> None:
    others = Engine(kv=0.4)
    found = view({A: others, B: others, C: busy}, page=page)
    assert found[reason].engine == (C if page is replicas else "2")
    assert (found[reason].value, found[reason].others, found[reason].ratio) == pytest.approx(expected)
    assert {name for name, one in found.items() if one.ratio > 1.3} == {reason}


def test_of_two_replicas_each_is_compared_with_the_other() -> None:
    found = view({A: EVEN, B: Engine(running=30)})
    assert (found["load"].engine, found["load"].ratio) == (B, 2.5)


@pytest.mark.parametrize(
    "odd",
    [
        Engine(running=1, tokens=300, started_s=NOW_S - 600),  # cold after a rollout
        Engine(running=0, tokens=0, requests=0, kv=0),  # drained
        Engine(running=60, tokens=3, requests=3, kv=0.96),  # computes prompts only: a token for each
    ],
    ids=["cold", "drained", "prefill"],
)
def test_an_engine_that_differs_by_intention_is_not_compared(odd: Engine) -> None:
    assert ratios(view({A: EVEN, B: EVEN, C: odd})) == {"load": 1, "kv_cache": 1, "ttft": 1, "itl": 1}
    assert view({A: EVEN, B: odd}) == {}, "there is no other one"


def test_decode_servers_are_compared_with_each_other_and_prefill_servers_too() -> None:
    """Short answers: the prefill server's token of each is no small share."""
    prefill, decode = Engine(running=40, tokens=90, fetched=0), Engine(running=10, tokens=400, fetched=3)
    assert ratios(view({A: prefill, B: decode})) == {}
    assert ratios(view({A: prefill, B: decode, C: decode}))["load"] == 1
    found = view({A: prefill, B: decode, C: Engine(running=35, tokens=400, fetched=3)})
    assert (found["load"].engine, found["load"].ratio) == (C, 3.5)


def test_engines_of_one_page_have_one_role_though_one_of_them_counts_the_transfers() -> None:
    found = view({A: Engine(fetched=3), B: Engine(running=30)}, page=ranks)
    assert (found["load"].engine, found["load"].ratio) == ("1", 2.5)


def test_with_little_at_stake_the_ratio_is_one() -> None:
    low = view({A: Engine(running=1, tokens=60, requests=1), B: Engine(running=6, tokens=300, requests=1)})
    assert ratios(low) == {"load": 1, "kv_cache": 1, "ttft": 1, "itl": 1}
    within = view({A: EVEN, B: Engine(ttft=0.49, itl=0.049, kv=0.79)})
    assert ratios(within) == {"load": 1, "kv_cache": 1, "ttft": 1, "itl": 1}


def test_in_an_empty_night_nothing_is_compared() -> None:
    idle = Engine(running=0, tokens=0, requests=0, kv=0)
    assert view({A: idle, B: idle}) == {}


def test_a_few_requests_are_no_mean() -> None:
    assert "ttft" not in view({A: EVEN, B: Engine(requests=0.05, ttft=9)})


def test_a_replica_that_restarts_or_is_away_is_not_compared_until_it_is_old() -> None:
    balance = EngineBalance()
    for i in range(8):
        engines = {A: EVEN, B: EVEN, C: Engine(running=90)}
        if i == 5:
            del engines[C]
        balance.add(replicas(engines, 60.0 * i))
    assert ratios(balance.view(PROMISED))["load"] == 1
    restarted = EngineBalance()
    for i in range(8):
        at_s = 60.0 * i
        started_s = OLD_S if i < 4 else NOW_S + 200
        restarted.add(replicas({A: EVEN, B: EVEN, C: Engine(running=90, started_s=started_s)}, at_s))
    assert ratios(restarted.view(PROMISED))["load"] == 1


def test_a_single_engine_and_a_first_page_say_nothing() -> None:
    assert view({A: EVEN}) == {}
    assert view({A: EVEN, B: Engine(running=60)}, seconds=0) == {}
