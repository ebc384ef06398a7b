"""A short, fixed part of the fuzz run of tests/fuzz/fuzz_response.py, which goes on for as long as asked."""

import pytest
from fuzz.fuzz_response import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_answers_are_outcomes(seed: int) -> None:
    met = fuzz(seed, seconds=30, count=400)
    assert sum(met.values()) == 400
    assert {"complete", "RemoteProtocolError", "waits"} <= set(met)
