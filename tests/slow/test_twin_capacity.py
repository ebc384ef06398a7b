"""The twin's capacity, whatever the server, the objectives and the first guess."""

import time
from dataclasses import replace

import pytest
from simulated_servers import CHAT, FAST, SLOW, WORDY, profile, promise, twin_of, workload

from probe.capacity.model.twin import Twin, find_capacity
from probe.simulator.cost import FrontEnd, StepCost
from probe.simulator.virtual_server import BackgroundTraffic

pytestmark = pytest.mark.long

USUAL = promise(0.5, 0.03)
TWIN = twin_of(profile(FAST), CHAT)


@pytest.mark.parametrize("near_rps", [0.1, 2.0, 300.0])
def test_the_first_guess_does_not_matter(near_rps: float) -> None:
    expected = find_capacity(TWIN, USUAL, 25.0, seeds=(0,), requests=250)
    assert find_capacity(TWIN, USUAL, near_rps, seeds=(0,), requests=250) == pytest.approx(expected, rel=0.02)


def test_a_server_slower_than_its_twin_has_less() -> None:
    bare = find_capacity(TWIN, USUAL, 20.0, seeds=(0,), requests=600)
    assert find_capacity(TWIN, USUAL, 20.0, correction={"tpot": 1.3}, seeds=(0,), requests=600) < 0.9 * bare


@pytest.mark.parametrize("objectives", [promise(0.5, None), promise(None, 0.03), promise(0.5, 0.03)])
def test_one_objective_is_enough(objectives: object) -> None:
    assert 5 < find_capacity(TWIN, objectives, 10.0, seeds=(0,), requests=500) < 100  # type: ignore[arg-type]


def test_a_twin_that_holds_no_rate_at_all_ends_soon() -> None:
    begun = time.process_time()
    assert find_capacity(TWIN, promise(0.001, 0.03), 10.0, requests=500) == 0.0
    assert find_capacity(twin_of(profile(SLOW), CHAT), promise(10.0, 0.001), 1.0, requests=500) == 0.0
    assert time.process_time() - begun < 20


def test_an_objective_that_nothing_breaks_ends_soon_and_far_above_the_guess() -> None:
    free = replace(TWIN, cost=StepCost(0.0, 0.0, 0.0), noise_ratio=0.0)
    begun = time.process_time()
    assert find_capacity(free, USUAL, 2.0, requests=500) > 400 * 2.0
    assert time.process_time() - begun < 30


@pytest.mark.parametrize(
    "twin",
    [
        twin_of(profile(WORDY, chunk=512), workload(3000, 60, 0.4)),  # prompts of several chunks
        twin_of(profile(FAST, kv_tokens=8000), CHAT),  # preempts
        replace(TWIN, kv_tokens=1e12),
        replace(TWIN, kv_tokens=1.0),  # no room for one request: as much as that takes
        replace(TWIN, max_num_seqs=1),
        replace(TWIN, chunk_tokens=16, max_num_seqs=8),
        replace(TWIN, engines=3),
        replace(TWIN, accepted_tokens=1.5),
        replace(TWIN, prefix_caching=True, workload=replace(CHAT, shared_tokens=10_000)),
        replace(TWIN, front_end=FrontEnd(per_request_s=0.1, per_prompt_token_s=1e-6)),
        replace(TWIN, live=BackgroundTraffic(1e-9, CHAT)),
    ],
)
def test_odd_servers_have_a_capacity(twin: Twin) -> None:
    found = find_capacity(twin, promise(2.0, 0.2), 5.0, seeds=(0,), requests=80)
    assert 0 < found < 400
