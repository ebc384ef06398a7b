"""The stand-in in virtual time: what happens does not depend on how far its time is moved at once."""

from dataclasses import replace

import pytest

from probe.sim.cost import FrontEnd, Unrest
from probe.sim.profiles import PROFILES
from probe.sim.virtual import VirtualServer, Visit

QUIET = replace(PROFILES["8b-a100"], unrest=Unrest(noise_ratio=0.0))
SLOW_FRONT = replace(QUIET, front_end=FrontEnd(per_request_s=0.02))


def _second_while_the_first_decodes(profile: object, chunk_s: float) -> Visit:
    server = VirtualServer(profile)  # type: ignore[arg-type]
    server.submit(0.0, 100, 1000)
    second = server.submit(1.0, 100, 20)
    while not second.ended:
        server.advance(server.now_s + chunk_s)
    return second


@pytest.mark.parametrize("chunk_s", [0.01, 0.5, 600.0])
def test_a_request_leaves_a_slow_front_end_while_another_decodes(chunk_s: float) -> None:
    usual = _second_while_the_first_decodes(QUIET, chunk_s).ttft_s
    slow = _second_while_the_first_decodes(SLOW_FRONT, chunk_s).ttft_s
    assert slow == pytest.approx(usual + 0.02, abs=0.02)  # it joins at the end of a step, so that differs by one


@pytest.mark.parametrize("profile", [QUIET, SLOW_FRONT])
def test_time_may_be_moved_in_any_pieces(profile: object) -> None:
    visits = [_second_while_the_first_decodes(profile, chunk_s) for chunk_s in (0.01, 0.37, 600.0)]
    for visit in visits[1:]:
        assert visit.ttft_s == pytest.approx(visits[0].ttft_s, rel=1e-3)
        assert visit.last_s == pytest.approx(visits[0].last_s, rel=1e-3)
