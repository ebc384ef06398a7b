"""Knobs without a gain say why. Gains of servers of known limits: tests/slow."""

import math
from dataclasses import asdict, replace

import pytest
from simulated_servers import CHAT, FAST, profile, promise, twin_of

from probe.capacity.model.fitted_twin import stored_twin
from probe.capacity.model.knobs import Knob, doubled_knobs, simulate_knobs, withheld_knobs
from probe.core.fitted_server import FittedServer
from probe.observe.kv_size import mean_held
from probe.simulator.cost import scaled

LIMITED = profile(FAST, max_num_seqs=12)
OBJECTIVES = promise(0.5, 0.1)
STORED = FittedServer(
    step_cost=asdict(FAST),
    step_costs_without=tuple(asdict(scaled(FAST, factor)) for factor in (0.99, 1.0, 1.01)),
    kv_tokens=float(LIMITED.usable_blocks * LIMITED.block_size),
    max_num_seqs=12,
    max_num_batched_tokens=2048,
    is_chunk_known=True,
    largest_batch=12.0,
)
_FEW = 60  # simulated requests


def _simulated(stored: FittedServer) -> list[Knob]:
    return simulate_knobs(stored, CHAT, OBJECTIVES, 5.0, doubled_knobs(stored), requests=_FEW)


def test_a_stored_twin_is_the_twin() -> None:
    assert stored_twin(STORED, CHAT) == twin_of(LIMITED, CHAT)


def test_a_longer_request_may_hold_more_beside_its_tokens_and_a_shorter_one_as_much() -> None:
    """Its windows may be full where those of the requests that were seen were not."""
    held = mean_held(CHAT.prompt_tokens, CHAT.output_tokens)
    stored = replace(STORED, request_tokens=1000.0, held_tokens=held)
    assert stored_twin(stored, CHAT).request_tokens == 1000.0
    assert stored_twin(replace(stored, held_tokens=held / 2), CHAT).request_tokens == pytest.approx(2000.0)
    assert stored_twin(replace(stored, held_tokens=held * 2), CHAT).request_tokens == 1000.0
    assert stored_twin(stored, CHAT).profile().request_blocks == 62


def test_no_gain_is_said_where_max_num_seqs_is_not_known() -> None:
    knobs = _simulated(replace(STORED, max_num_seqs=None))
    assert {knob.gain for knob in knobs} == {None}
    assert all("max_num_seqs is not known" in str(knob.reason) for knob in knobs)


def test_no_gain_is_said_where_the_model_rests_on_few_parts() -> None:
    few = replace(STORED, step_costs_without=STORED.step_costs_without[:2])
    assert "too few steps" in str(_simulated(few)[0].reason)


@pytest.mark.fault("TP2")
def test_a_fitted_server_that_no_run_can_have_written_is_refused() -> None:
    for wrong in (
        replace(STORED, engines=0),
        replace(STORED, engines=10**9),
        replace(STORED, engine_shares=(0.5, 0.5)),
        replace(STORED, max_num_seqs=0),
        replace(STORED, max_num_batched_tokens=10**15),
        replace(STORED, kv_tokens=math.nan),
        replace(STORED, accepted_tokens=math.inf),
        replace(STORED, request_tokens=-1.0),
        replace(STORED, held_tokens=math.inf),
        replace(STORED, added_s=-1.0),
        replace(STORED, front_end={"per_request_s": -1.0}),
        replace(STORED, latency_factors={"ttft": math.nan}),
        replace(STORED, step_cost={"x": 1.0}),
    ):
        with pytest.raises((ValueError, TypeError)):
            _simulated(wrong)
    with pytest.raises(ValueError, match="negative"):
        _simulated(replace(STORED, step_cost={**STORED.step_cost, "host_s": -1.0}))


def test_all_knobs_are_withheld_for_one_reason() -> None:
    knobs = withheld_knobs(doubled_knobs(None), "no model")
    assert {(knob.gain, knob.before, knob.reason) for knob in knobs} == {(None, None, "no model")}
    assert [knob.before for knob in withheld_knobs(doubled_knobs(STORED), "no objectives")] == [
        12,
        2048,
        STORED.kv_tokens,
        None,
    ]
