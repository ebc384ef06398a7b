"""The limit that a server was built to have is the one that is named."""

from dataclasses import replace

import pytest
from simulated_servers import CHAT, FAST, SLOW, WORDY, profile, promise, twin_of, workload

from probe.capacity.model.bottleneck import BOTTLENECKS, CLIENT, find_bottleneck
from probe.capacity.model.twin import Twin, find_capacity
from probe.core.objectives import Objectives
from probe.simulator.cost import FrontEnd, StepCost

pytestmark = pytest.mark.long

HOSTLY = StepCost(0.015, 2e-4, 1e-6, 0.001, 1e-9)

BUILT: dict[str, tuple[Twin, Objectives]] = {
    "max_num_seqs": (twin_of(profile(FAST, max_num_seqs=12), CHAT), promise(0.5, 0.1)),
    "kv_cache": (twin_of(profile(FAST, kv_tokens=8000), CHAT), promise(0.5, 0.1)),
    "front_end": (
        twin_of(profile(replace(FAST, weights_s=0.002), front_end=FrontEnd(per_request_s=0.08)), CHAT),
        promise(0.5, 0.1),
    ),
    "prefill": (twin_of(profile(WORDY), workload(1500, 30, 0.4)), promise(3.0, 0.5)),
    "memory_bandwidth": (twin_of(profile(SLOW), workload(60, 300)), promise(1.0, 0.075)),
    "host": (twin_of(profile(HOSTLY), workload(60, 300)), promise(0.5, 0.03)),
}


@pytest.mark.parametrize("name", BUILT)
def test_the_bottleneck_that_a_server_was_built_with_is_named(name: str) -> None:
    twin, objectives = BUILT[name]
    near = find_capacity(twin, objectives, 5.0, seeds=(0,), requests=220)
    found = find_bottleneck(twin, objectives, {}, near, requests=220)
    assert found.name == name
    assert found.gain == found.gains[name] == max(found.gains.values())
    assert found.advice


def test_every_name_has_its_advice_and_the_client_is_no_server_s() -> None:
    assert set(BUILT) == set(BOTTLENECKS) - {CLIENT}
