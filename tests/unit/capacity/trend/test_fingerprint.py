"""What a figure holds for: the same server, workload and promises have the same fingerprint, and others another."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from example_records import CHAT, no_knee, result, step
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.search.knee import find_knee
from probe.capacity.trend.change_detection import detect_shift
from probe.capacity.trend.fingerprint import as_number, capacity_sample, fingerprint, from_number, parts
from probe.core.request import Api
from probe.core.result import Capacity, CapacityResult, RunContext, Stopped
from probe.core.shift import CapacitySample
from probe.core.snapshot import UserLoad
from probe.core.step import Arrivals, StepSummary
from probe.core.workload import LognormalLength, Workload
from probe.report.result_json import dumps, loads

CONTEXT = RunContext(
    workload=asdict(Workload("short", Api.COMPLETIONS, LognormalLength(3000, 0.4, 8000), 128)),
    objectives=asdict(CHAT),
    engine="vllm",
    version="0.32.0",
    gpu="NVIDIA H100",
    flags={"block_size": "16", "cache_dtype": "auto"},
)


def test_the_parts_are_named_and_whole() -> None:
    assert parts("m", CONTEXT) == {
        "model": "m",
        "engine": "vllm",
        "version": "0.32.0",
        "gpu": "NVIDIA H100",
        "flags.block_size": "16",
        "flags.cache_dtype": "auto",
        "workload.api": "completions",
        "workload.prompt_tokens.median": "3000",
        "workload.prompt_tokens.sigma": "0.4",
        "workload.prompt_tokens.maximum": "8000",
        "workload.output_tokens": "128",
        "workload.shared_tokens": "0",
        "objectives.availability": "0.999",
        "objectives.ttft.ratio": "0.95",
        "objectives.ttft.within_s": "0.5",
        "objectives.tpot.ratio": "0.95",
        "objectives.tpot.within_s": "0.05",
    }


def test_it_is_short_and_the_same_in_every_process() -> None:
    assert fingerprint("m", CONTEXT) == "20575dbf7cfe"


@pytest.mark.parametrize(
    "changed",
    [
        {"engine": "sglang"},
        {"version": "0.33.0"},
        {"gpu": None},
        {"flags": {"block_size": "32", "cache_dtype": "auto"}},
        {"flags": {}},
        {"workload": {**CONTEXT.workload, "output_tokens": 129}},
        {"objectives": {**CONTEXT.objectives, "ttft": {"ratio": 0.95, "within_s": 0.4}}},
    ],
    ids=["engine", "version", "gpu", "flag", "no flags", "workload", "objective"],
)
def test_a_relevant_change_of_the_setup_changes_the_fingerprint(changed: dict[str, object]) -> None:
    assert fingerprint("m", replace(CONTEXT, **changed)) != fingerprint("m", CONTEXT)  # type: ignore[arg-type]
    assert fingerprint("n", CONTEXT) != fingerprint("m", CONTEXT)


@pytest.mark.parametrize(
    "changed",
    [
        {"workload": {**CONTEXT.workload, "name": "renamed"}},
        {"workload": dict(reversed(CONTEXT.workload.items()))},
        {"objectives": {**CONTEXT.objectives, "name": "renamed", "window_s": 86400.0}},
        {"flags": {"cache_dtype": "auto", "block_size": "16"}},
    ],
    ids=["workload's name", "order", "objectives' name and window", "order of flags"],
)
def test_names_windows_and_order_do_not(changed: dict[str, object]) -> None:
    assert fingerprint("m", replace(CONTEXT, **changed)) == fingerprint("m", CONTEXT)  # type: ignore[arg-type]


def test_it_survives_the_store() -> None:
    """A result of this run and one read from a file have to be alike: enumerations, tuples and numbers become JSON."""
    one = replace(result(), context=CONTEXT)
    assert capacity_sample(loads(dumps(one))) == capacity_sample(one)


def test_a_result_is_a_sample_if_it_found_a_knee() -> None:
    found = capacity_sample(result(started_s=1000.0))
    assert found is not None
    assert (found.at_s, found.requests_per_second, found.lower, found.upper) == (1031.5, 10.0, 10.0, 12.5)
    assert (found.mode, found.run, found.confirms) == ("empirical", result().id, None)
    assert capacity_sample(result(capacity=no_knee())) is None
    assert capacity_sample(result(stopped=Stopped("interrupt"))) is None
    again = capacity_sample(replace(result(), confirms="the one before"))
    assert again is not None
    assert again.confirms == "the one before"
    searched = capacity_sample(result(capacity=Capacity("forecast", 10.0, 9.0, 11.0)))
    assert searched is not None
    assert searched.mode == "unverified"


def _steps(held: int, *, loop: str, users: UserLoad) -> list[StepSummary]:
    """Return steps that double, up to the first one that breaks: each unit of load is a request per second."""
    loads = [2**i for i in range(held.bit_length() + 1)]
    steps = [replace(step(load, rps=float(load)), users=users) for load in loads[:-1]]
    steps.append(replace(step(loads[-1], broken=("ttft",), rps=held / 2), users=users))
    if loop == "open":
        plans = [replace(one.plan, loop="open", arrivals=Arrivals(rate_rps=one.plan.concurrency)) for one in steps]
        return [replace(one, plan=plan) for one, plan in zip(steps, plans, strict=True)]
    return steps


def _night(day: int, held: int, **how: Any) -> CapacityResult:
    steps = _steps(held, **how)
    return result(started_s=86400.0 * day, steps=steps, capacity=find_knee(steps, Stopped("done")))


def _samples(levels: Sequence[int], **how: Any) -> list[CapacitySample]:
    return [sample for day, held in enumerate(levels) if (sample := capacity_sample(_night(day, held, **how)))]


@pytest.mark.parametrize("loop", ["closed", "open"])
@pytest.mark.parametrize("users", [UserLoad(), UserLoad(0.0, 0.0)], ids=["unknown users", "no users"])
def test_a_knee_of_fixed_steps_that_drops_is_a_shift_whether_users_are_known_or_not(loop: str, users: UserLoad) -> None:
    shift = detect_shift(_samples([*[16] * 12, 4, 4, 4], loop=loop, users=users))
    assert shift is not None
    assert {method for method, has_fired in shift.fired.items() if has_fired} >= {"confirmed_drop", "median_of_3"}
    one_step = detect_shift(_samples([*[16] * 12, 8, 8, 8], loop=loop, users=users))
    assert one_step is not None
    assert not any(one_step.fired.values())


def test_a_run_in_which_no_step_broke_has_no_bound() -> None:
    steps = _steps(8, loop="closed", users=UserLoad())[:-1]
    found = capacity_sample(result(steps=steps, capacity=find_knee(steps, Stopped("done"))))
    assert found is not None
    assert found.upper is None


@given(st.text("0123456789abcdef", min_size=12, max_size=12))
def test_as_a_number_it_is_exact(digest: str) -> None:
    """Samples of Prometheus are doubles, and its text has 17 digits."""
    assert from_number(float(repr(as_number(digest)))) == digest


@pytest.mark.parametrize("value", [-1.0, 0.5, float("nan"), float("inf"), 2.0**60])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        from_number(value)


@pytest.mark.fault(
    "TR42",
    "The lowest load misses an objective: the capacity has collapsed, and the run finds none",
    area="Truth",
    users_see="a drop to less than that load, measured again like any other",
    stays="a load that the guard stopped counts as well, unless users' part of it is unknown",
)
@pytest.mark.parametrize("tripped", [None, "no_first_token"])
def test_where_no_load_held_the_capacity_is_at_most_the_lowest(tripped: str | None) -> None:
    (one, *others) = _steps(4, loop="open", users=UserLoad(1.0, 64.0))
    broken = replace(one, broken=("ttft",), offered_rps=1.2)
    if tripped is not None:
        broken = replace(one, valid=False, reason="cut_short", tripped=tripped, offered_rps=9.0)
    found = result(steps=[broken, *[replace(other, broken=("ttft",)) for other in others]], capacity=no_knee())
    sample = capacity_sample(found)
    assert sample is not None
    most = 2.2 if tripped is None else 2.0
    assert (sample.requests_per_second, sample.lower, sample.upper) == (pytest.approx(most), 0.0, pytest.approx(most))
    assert capacity_sample(result(steps=[replace(broken, users=UserLoad())], capacity=no_knee())) is None
    assert capacity_sample(result(steps=[broken, others[0]], capacity=no_knee())) is None, "a higher one held"
    assert capacity_sample(result(steps=[replace(one, valid=False, reason="late")], capacity=no_knee())) is None
