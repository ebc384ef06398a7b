"""A search in another process goes the same way as one in this process."""

from dataclasses import replace

import pytest
from example_records import CHAT, record, spec, step
from simulated_servers import CHAT as LENGTHS
from simulated_servers import FAST, profile, watched

from probe.capacity.model.hints import Hints
from probe.capacity.run.load_plan import LoadPlan, SearchProcess
from probe.capacity.search.search import Search
from probe.capacity.search.unverified import UNLIMITED
from probe.core.result import Capacity, Stopped
from probe.core.step import StepPlan, StepRun, TrafficBeside
from probe.observe.user_load import users_beside
from probe.runtime.helper_process import HelperProcess

pytestmark = [pytest.mark.alone, pytest.mark.long]

RATE_RPS = 8.0
READINGS = watched(profile(FAST), LENGTHS, RATE_RPS, 90.0)


def _ask(load_plan: LoadPlan) -> tuple[list[StepPlan | None], Capacity]:
    """Run a step in which all requests are as fast as one alone."""
    baseline = replace(step(), e2e_s=replace(step().e2e_s, mean=2.0))
    load_plan.observe_idle(READINGS[:60], baseline, TrafficBeside(users_beside((), READINGS[:60])))
    plan = load_plan.next_step()
    assert plan is not None
    assert plan.arrivals is not None
    begin_s = READINGS[60].at_ns * 1e-9
    sent = tuple(record(start_s=begin_s + i, asked=spec(300, 40)) for i in range(25))
    run = StepRun(plan, sent, (READINGS[60].at_ns, READINGS[-1].at_ns), (), is_cut_short=False)
    load_plan.step_finished(step(), run, READINGS[60:], None)
    return [plan, load_plan.next_step()], load_plan.capacity([step()], Stopped("done"))


def test_it_goes_the_same_way_as_one_in_this_process() -> None:
    with HelperProcess() as other:
        afar = SearchProcess(other, LENGTHS, CHAT, Hints(), UNLIMITED, observe_s=7.0)
        afar.begin()
        here = Search(LENGTHS, CHAT, Hints(), observe_s=7.0)
        plans, found = _ask(afar)
        assert (plans, found) == _ask(here)
        assert found.requests_per_second is not None or found.reason
        assert (afar.observe_s, afar.survives_overload, afar.end_reason()) == (
            7.0,
            here.survives_overload,
            here.end_reason(),
        )
