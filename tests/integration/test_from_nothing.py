"""From nothing to a page in Prometheus: the commands of docs/first-ten-minutes.md, in an empty environment.

The wheel is installed there, so nothing comes from this checkout. `pytest -s` prints the seconds that each step took.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from process import Process, eventually

from probe.runtime.kept_program import free_port

pytestmark = [pytest.mark.prometheus, pytest.mark.alone, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/first-ten-minutes.md").read_text()
UV = str(Path(sys.executable).with_name("uv"))


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {what}\n")


def commands(server: str) -> list[list[str]]:
    """Return the three commands of the page, with this server's address."""
    (block,) = re.findall(r"```\n(kneewatch (?:.|\n)*?)```", PAGE)
    return [shlex.split(line.replace("http://llama-8b:8000", server)) for line in block.splitlines()]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return the folder with the programs of an environment that has the wheel only."""
    build = [UV, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", tmp_path / "dist", ROOT]
    subprocess.run(build, check=True, timeout=200)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with timed("to install the wheel"):
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env"], check=True, timeout=60)
        install = [UV, "pip", "install", "--quiet", "--python", tmp_path / "env/bin/python", wheel]
        subprocess.run([*install, "--constraint", ROOT / "constraints.txt"], check=True, timeout=300)
    return tmp_path / "env/bin"


def answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, trust_env=False, timeout=5).is_success
    return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that starts a program and waits until a page answers. The programs end with the test."""
    with ExitStack() as running:

        def started(command: list[str], url: str) -> Process:
            process = Process(command, tmp_path / f"{Path(command[0]).name}-{command[1].strip('-')[:6]}.log")
            running.callback(process.kill)
            process.ready(lambda: answers(url), within_s=60)
            return process

        yield started


def firing(prometheus: str) -> set[tuple[str, str]]:
    """Return name and severity of each alert that fires."""
    alerts = httpx.get(f"{prometheus}/api/v1/alerts", trust_env=False, timeout=20).json()["data"]["alerts"]
    return {(a["labels"]["alertname"], a["labels"]["severity"]) for a in alerts if a["state"] == "firing"}


def test_three_commands_lead_to_a_page(
    installed: Path,
    prometheus_binary: str,
    start: Callable[..., Process],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith(("PYTHON", "KNEEWATCH"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    ports = [free_port() for _ in range(3)]
    server, pages, prometheus = (f"http://127.0.0.1:{port}" for port in ports)
    kneewatch = str(installed / "kneewatch")
    sim = start([kneewatch, "sim", "--profile", "tiny", "--port", str(ports[0])], f"{server}/health")

    doctor, alerts, run = commands(server)
    for command in (doctor, alerts):
        with timed(" ".join(command[:2])):
            done = subprocess.run([kneewatch, *command[1:]], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    config = tmp_path / "kneewatch.yml"
    config.write_text(f"listen: 127.0.0.1:{ports[1]}\n{config.read_text()}")
    with timed("kneewatch run, until a canary has succeeded"):
        monitor = start([kneewatch, *run[1:]], f"{pages}/-/healthy")
        up = re.compile(r"^kneewatch_target_up\{.* 1\.0$", re.MULTILINE)
        eventually(lambda: up.search(httpx.get(f"{pages}/metrics", trust_env=False).text), within_s=60, what="a canary")
    (text,) = re.findall(r"```yaml\n(# prometheus\.yml\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(text.replace("9876", str(ports[1])))
    listen = f"--web.listen-address=127.0.0.1:{ports[2]}"
    start([prometheus_binary, "--config.file=prometheus.yml", listen], f"{prometheus}/-/ready")
    scraped = f"{prometheus}/api/v1/query?query=kneewatch_target_up"
    eventually(
        lambda: httpx.get(scraped, trust_env=False).json()["data"]["result"], within_s=60, what="a scrape of Kneewatch"
    )
    assert firing(prometheus) == set()

    sim.kill()
    page = ("KneewatchAvailabilityBurn", "page")
    with timed("from the server's end to the page"):
        eventually(lambda: page in firing(prometheus), within_s=300, what="the page", every_s=1)
    assert monitor.terminate() == 0, monitor.tail()
