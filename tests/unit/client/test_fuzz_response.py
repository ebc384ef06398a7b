"""A short, fixed part of the fuzz run of tests/fuzz/fuzz_response.py, which goes on for as long as asked."""

import pytest
from fuzz.fuzz_response import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.fault(
    "FA48",
    "Thousands of mutated recorded answers, cut anywhere",
    area="Foreign answers",
    users_see="an outcome each, the same however cut, within a second and 20 kB",
    stays="no exception reaches the monitor",
)
def test_mutated_answers_are_outcomes(seed: int) -> None:
    met = fuzz(seed, seconds=30, count=400)
    assert sum(met.values()) == 400
    assert {"complete", "RemoteProtocolError", "waits"} <= set(met)
