"""Where there is no capacity there is no bottleneck. What is named on servers of a known limit: tests/slow."""

import pytest
from simulated_servers import CHAT, FAST, profile, promise, twin_of

from probe.capacity.model.bottleneck import find_bottleneck


@pytest.mark.slow
def test_a_server_that_holds_no_rate_has_no_bottleneck() -> None:
    found = find_bottleneck(twin_of(profile(FAST), CHAT), promise(0.001, None), {}, 5.0, requests=220)
    assert (found.name, found.advice, found.gain, dict(found.gains)) == (None, None, None, {})


def test_without_an_objective_or_a_guess_it_says_so() -> None:
    with pytest.raises(ValueError, match="objective"):
        find_bottleneck(twin_of(profile(FAST), CHAT), promise(None, None), {}, 5.0)
    with pytest.raises(ValueError, match="guess"):
        find_bottleneck(twin_of(profile(FAST), CHAT), promise(0.5, 0.03), {}, 0.0)
