"""Memory, descriptors, threads and series of `kneewatch run` over hours, while targets come and go and runs take place.

    python -m benchmarks.soak [--minutes 120] [--last 60] [--out FILE]

Two processes beside this one: mock servers on 127.0.1.1 and so on, and `kneewatch run`, which finds them in a file. The
file is written again every five seconds: twenty targets stay, of ten more a random part is listed. Each has a canary
every ten seconds, a scrape every five, a forecast every five minutes and a run with load every ten. Once a minute all
are listed; when all are up, a sample is taken. Pages, /metrics and a reload are asked for all the time. Over the last
hour each value has to stay, from the median of its first third to that of its last: memory within 5 MiB, descriptors
within a handful, the others within 5 %. Exits 1 where one grows.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Host

from benchmarks.fleet import get, memory_mib
from probe import __version__
from probe.mock_server.profiles import PROFILES
from probe.mock_server.server import build_app

TARGETS, STAYING, CHANGES_S, EVERY_S = 30, 20, 5.0, 60.0
GROWTH = 1.05
MEMORY_MIB = 5.0
_UP_WITHIN_S = 600.0
STEADY_S = 30.0
FEW_DESCRIPTORS = 20  # connections of canaries that happen to be under way
LIMITS = {"memory_mib": "memory", "descriptors": "descriptors", "threads": "threads", "series": "series"}


@dataclass(frozen=True, slots=True)
class Sample:
    """What the monitor's process has while all targets are up."""

    at_s: float
    memory_mib: float
    descriptors: int
    threads: int
    series: int
    runs: int


def serve(port: int) -> None:
    """Serve a mock server on each address, in this process."""
    routes = [Host(address(i), build_app(PROFILES["tiny"], model="m", seed=i)) for i in range(TARGETS)]
    sockets = [socket.create_server((address(i), port)) for i in range(TARGETS)]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error", access_log=False))
    asyncio.run(server.serve(sockets=sockets))


def address(number: int) -> str:
    return f"127.0.1.{number + 1}"


def write_config(folder: Path, port: int) -> Path:
    found = {"files": [str(folder / "targets.json")], "every": "1s"}
    canary = {"every": "10s", "timeout": "10s"}
    runs = {
        "mode": "verify",
        "schedule": {"cron": "*/10 * * * *"},
        "concurrency": [1, 2],
        "step": "2s",
        "confirm": "2s",
        "forecast_every": "5m",
        "budget": {"tokens_per_run": 20_000, "tokens_per_day": 10_000_000, "seconds": 30},
    }
    config = {
        "listen": f"127.0.0.1:{port}",
        "store": {"path": str(folder / "kneewatch.db")},
        "workloads": {"default": {"prompt_tokens": 64, "output_tokens": 16}},
        "targets": [{"name": "t", "discover": {"file": found}, "scrape": "5s", "canary": canary, "capacity": runs}],
    }
    file = folder / "kneewatch.yml"
    file.write_text(json.dumps(config))
    return file


class Soak:
    """A running monitor, the file with its targets, and the samples so far."""

    def __init__(self, folder: Path, port: int, pid: int) -> None:
        self._folder, self._port, self._pid = folder, port, pid
        self._url = f"http://127.0.0.1:{port + 1}"
        self._chance = random.Random(1)  # noqa: S311 - a seed, not a secret
        self.samples: list[Sample] = []

    def run(self, minutes: float) -> None:
        began = time.monotonic()
        while (now := time.monotonic()) < began + 60 * minutes:
            while time.monotonic() < now + EVERY_S:
                coming = self._chance.sample(range(STAYING, TARGETS), self._chance.randint(0, TARGETS - STAYING))
                self._list([*range(STAYING), *coming])
                self._visit()
                time.sleep(CHANGES_S)
            self._list(range(TARGETS))
            self._wait_until_all_are_up()
            self._sample(time.monotonic() - began)

    def _list(self, numbers: Sequence[int]) -> None:
        fresh = self._folder / "fresh"
        fresh.write_text(json.dumps([{"targets": [f"{address(i)}:{self._port}" for i in numbers]}]))
        fresh.replace(self._folder / "targets.json")

    def _visit(self) -> None:
        for path in ("/", "/metrics", "/api/v1/targets", f"/targets/t/{address(0)}:{self._port}"):
            with suppress(OSError):  # a target that is away just now is a 404
                get(self._url + path)
        with suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(f"{self._url}/-/reload", method="POST"), timeout=30).read()  # noqa: S310

    def _wait_until_all_are_up(self) -> None:
        end = time.monotonic() + _UP_WITHIN_S
        while time.monotonic() < end:
            page = self._page()
            for series in ("kneewatch_target_up{", "kneewatch_server_scrape_up{"):
                found = [line for line in page.splitlines() if line.startswith(series)]
                if len(found) != TARGETS or not all(line.endswith(" 1.0") for line in found):
                    break
            else:
                time.sleep(STEADY_S)  # some series need several scrapes
                return
            time.sleep(1.0)
        raise TimeoutError(f"not all targets were up within {_UP_WITHIN_S:g} s")

    def _page(self) -> str:
        while True:
            with suppress(TimeoutError):  # the machine may be busy
                return get(f"{self._url}/metrics")[0]

    def _sample(self, at_s: float) -> None:
        lines = [line for line in self._page().splitlines() if 'target="t/' in line]
        self.samples.append(
            Sample(
                round(at_s, 1),
                memory_mib(self._pid, "VmRSS"),
                len(os.listdir(f"/proc/{self._pid}/fd")),  # noqa: PTH208 - names are enough
                len(os.listdir(f"/proc/{self._pid}/task")),  # noqa: PTH208
                len(lines),
                int(
                    sum(
                        float(line.rsplit(" ", 1)[1])
                        for line in lines
                        if line.startswith("kneewatch_capacity_runs_total{")
                    )
                ),
            )
        )
        print(json.dumps(asdict(self.samples[-1])), flush=True)


def growth(samples: Sequence[Sample], last_minutes: float) -> list[str]:
    """Return a line for each value that grew in the last minutes. Raises ValueError below six samples there."""
    last = [sample for sample in samples if sample.at_s > samples[-1].at_s - 60 * last_minutes]
    third = len(last) // 3
    if third < 2:
        raise ValueError(f"{len(last)} samples in the last {last_minutes:g} minutes; at least six are needed")
    problems = []
    for name, words in LIMITS.items():
        first, end = (statistics.median(getattr(one, name) for one in part) for part in (last[:third], last[-third:]))
        room = {"memory_mib": MEMORY_MIB, "descriptors": FEW_DESCRIPTORS}.get(name, first * (GROWTH - 1.0))
        if end > first + room:
            problems.append(f"{words} grew from {first:g} to {end:g}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--last", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=18_900)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.port)
        return 0
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder = Path(name)
        (folder / "targets.json").write_text("[]")
        command = [sys.executable, "-m", "benchmarks.soak", "--serve", "--port", str(options.port)]
        servers = ends.enter_context(subprocess.Popen(command))
        ends.callback(servers.terminate)
        with (folder / "log").open("w") as log:
            file = write_config(folder, options.port + 1)
            monitor = ends.enter_context(
                subprocess.Popen([sys.executable, "-m", "probe", "run", "-c", str(file)], stdout=log, stderr=log)
            )
        ends.callback(monitor.terminate)
        while monitor.poll() is None:
            with suppress(OSError):
                get(f"http://127.0.0.1:{options.port + 1}/-/healthy")
                break
            time.sleep(0.5)
        if monitor.poll() is not None:
            sys.exit((folder / "log").read_text())
        soak = Soak(folder, options.port, monitor.pid)
        soak.run(options.minutes)
    problems = growth(soak.samples, options.last)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks.soak " + " ".join(sys.argv[1:]),
        "kneewatch": __version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "grew": problems,
        "samples": [asdict(sample) for sample in soak.samples],
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(problems) or "nothing grew")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
