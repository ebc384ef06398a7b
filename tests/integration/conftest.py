"""The programs that several integration tests share, started once in a run."""

import faulthandler
import sys
from collections.abc import Iterator

import pytest
from both_loops import run
from monitor import Sim
from real_vllm import RealVllm

__all__ = ["run"]
# Twice as long as the longest test. One that hangs ends its process, with a traceback of each thread.
_LIMIT_S = 600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of the real vLLM: while it starts, the other processes run tests."""
    items.sort(key=lambda item: item.get_closest_marker("vllm") is None)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def vllm_server(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    """Start the real vLLM. A test that kills it starts it again."""
    server = RealVllm(vllm_python, tmp_path_factory.mktemp("vllm"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def vllm(vllm_server: RealVllm) -> RealVllm:
    """Return the real vLLM, running and idle, also after a test that failed while it was down."""
    if not vllm_server.alive:
        vllm_server.start()
    return vllm_server


@pytest.fixture(scope="session")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """Run `kneewatch sim`, the mock server."""
    with Sim(tmp_path_factory.mktemp("sim")) as server:
        yield server


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """Run the mock server of a small model on a slow machine."""
    with Sim(tmp_path_factory.mktemp("tiny"), "tiny") as server:
        yield server
