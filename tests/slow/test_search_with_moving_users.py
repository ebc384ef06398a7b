"""Whole searches, with the real run, guard and summary, on a server in virtual time whose users come and go."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import pytest

from benchmarks.capacity.cases import CASES, Case
from benchmarks.capacity.play import play
from probe.capacity.run.request import Budget
from probe.capacity.search.search import Search
from probe.core.result import Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload
from probe.simulator.virtual_server import VirtualServer

TRUTH_RPS = 14.43

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("short_simulations")]


@dataclass(frozen=True, slots=True)
class Kept(Case):
    """A case whose server is kept, so that its users can be changed."""

    servers: list[VirtualServer] = field(default_factory=list)

    def server(self, seed: int, users_rps: float, workload: Workload | None = None) -> VirtualServer:
        self.servers.append(Case.server(self, seed, users_rps, workload))
        return self.servers[-1]


USERS: dict[str, Callable[[float], float]] = {  # as shares of the capacity, so many seconds after the run began
    "leave": lambda s: 0.5 if s < 33 else 0.02,
    "surge": lambda s: 0.1 if s < 45 else 0.5,
    "come in bursts": lambda s: 0.6 if int(s / 7) % 4 == 0 else 0.05,
    "come in short bursts": lambda s: 0.6 if int(s / 5) % 4 == 0 else 0.1,
    "stay": lambda _: 0.2,
}


@pytest.mark.parametrize("name", USERS)
def test_no_trial_exceeds_1_7_times_what_held_and_users_who_change_are_said(name: str) -> None:
    case = Kept(**{each.name: getattr(CASES["tiny"], each.name) for each in fields(Case)})
    search, share = Search(case.workload, case.objectives, explain=False, observe_s=20.0), USERS[name]

    def page(at_s: float, seen: ServerSnapshot) -> ServerSnapshot:
        case.servers[-1].set_users(share(at_s) * TRUTH_RPS)
        return seen

    played = play(case, TRUTH_RPS, 1, search, live_share=share(0.0), budget=Budget(10**9, 120, 20), page=page)
    found, held_rps = played.result.capacity, 0.0
    for step in search.state.steps:
        if step.tripped is None and held_rps:
            assert step.load_rps <= 1.7 * held_rps
        held_rps = max(held_rps, step.load_rps if step.has_held else 0.0)
    assert held_rps or name.startswith("come in")  # a burst may end the only one
    assert (found.lower or 0.0) < TRUTH_RPS
    assert found.upper is None or found.upper > TRUTH_RPS
    assert played.spoilt <= 0.04 * played.users
    if name in ("leave", "surge"):
        assert played.result.stopped == Stopped("guard", "users_changed")
        assert "users_changed" in str(found.reason)
        assert found.mode != "verified"
    elif name == "stay":
        assert played.result.stopped.reason != "users_changed"
