"""The compiled simulator against its own sources, which are its oracle: equal to the last bit."""

import importlib
import math
import os
import pickle
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from probe import simulator
from probe.core.request import Api
from probe.core.workload import LognormalLength, Workload
from probe.mock_server.profiles import PROFILES
from probe.simulator import virtual_server
from probe.simulator.cost import FrontEnd, Jitter, Profile
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import BackgroundTraffic

ROOT = Path(__file__).parents[3]
CHAT = Workload("t", Api.COMPLETIONS, LognormalLength(200, 0.5, 1200), LognormalLength(60, 0.5, 360))
SHARED = replace(CHAT, shared_tokens=120)
NOISY = replace(PROFILES["8b-a100"], jitter=Jitter(noise_ratio=0.05))
TIGHT = replace(NOISY, num_blocks=121, max_model_len=1600, max_num_seqs=16)  # preempts
HICCUPS = Jitter(noise_ratio=0.05, hiccup_every_s=5, hiccup_s=0.2)
DRIFT = Jitter(drift_ratio=0.2, drift_period_s=30)
SLOW_FRONT = replace(PROFILES["slow-front"], front_end=FrontEnd(0.01, 1e-6, 1e-5))


@pytest.fixture
def interpreted() -> Iterator[ModuleType]:
    """Return the module virtual_server as its source is, beside the compiled one."""
    name, paths = simulator.__name__, list(simulator.__path__)
    kept = {each: module for each, module in sys.modules.items() if each.startswith(f"{name}.")}
    for each in kept:
        if not each.endswith((".cost", ".traffic")):
            del sys.modules[each]
    simulator.__path__[:] = [str(Path(simulator.__file__).parent)]
    yield importlib.import_module(f"{name}.virtual_server")
    simulator.__path__[:] = paths
    for each, module in kept.items():
        sys.modules[each] = module
        setattr(simulator, each.rpartition(".")[2], module)


@pytest.fixture(autouse=True)
def compiled() -> None:
    if simulator.KIND != "compiled":
        assert not os.environ.get("KNEEWATCH_REQUIRE_ALL"), "make .venv has compiled nothing"
        pytest.skip("the simulator is not compiled: make .venv")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("profile", "rate_rps", "options"),
    [
        (NOISY, 20.0, {}),
        (TIGHT, 5.0, {}),
        (replace(TIGHT, plans_ahead=True, request_blocks=3, jitter=DRIFT), 4.0, {}),
        (replace(TIGHT, prefix_caching=True, jitter=HICCUPS), 6.0, {"others": BackgroundTraffic(1.0, SHARED)}),
        (SLOW_FRONT, 20.0, {"shares": (0.6, 0.4)}),
        (NOISY, 20.0, {"shares": (0.6, 0.3, 0.1), "accepted_tokens": 1.5}),
    ],
)
def test_results_are_those_of_the_source(
    interpreted: ModuleType, profile: Profile, rate_rps: float, options: dict[str, object], seed: int
) -> None:
    assert Path(interpreted.__file__ or "").suffix == ".py"
    assert Path(virtual_server.__file__).suffix == ".so"
    assert _story(virtual_server, profile, rate_rps, options, seed) == _story(
        interpreted, profile, rate_rps, options, seed
    )


def _story(module: ModuleType, profile: Profile, rate_rps: float, options: dict[str, object], seed: int) -> list[str]:
    """Return all that can be seen of a server with users, probes, aborts and a change of the users' rate."""
    users = BackgroundTraffic(rate_rps, SHARED, is_mirrored=seed % 2 == 1)
    server = module.VirtualServer(profile, seed=seed, users=users, **options)
    mine: list[SimulatedRequest] = []
    told: list[str] = []
    for i in range(1, 61):
        if i % 7 == 0:
            mine.append(server.submit(server.now_s + 0.3, 50 + i, 20 + i, 10))
        if i % 21 == 0:
            server.abort(mine[-1])
        if i == 40:
            server.set_users(rate_rps / 2)
        server.advance(i * 0.5)
        told.append(repr(server.in_flight()))
        if i % 20 == 0:
            told.append(repr(server.snapshot()))
    names = "arrival_s entered_s scheduled_s made_first_s made_last_s first_s last_s preemptions found_tokens steps"
    for request in [*server.ended_requests, *mine]:
        told.append(repr([getattr(request, name) for name in names.split()]))
        told.append(repr([*request.token_times_s(), request.ttft_s, request.tpot_s, request.e2e_s]))
        told.append(repr(request.longest_gap_s()))
    assert len(server.ended_requests) > 20
    return told


def test_a_server_is_sent_to_other_processes() -> None:
    users = BackgroundTraffic(2.0, CHAT)
    assert pickle.loads(pickle.dumps((users, NOISY))) == (users, NOISY)  # noqa: S301 - our own


def test_a_request_that_waits_has_no_times() -> None:
    """As in the source: a field without a value would be an error of its own in a compiled class."""
    waiting = SimulatedRequest(1.0, 10, 5)
    assert math.isnan(waiting.ttft_s)
    assert waiting.token_times_s() == []


def test_other_sources_are_not_taken_for_these(tmp_path: Path) -> None:
    sources = Path(simulator.__file__).parent
    for file in sources.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    assert simulator.digest(tmp_path) == simulator.digest() == simulator.stamp().read_text()
    (tmp_path / "engine.py").write_text((sources / "engine.py").read_text() + "\n")
    assert simulator.digest(tmp_path) != simulator.digest()


def test_it_is_compiled_by_the_mypy_that_checks_it() -> None:
    pinned = {line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    (mypy,) = (line for line in pinned if line.startswith("mypy=="))
    assert f'"{mypy}"' in (ROOT / "hatch_build.py").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"] == ["hatchling>=1.27"]
