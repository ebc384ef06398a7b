"""What runs with load say of a capacity: the last one measured, or a later bound below it."""

from dataclasses import replace

import pytest
from example_records import no_knee, result, step

from probe.capacity.trend.known_capacity import KnownCapacity
from probe.core.result import Capacity, CapacityResult
from probe.core.snapshot import UserLoad


def _run(mode: str, rps: float, lower: float, upper: float | None) -> CapacityResult:
    tokens = rps * 64
    capacity = Capacity(mode, rps, lower, upper, output_tokens_per_second=tokens)
    return result(capacity=capacity, result_id=f"{mode} {rps}")


VERIFIED = _run("verified", 10.0, 9.5, 10.5)
LOST = _run("forecast", 6.0, 5.0, 7.5)
AT_LEAST_3, AT_LEAST_8 = _run("forecast", 3.0, 3.0, None), _run("forecast", 8.0, 8.0, None)
NO_LOAD_HELD = replace(
    result(capacity=no_knee(), steps=(step(4, broken=("ttft",), rps=5.0),), result_id="none held"), confirms=None
)


def _known(*runs: CapacityResult) -> KnownCapacity:
    known = KnownCapacity()
    for run in runs:
        known = known.after(run)
    return known


@pytest.mark.fault(
    "TR110",
    "A capacity lost since the last verified run, by an unverified one",
    area="Truth",
    users_see="live load is judged, and headroom shown, by the upper bound of the unverified run",
    stays="a run that shows no lower capacity leaves the verified one",
)
@pytest.mark.parametrize(
    ("runs", "found", "most"),
    [
        ((VERIFIED, LOST), LOST, (7.5, 480.0)),
        ((LOST,), LOST, (7.5, 480.0)),
        ((VERIFIED, LOST, AT_LEAST_3), LOST, (7.5, 480.0)),
        ((VERIFIED, LOST, AT_LEAST_8), VERIFIED, (10.0, 640.0)),
        ((VERIFIED, LOST, _run("forecast", 10.0, 9.0, 12.0)), VERIFIED, (10.0, 640.0)),
        ((LOST, VERIFIED), VERIFIED, (10.0, 640.0)),
        ((VERIFIED, AT_LEAST_3), VERIFIED, (10.0, 640.0)),
        ((VERIFIED, _run("forecast", 9.0, 8.0, 10.2)), VERIFIED, (10.0, 640.0)),
        ((AT_LEAST_3,), None, None),
    ],
)
def test_a_later_upper_bound_below_the_measured_capacity_counts(
    runs: tuple[CapacityResult, ...], found: CapacityResult | None, most: tuple[float, float] | None
) -> None:
    known = _known(*runs)
    assert known.result is found
    got = known.most
    assert (None if got is None else (got.requests_per_second, got.output_tokens_per_second)) == most


def test_where_no_load_held_the_lowest_one_is_the_most() -> None:
    with_users = replace(NO_LOAD_HELD.steps[0], users=UserLoad(requests_per_second=1.0))
    run = replace(NO_LOAD_HELD, steps=(with_users,))
    known = _known(VERIFIED, run)
    assert known.result is run
    assert known.most is not None
    assert (known.most.requests_per_second, known.most.upper) == (6.0, 6.0)
    assert _known(VERIFIED, replace(run, steps=())).result is VERIFIED, "a run that shows nothing forgets nothing"
