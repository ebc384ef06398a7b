"""A Prometheus that is down, slow or hostile, and what is decided without its answer."""

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml
from hostile_server import Asked, Script, head, hostile, whole
from kneewatch_command import COMMAND
from monitor import Sim
from process import CLIENT_CORE, Process, eventually, pinned

from probe.runtime.kept_program import free_port

_LIMIT_MIB = 384  # of the manifests
_VECTOR = b'{"status":"success","data":{"resultType":"vector","result":['
_HEAD = head(200, "application/json") + _VECTOR
_NOTHING_FIRES = whole(200, _VECTOR + b"]}}")


def _endless(piece: bytes, pause_s: float = 0.0) -> Callable[[Asked], Iterator[bytes | float]]:
    """Return a script that begins an answer, and then sends `piece` again and again."""

    def script(_: Asked) -> Iterator[bytes | float]:
        yield _HEAD
        while True:
            yield piece
            yield pause_s

    return script


@dataclass(frozen=True, slots=True)
class Ramp:
    """A ramp that has ended, with the memory that it held at most."""

    status: int
    output: str
    most_mib: float


def _ramp(config: Path, folder: Path, **environment: str) -> Ramp:
    """Run `kneewatch ramp` to its end, for a minute at most."""
    command = pinned([*COMMAND, "ramp", "-c", str(config), "--max-seconds", "8"], CLIENT_CORE)
    log, began_s, most_kib = folder / "ramp.log", time.monotonic(), 0
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
    try:
        while process.poll() is None and time.monotonic() < began_s + 60:
            if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text()):
                most_kib = max(most_kib, int(found[1]))
            assert most_kib < 1024 * _LIMIT_MIB
            time.sleep(0.02)
    finally:
        process.kill()
        status = process.wait()
    return Ramp(status, log.read_text(), most_kib / 1024)


def _config(folder: Path, target: Sim, prometheus: str, **more: Any) -> Path:
    file = folder / "kneewatch.yml"
    one = {"name": "a", "base_url": target.base_url, **more}
    file.write_text(yaml.safe_dump({"prometheus": {"url": prometheus}, "targets": [one]}))
    return file


def _generated(server: Sim) -> float:
    """Return how many requests the server has answered."""
    page = httpx.get(f"{server.base_url}/metrics", timeout=20, trust_env=False).text
    return sum(float(value) for value in re.findall(r"^vllm:request_success_total\S* (\S+)$", page, re.MULTILINE))


def _assert_refused(ramp: Ramp, why: str) -> None:
    """Assert one line that says that no load was sent, and why."""
    assert (ramp.status, ramp.output.count("\n")) == (2, 1), ramp.output
    assert re.search(rf"no load was sent, no_prometheus: .*{why}.*; fix it, or remove", ramp.output), ramp.output


_ANSWERS: dict[str, tuple[Script | Callable[[Asked], Any], str]] = {
    "nested": ([whole(200, _VECTOR + b"[" * 40_000 + b"]" * 40_000 + b"]}}")], "the answer is nested deeper than"),
    "endless": (_endless(b"[0]," * 65536), "the answer is larger than 2 MiB"),
    "a_byte_a_second": (_endless(b" ", 1.0), "no complete answer within 5 s"),
    "status_503": ([whole(503, b"<html>\nno\n</html>", "text/html")], "HTTP Status Code 503"),
}


@pytest.mark.parametrize("fault", _ANSWERS)
@pytest.mark.fault(
    "E01f",
    "Prometheus answers JSON nested 40,000 deep",
    area="Prometheus",
    users_see="`ramp`: one line, exit 2, no load; the monitor: the run is refused, alerts are unknown",
    stays="canaries, series",
    case="nested",
)
@pytest.mark.fault(
    "E02",
    "Prometheus answers without end",
    area="Prometheus",
    users_see="the same, once 2 MiB have arrived (16 MiB of history)",
    stays="memory under half of the manifests' limit",
    case="endless",
)
@pytest.mark.fault(
    "E03",
    "Prometheus answers a byte a second",
    area="Prometheus",
    users_see="the same, after 5 s",
    stays="-",
    case="a_byte_a_second",
)
@pytest.mark.fault(
    "PM1",
    "Prometheus answers 503 with a page",
    area="Prometheus",
    users_see="one line, exit 2, no load",
    stays="-",
    case="status_503",
)
def test_a_ramp_is_refused_in_one_line(fault: str, tiny: Sim, tmp_path: Path) -> None:
    answer, why = _ANSWERS[fault]

    async def main() -> Ramp:
        async with hostile(answer) as prometheus:
            return await asyncio.to_thread(_ramp, _config(tmp_path, tiny, prometheus.base_url), tmp_path)

    before = _generated(tiny)
    ramp = asyncio.run(main())
    _assert_refused(ramp, why)
    assert ramp.most_mib < _LIMIT_MIB / 2
    assert _generated(tiny) == before


@pytest.mark.fault(
    "PM2",
    "Prometheus is down when `ramp` asks",
    area="Prometheus",
    users_see="one line, exit 2, no load",
    stays="-",
)
def test_a_ramp_is_refused_while_prometheus_is_down(tiny: Sim, tmp_path: Path) -> None:
    ramp = _ramp(_config(tmp_path, tiny, f"http://127.0.0.1:{free_port()}"), tmp_path)
    _assert_refused(ramp, "Connection refused")


@pytest.mark.fault(
    "PM3",
    "Prometheus' certificate is not trusted",
    area="Prometheus",
    users_see="one line, exit 2, no load",
    stays="-",
)
def test_a_ramp_is_refused_where_the_certificate_is_not_trusted(tiny: Sim, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    async def main() -> Ramp:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await asyncio.to_thread(_ramp, _config(tmp_path, tiny, url), tmp_path)

    _assert_refused(asyncio.run(main()), "certificate")


@pytest.mark.fault(
    "E04",
    "Prometheus redirects to another host",
    area="Prometheus",
    users_see="the same: a line that names the host",
    stays="the other host is not asked",
)
def test_a_redirect_to_another_host_is_not_followed(tiny: Sim, tmp_path: Path) -> None:
    async def main() -> tuple[Ramp, list[Asked]]:
        async with hostile([_NOTHING_FIRES]) as trap:
            there = trap.base_url.replace("127.0.0.1", "localhost")
            answer = whole(302, b"", "text/html", f"location: {there}/api/v1/query?secret=1")
            async with hostile([answer]) as prometheus:
                done = await asyncio.to_thread(_ramp, _config(tmp_path, tiny, prometheus.base_url), tmp_path)
            return done, trap.asked

    ramp, trapped = asyncio.run(main())
    _assert_refused(ramp, r"a redirect to http://localhost:\d+/, which is not followed")
    assert "secret" not in ramp.output
    assert trapped == []


@pytest.mark.fault(
    "E05",
    "The environment has proxies",
    area="Prometheus",
    users_see="-",
    stays="they are not used",
)
def test_proxies_of_the_environment_are_not_used(tiny: Sim, tmp_path: Path) -> None:
    async def main() -> tuple[list[Asked], list[Asked]]:
        async with hostile([_NOTHING_FIRES]) as trap, hostile([whole(500, b"")]) as prometheus:
            proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"), trap.base_url)
            config = _config(tmp_path, tiny, prometheus.base_url)
            await asyncio.to_thread(_ramp, config, tmp_path, NO_PROXY="", no_proxy="", **proxies)
            return trap.asked, prometheus.asked

    trapped, asked = asyncio.run(main())
    assert trapped == []
    assert len(asked) == 1


def _due(folder: Path, config: Path) -> Process:
    """Start a monitor whose capacity run is due again and again."""
    script = Path(__file__).with_name("due_run.py")
    return Process(pinned([sys.executable, str(script), str(config)], CLIENT_CORE), folder / "monitor.log")


@pytest.mark.fault(
    "C44b",
    "Prometheus answers a byte a second when a run is due; then SIGTERM",
    area="Prometheus",
    users_see="the run is refused within 5 s a question: `no_prometheus`",
    stays="canaries; the process ends within 5 s",
)
def test_a_due_run_that_waits_for_prometheus_is_refused_and_ends_with_the_monitor(tiny: Sim, tmp_path: Path) -> None:
    monitored = {"canary": {"every": "1s"}, "capacity": {"mode": "verify", "schedule": {"cron": "0 4 29 2 *"}}}

    async def main() -> tuple[str, int, float]:
        async with hostile(_endless(b" ", 1.0)) as prometheus:
            monitor = _due(tmp_path, _config(tmp_path, tiny, prometheus.base_url, **monitored))
            try:
                await asyncio.to_thread(
                    eventually, lambda: "no_prometheus" in monitor.tail(), within_s=60, what="a refusal"
                )
                count = len(prometheus.asked)
                await prometheus.until_asked(count + 1)
                began_s = time.monotonic()
                status = await asyncio.to_thread(monitor.terminate)
                return monitor.log.read_text(), status, time.monotonic() - began_s
            finally:
                monitor.kill()

    before = _generated(tiny)
    output, status, seconds = asyncio.run(main())
    (detail, *_) = (
        line["detail"] for line in map(json.loads, output.splitlines()) if line.get("reason") == "no_prometheus"
    )
    assert "no complete answer within 5 s" in detail
    assert status == 0
    assert seconds < 5
    assert _generated(tiny) > before, "canaries go on"
