"""Users' latency objectives by what Kneewatch exports, against the true values of simulated hours."""

from collections import Counter

import pytest

from benchmarks import user_latency
from benchmarks.user_latency import CANARIES_S, DISTANCES_S, MIXES, OBJECTIVES, Case, hour, outcomes

AT_BOUNDS = [each for each in OBJECTIVES if each[0] in user_latency.TTFT_BOUNDS]


@pytest.mark.slow
@pytest.mark.parametrize("distance_s", DISTANCES_S)
def test_objectives_hold_or_fail_as_by_the_true_values(distance_s: float) -> None:
    found: Counter[str] = Counter()
    for seed, mix in enumerate(mix for mix in MIXES if mix.rps < 5):
        case = Case(mix, distance_s, CANARIES_S[seed % len(CANARIES_S)])
        state, users = hour(case, seed)
        for objective in OBJECTIVES:
            verdict, alerts = outcomes(state, users, *objective)
            assert verdict not in ("kept", "broken"), (case, objective)
            if objective in AT_BOUNDS:
                found[verdict] += 1
                assert alerts == "right"
    assert found["right"] >= 0.95 * found.total()


@pytest.mark.slow
@pytest.mark.parametrize("distance_s", [0.0, 0.1])
def test_what_is_not_known_of_the_way_is_no_reason_to_find_an_objective_kept(distance_s: float) -> None:
    """As through a gateway that holds the head back, and at most with users' requests beside the canaries."""
    for seed, mix in enumerate(mix for mix in MIXES if mix.rps < 1):
        case = Case(mix, distance_s, CANARIES_S[seed % len(CANARIES_S)], known="nothing")
        state, users = hour(case, seed)
        assert not {"kept", "broken"} & {outcomes(state, users, *objective)[0] for objective in OBJECTIVES}
