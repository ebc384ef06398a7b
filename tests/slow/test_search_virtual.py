"""A whole search, with the real ramp, guard and summary, on a server in virtual time whose capacity is known."""

import math

from benchmarks.capacity.cases import CASES
from benchmarks.capacity.play import play
from probe.capacity.hints import Hints
from probe.capacity.search import Search


def test_a_server_of_few_seats_is_found_and_nobody_is_hurt() -> None:
    case = CASES["tiny"]
    search = Search(case.workload, case.objectives, Hints(max_num_seqs=8), explain=False, observe_s=20.0)
    played = play(case, 14.43, 3, search)
    found = played.result.capacity
    assert found.requests_per_second is not None
    assert abs(math.log(found.requests_per_second / 14.43)) < 0.15
    assert played.spoilt <= 0.02 * played.users
    assert played.result.cost.over_objective_seconds < 10
