"""The server in virtual time over minutes: what queueing theory says of it, and how engines share."""

from dataclasses import replace
from statistics import fmean

import pytest

from probe.core.request import Api
from probe.core.workload import LognormalLength, Workload
from probe.mock_server.profiles import PROFILES
from probe.simulator.cost import FrontEnd, Profile
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

pytestmark = pytest.mark.long

CHAT = Workload("t", Api.COMPLETIONS, LognormalLength(200, 0.5, 1200), LognormalLength(60, 0.5, 360))
BUSY = PROFILES["8b-a100"]
TIGHT = replace(BUSY, num_blocks=121, max_model_len=1600, max_num_seqs=16)  # preempts


def test_the_front_end_is_the_queue_of_the_textbook() -> None:
    """M/D/1: with service s and utilisation u, the mean wait is s u / (2 (1 - u)) (Pollaczek and Khinchine)."""
    service_s = 0.01
    for load in (0.3, 0.6, 0.8):
        users = BackgroundTraffic(load / service_s, replace(CHAT, output_tokens=1, prompt_tokens=1))
        profile = replace(PROFILES["1b-h100"], front_end=FrontEnd(per_request_s=service_s))
        server = VirtualServer(profile, users=users)
        server.advance(1.6 / service_s / (1 - load))
        waits = [request.entered_s - request.arrival_s - service_s for request in server.ended_requests]
        assert fmean(waits) == pytest.approx(service_s * load / (2 * (1 - load)), rel=0.15)


@pytest.mark.parametrize(("profile", "rate_rps"), [(BUSY, 8.0), (TIGHT, 4.0), (PROFILES["slow-front"], 50.0)])
def test_those_inside_are_rate_times_residence(profile: Profile, rate_rps: float) -> None:
    """Little's law."""
    server = VirtualServer(profile, users=BackgroundTraffic(rate_rps, CHAT))
    inside = []
    for second in range(1, 201):
        server.advance(second)
        inside.append(sum(server.in_flight()))
    residence_s = fmean(request.last_s - request.arrival_s for request in server.ended_requests)
    assert fmean(inside) == pytest.approx(len(server.ended_requests) / 200 * residence_s, rel=0.05)


def test_engines_get_the_configured_shares() -> None:
    server = VirtualServer(BUSY, users=BackgroundTraffic(5.0, CHAT), shares=(0.6, 0.3, 0.1))
    server.advance(600.0)
    counts = [replica.engine._submitted for replica in server._replicas]
    assert [count / sum(counts) for count in counts] == pytest.approx([0.6, 0.3, 0.1], abs=0.03)


def test_two_engines_carry_twice_as_much() -> None:
    def tpot(rate_rps: float, shares: tuple[float, ...]) -> float:
        server = VirtualServer(BUSY, users=BackgroundTraffic(rate_rps, CHAT), shares=shares)
        server.advance(100.0)
        return fmean(request.tpot_s for request in server.ended_requests)

    assert tpot(20.0, (0.5, 0.5)) == pytest.approx(tpot(10.0, (1.0,)), rel=0.05)
    assert tpot(20.0, (1.0,)) > 1.1 * tpot(10.0, (1.0,))
