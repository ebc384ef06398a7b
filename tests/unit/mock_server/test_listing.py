from dataclasses import replace

import pytest

from probe.mock_server.listing import main_cost, max_running, table
from probe.mock_server.profiles import PROFILES
from probe.simulator.cost import FrontEnd, StepCost

BASE = PROFILES["8b-a100"]


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("seats-16", (16, "max_num_seqs")),
        ("kv-tight", (42, "KV cache")),
        ("small-kv", (2, "KV cache")),
        ("tiny", (8, "max_num_seqs")),
    ],
)
def test_max_num_seqs_or_blocks_limit_how_many_run_together(name: str, limit: tuple[int, str]) -> None:
    assert max_running(PROFILES[name]) == limit


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"cost": StepCost(0.1, 0.0, 1e-6)}, "host"),
        ({"cost": StepCost(0.001, 1e-3, 1e-6)}, "host"),
        ({"cost": StepCost(0.001, 0.0, 1e-6, weights_s=0.1)}, "weights"),
        ({"cost": StepCost(0.001, 0.0, 1e-6, per_kv_token_s=1e-5)}, "KV cache"),
        ({"cost": StepCost(0.001, 0.0, 1e-3)}, "compute"),
        ({"cost": StepCost(0.001, 0.0, 1e-6, per_pair_s=1e-5)}, "attention"),
        ({"front_end": FrontEnd(per_request_s=1.0)}, "front end"),
        ({"front_end": FrontEnd(per_output_token_s=0.01)}, "front end"),
    ],
)
def test_the_largest_part_of_a_full_step_is_named(changes: dict[str, StepCost | FrontEnd], part: str) -> None:
    assert main_cost(replace(BASE, **changes), 64) == part  # type: ignore[arg-type]


def test_a_request_alone_takes_what_its_steps_take() -> None:
    profile = replace(BASE, cost=StepCost(0.01, 0.0, 0.0), max_num_batched_tokens=256, front_end=FrontEnd(0.1, 1e-3))
    (row,) = [line for line in table([profile]).splitlines() if line.startswith(profile.name)]
    assert row.split()[1:5] == ["520", "ms", "10.0", "ms"]  # front end 0.1 + 0.4, two chunks of 10 ms
