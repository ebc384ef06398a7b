"""A knob gains where its setting limits the server, gains nothing where it does not, and is withheld where unknown."""

from dataclasses import asdict, replace

import pytest
from simulated_servers import CHAT, FAST, profile, promise, twin_of, watched

from probe.capacity.model.fitted_twin import stored_twin
from probe.capacity.model.forecast import forecast
from probe.capacity.model.hints import Hints
from probe.capacity.model.knobs import Knob, doubled, doubled_knobs, simulate_knobs
from probe.capacity.model.twin import find_capacity
from probe.core.fitted_server import FittedServer
from probe.simulator.cost import Profile, scaled

pytestmark = pytest.mark.long

OBJECTIVES = promise(0.5, 0.1)
LIMITED = profile(FAST, max_num_seqs=12)
STORED = FittedServer(
    step_cost=asdict(FAST),
    step_costs_without=tuple(asdict(scaled(FAST, factor)) for factor in (0.99, 1.0, 1.01)),
    kv_tokens=float(LIMITED.usable_blocks * LIMITED.block_size),
    max_num_seqs=12,
    max_num_batched_tokens=2048,
    is_chunk_known=True,
    largest_batch=12.0,
)
_FEW = 200  # simulated requests


def _capacity_rps(stored: FittedServer) -> float:
    return find_capacity(stored_twin(stored, CHAT), OBJECTIVES, 5.0, seeds=(0,), requests=_FEW)


def _simulated(stored: FittedServer, near_rps: float) -> list[Knob]:
    return simulate_knobs(stored, CHAT, OBJECTIVES, near_rps, doubled_knobs(stored), requests=_FEW)


def test_the_setting_that_limits_a_server_gains_and_the_others_do_not() -> None:
    found = _simulated(STORED, _capacity_rps(STORED))
    knobs = {knob.name: knob for knob in found}
    assert set(knobs) == {"max_num_seqs", "max_num_batched_tokens", "kv_cache", "memory_bandwidth"}
    seqs, kv = knobs["max_num_seqs"], knobs["kv_cache"]
    assert (seqs.before, seqs.after, seqs.reason) == (12, 24, None)
    assert seqs.gain is not None
    assert seqs.lower is not None
    assert seqs.upper is not None
    assert 0.2 < seqs.lower < seqs.gain < seqs.upper
    assert seqs.upper - seqs.lower > 0.1  # twice as many requests in a step as were measured: an extrapolation
    assert kv.gain == pytest.approx(0.0, abs=0.02)
    assert "reading the weights" in str(knobs["memory_bandwidth"].reason)


def test_an_unknown_setting_and_one_that_the_server_refuses_are_withheld() -> None:
    stored = replace(STORED, kv_tokens=None, is_chunk_known=False)
    knobs = {knob.name: knob for knob in _simulated(stored, _capacity_rps(stored))}
    assert "KV cache" in str(knobs["kv_cache"].reason)
    assert "max_num_batched_tokens is not known" in str(knobs["max_num_batched_tokens"].reason)
    assert knobs["max_num_batched_tokens"].before is None
    many = replace(STORED, max_num_seqs=1500)
    knobs = {knob.name: knob for knob in _simulated(many, _capacity_rps(many))}
    assert knobs["max_num_seqs"].reason == "vLLM would not start: max_num_batched_tokens is 2048"


@pytest.mark.parametrize(
    ("name", "known"), [("max_num_seqs", LIMITED), ("kv_cache", profile(FAST, kv_tokens=8000))], ids=["seqs", "kv"]
)
def test_a_forecast_from_live_traffic_predicts_what_another_setting_gives(name: str, known: Profile) -> None:
    twin = twin_of(known, CHAT)
    before = find_capacity(twin, OBJECTIVES, 5.0, seeds=(0,), requests=1500)
    true_gain = find_capacity(doubled(twin, name), OBJECTIVES, before, seeds=(0,), requests=1500) / before - 1
    hints = Hints(max_num_seqs=known.max_num_seqs, max_num_batched_tokens=known.max_num_batched_tokens)
    found = forecast(watched(known, CHAT, 0.7 * before, 180.0), CHAT, OBJECTIVES, hints, requests=400)
    assert found.fitted_server is not None
    assert found.requests_per_second is not None
    asked = doubled_knobs(found.fitted_server)
    knobs = simulate_knobs(found.fitted_server, CHAT, OBJECTIVES, found.requests_per_second, asked, requests=500)
    gains = {knob.name: (knob.lower, knob.gain, knob.upper) for knob in knobs}
    lower, gain, upper = gains[name]
    assert lower is not None
    assert upper is not None
    assert lower <= true_gain <= upper
    assert gain == pytest.approx(true_gain, abs=0.25)
    other = "kv_cache" if name == "max_num_seqs" else "max_num_seqs"
    assert gains[other][1] == pytest.approx(0.0, abs=0.03)


def test_nothing_is_said_where_the_capacity_is_not_the_models() -> None:
    (first, *_) = _simulated(STORED, 2.0 * _capacity_rps(STORED))
    assert "the model of this server holds" in str(first.reason)
