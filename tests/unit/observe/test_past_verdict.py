"""Whether a server was healthy for its users, by its history: doubt goes against the happy answer."""

from collections.abc import Mapping, Sequence
from math import inf

from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from probe.core.objectives import Objective, Objectives
from probe.observe.past_verdict import Health, verdict
from probe.observe.server_past import ServerPast

STEPS = tuple(300.0 * (i + 1) for i in range(12))
CHAT = Objectives("chat", ttft=Objective(0.95, 0.5))


def _past(
    late: Sequence[float] = (),
    requests: float = 100.0,
    bounds: Sequence[str] = ("0.5",),
    **values: Mapping[float, float],
) -> ServerPast:
    slow = dict(zip(STEPS, [*late, *[0.0] * len(STEPS)], strict=False))
    parts = {bound: {at: requests - slow[at] for at in STEPS} for bound in bounds}
    parts["+Inf"] = dict.fromkeys(STEPS, requests)
    known = {"scrapes": dict.fromkeys(STEPS, 5.0), **values}
    finished = {"stop": dict.fromkeys(STEPS, requests)}
    return ServerPast("a", {"pod": "a"}, "vllm:", STEPS, 300.0, (), known, {"ttft": parts, "finished": finished})


LAST = STEPS[-1]
HEALTH: dict[str, tuple[ServerPast, Health]] = {
    "all in time": (_past(), Health.YES),
    "a bad hour": (_past([90.0] * 6), Health.NO),
    "five bad minutes hours ago": (_past([50.0]), Health.AT_TIMES),
    "bad now": (_past([0.0] * 10 + [50.0, 50.0]), Health.NO),
    "nine late requests are chance": (_past([9.0], requests=100.0), Health.YES),
    "no requests": (_past(requests=0.0), Health.UNKNOWN),
    "too few requests": (_past(requests=0.5), Health.UNKNOWN),
    "the objective between two bounds, with requests there": (_past([50.0] * 12, bounds=("1.0",)), Health.NO),
    "no bound at or above it": (_past(bounds=("0.1",)), Health.UNKNOWN),
    "no histogram": (_past(bounds=()), Health.UNKNOWN),
    "its page cannot be read now": (_past(up={LAST: 0.0}), Health.NO),
    "requests run and no token comes": (
        _past(running={LAST: 3.0}, generation_tokens={LAST: 0.0}, prompt_tokens={LAST: 0.0}),
        Health.NO,
    ),
    "none came hours ago": (
        _past(running={STEPS[0]: 3.0}, generation_tokens={STEPS[0]: 0.0}, prompt_tokens={STEPS[0]: 0.0}),
        Health.AT_TIMES,
    ),
    "answers with 5xx": (_past(http_errors=dict.fromkeys(STEPS, 20.0)), Health.NO),
    "answers with 5xx for five minutes": (_past(requests=3000.0, http_errors={STEPS[0]: 20.0}), Health.AT_TIMES),
}


@for_each(HEALTH)
def test_health(case: str) -> None:
    past, health = HEALTH[case]
    assert verdict(past, CHAT).health is health


def test_what_lies_between_two_bounds_is_unknown() -> None:
    """All requests took 0.25 to 1 s: nobody knows whether within 0.5 s."""
    past = _past()
    parts = {"0.25": dict.fromkeys(STEPS, 0.0), "1.0": dict.fromkeys(STEPS, 100.0), "+Inf": dict.fromkeys(STEPS, 100.0)}
    between = ServerPast("a", {}, "vllm:", STEPS, 300.0, (), past.values, {"ttft": parts})
    found = verdict(between, CHAT)
    assert found.health is Health.UNKNOWN
    assert found.latencies["ttft"].is_met is None


def test_an_objective_that_vllm_does_not_measure_is_unknown() -> None:
    stalls = Objectives("chat", ttft=Objective(0.95, 0.5), itl=Objective(0.95, 0.2))
    assert verdict(_past(), stalls).health is Health.UNKNOWN
    assert verdict(_past([90.0] * 6), stalls).health is Health.NO


def test_the_peak_is_the_highest_five_minutes() -> None:
    past = _past(requests=60.0, generation_tokens={300.0: 3000.0, 600.0: 6000.0})
    found = verdict(past, CHAT)
    assert found.peak.requests_per_second == 0.2
    assert found.peak.output_tokens_per_second == 20.0


@given(st.lists(st.integers(0, 100), min_size=12, max_size=12), st.integers(1, 3))
def test_more_late_requests_never_make_it_healthier(late: list[int], more: int) -> None:
    order = list(Health)
    one = verdict(_past([float(each) for each in late]), CHAT).health
    worse = verdict(_past([float(min(each * more, 100)) for each in late]), CHAT).health
    assert order.index(worse) <= order.index(one)


def test_inf_is_a_bound() -> None:
    found = _past().histogram("ttft", 300.0)
    assert found is not None
    assert found.buckets[-1] == (inf, 100.0)
