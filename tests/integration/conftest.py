"""The programs that several integration tests share, started once in a run."""

from collections.abc import Iterator

import pytest
from both_loops import run
from real_vllm import RealVllm
from shared_servers import no_hang, sim, tiny

__all__ = ["no_hang", "run", "sim", "tiny"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of the real vLLM: while it starts, the other processes run tests."""
    items.sort(key=lambda item: item.get_closest_marker("vllm") is None)


@pytest.fixture(scope="session")
def vllm_server(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    """Start the real vLLM, with Kneewatch's plugin. A test that kills it starts it again."""
    server = RealVllm(vllm_python, tmp_path_factory.mktemp("vllm"), has_plugin=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def vllm(vllm_server: RealVllm) -> RealVllm:
    """Return the real vLLM, running and idle, also after a test that failed while it was down."""
    if not vllm_server.alive:
        vllm_server.start()
    return vllm_server
