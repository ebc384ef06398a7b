"""What steps tell of a server besides its metrics: how long its steps are, and what attention costs."""

import asyncio
from dataclasses import replace

import pytest
from simulated_servers import FAST, polled, profile, promise, workload

from benchmarks.capacity.virtual_load import VirtualLoad
from probe.capacity.model.hints import Hints
from probe.capacity.model.replay import replay_once
from probe.capacity.model.server_model import ServerModel
from probe.capacity.model.twin import Twin
from probe.capacity.search.infer_limits import Replay, infer_chunk_tokens, infer_pair_s
from probe.capacity.search.search_step import SearchStep, sent_requests
from probe.core.step import Arrivals, StepPlan, StepRun, TrafficBeside
from probe.core.workload import Workload
from probe.load import step_summary as summary
from probe.observe.user_load import users_beside
from probe.simulator.cost import Profile
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer
from tests.virtual_time import virtually

pytestmark = pytest.mark.slow

OBJECTIVES = promise(5.0, 0.5)
NOBODY = BackgroundTraffic(0.0, workload(400, 150))
PROMPTS = workload(3000, 100)
DOCUMENTS = workload(12_000, 40)


def _seen(known: Profile, asked: Workload, rate_rps: float, seconds: float) -> tuple[ServerModel, SearchStep]:
    """Return a model that watched a server, and one step on it."""
    model = ServerModel(asked, Hints())
    snapshots = polled(VirtualServer(known, seed=5, users=BackgroundTraffic(rate_rps, asked)), 120.0)
    model.learn_live(snapshots, TrafficBeside(users_beside((), snapshots)))
    plan = StepPlan(1000, seconds, loop="open", arrivals=Arrivals(rate_rps=rate_rps))

    async def run() -> StepRun:
        server = VirtualServer(known, seed=6)
        server.advance(asyncio.get_running_loop().time())
        return await VirtualLoad(server, asked, 7).run(plan, asyncio.Event(), lambda _: None)

    user_arrivals = virtually(run(), within_s=10_000)
    return model, SearchStep(rate_rps, summary.summarize(user_arrivals, OBJECTIVES), user_arrivals, None)


def _replay(bare: Twin, step: SearchStep) -> tuple[SimulatedRequest, ...]:
    return replay_once(bare, sent_requests(step.run), NOBODY, settle_s=1.0).judged


REPLAY: Replay = _replay


@pytest.mark.parametrize("chunk", [512, 2048, 8192])
def test_the_longest_gaps_show_how_many_tokens_a_step_takes(chunk: int) -> None:
    model, step = _seen(profile(FAST, chunk=chunk, kv_tokens=900_000), PROMPTS, 4.0, 60.0)
    found = infer_chunk_tokens(model, None, step, REPLAY)
    assert found in {512: (512,), 2048: (2048,), 8192: (4096, 8192, 16384)}[chunk], "few prompts fill 8192"


def test_prompts_that_fit_in_any_step_leave_it_as_it_is() -> None:
    model, step = _seen(profile(FAST, chunk=8192), workload(100, 50), 10.0, 20.0)
    assert infer_chunk_tokens(model, None, step, REPLAY) == model.chunk_tokens


def test_long_prompts_show_the_cost_of_attention() -> None:
    cost = replace(FAST, per_pair_s=6e-9)  # as much as the tokens themselves, at 12,000 of them
    model, step = _seen(profile(cost, chunk=8192, kv_tokens=2_000_000), DOCUMENTS, 0.5, 120.0)
    model.chunk_tokens = 8192
    assert 3e-9 < infer_pair_s(model, None, [step], REPLAY) < 12e-9, (
        "to a factor of two: who waits for whom hides the rest"
    )


def test_where_it_costs_nothing_none_is_found() -> None:
    model, step = _seen(profile(FAST, chunk=8192, kv_tokens=2_000_000), DOCUMENTS, 0.5, 120.0)
    model.chunk_tokens = 8192
    assert infer_pair_s(model, None, [step], REPLAY) == 0.0


def test_short_prompts_are_not_looked_at() -> None:
    model, step = _seen(profile(FAST), workload(400, 50), 10.0, 20.0)
    assert infer_pair_s(model, None, [step], lambda *_: pytest.fail("replayed")) == 0.0
