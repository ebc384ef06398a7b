"""Fixtures that integration and fault tests share: a limit of time, and mock servers started once in a run."""

import faulthandler
import sys
from collections.abc import Iterator

import pytest
from monitor import Sim

# Twice as long as the longest test. One that hangs ends its process, with a traceback of each thread.
_LIMIT_S = 600.0


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


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
