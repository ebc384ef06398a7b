"""`metrics_discovery` by the DNS and by a list over HTTP: two mock servers behind nginx, checked, measured, watched."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
import yaml
from dns_server import dns_server
from kneewatch_command import COMMAND, LATE, Finished
from monitor import Sim
from nginx_proxy import nginx_before
from process import Process, eventually

from probe.runtime.kept_program import free_port

pytestmark = [
    pytest.mark.alone,
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0,
        reason="needs root, for a private /etc/resolv.conf",
    ),
]

_NAME = "_http._tcp.llama.kneewatch.test"
_ENGINE = re.compile(r'^kneewatch_server_engine_\w+{target="router",engine_index="([^"]+)"', re.MULTILINE)
_LENIENT = {kind: {"ratio": 0.95, "within": "5s"} for kind in ("ttft", "tpot")}


@dataclass(frozen=True)
class _Listing:
    """Where replicas are listed: the key of `metrics_discovery`, how the list is set, and who can ask for it."""

    key: dict[str, object]
    put: Callable[..., None]
    asking: Callable[[Sequence[str]], list[str]] = list


@contextmanager
def _by_dns(folder: Path) -> Iterator[_Listing]:
    with dns_server(folder) as server:

        def put(*sims: Sim) -> None:
            server.services[_NAME] = [f"0 0 {each.port} localhost." for each in sims]

        yield _Listing({"dns": {"name": _NAME, "type": "SRV", "every": "1s"}}, put, server.used_by)


@contextmanager
def _by_http(_: Path) -> Iterator[_Listing]:
    targets: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps([{"targets": targets}]).encode())

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def put(*sims: Sim) -> None:
        targets[:] = [f"localhost:{each.port}" for each in sims]

    yield _Listing({"http": {"url": f"http://127.0.0.1:{server.server_port}/", "every": "1s"}}, put)
    server.shutdown()
    server.server_close()
    thread.join(5)


def _run(listing: _Listing, *arguments: str | Path) -> Finished:
    command = listing.asking([*COMMAND, *map(str, arguments)])
    for _ in range(3):
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if not LATE.search(done.stdout + done.stderr):
            break
    return Finished(done.returncode, done.stdout, done.stderr)


def _config(folder: Path, url: str, listing: _Listing, listen: str) -> Path:
    canary = {"workload": "short", "every": "1s"}
    target = {"name": "router", "base_url": url, "metrics_discovery": listing.key, "scrape": "1s", "canary": canary}
    workloads = {"short": {"prompt_tokens": 16, "output_tokens": 16}}
    file = folder / "kneewatch.yml"
    known = {"listen": listen, "objectives": {"default": _LENIENT}, "workloads": workloads, "targets": [target]}
    file.write_text(yaml.safe_dump(known))
    return file


@pytest.mark.parametrize("lists", [_by_dns, _by_http], ids=["dns", "http"])
def test_replicas_of_a_list_behind_nginx_are_checked_measured_and_watched(
    nginx: str, lists: Callable[[Path], "contextmanager[_Listing]"], tmp_path: Path
) -> None:
    listen, result = f"127.0.0.1:{free_port()}", tmp_path / "result.json"
    with (
        Sim(tmp_path / "a", "tiny") as a,
        Sim(tmp_path / "b", "tiny") as b,
        nginx_before(nginx, tmp_path / "nginx", a.base_url, b.base_url) as url,
        lists(tmp_path) as listing,
    ):
        listing.put(a, b)
        file = _config(tmp_path, url, listing, listen)
        checked = _run(listing, "check", "-c", file)
        assert checked.status == 0, checked.out + checked.err
        load = ("--concurrency", "2,4", "--requests-per-step", "30", "--confirm-seconds", "0", "--out", result)
        done = _run(listing, "ramp", "-c", file, *load)
        assert done.status == 0, done.out + done.err
        found = json.loads(result.read_text())
        assert found["stopped"] == {"by": "done", "reason": None}
        assert found["context"]["flags"]["replicas"] == "2"
        assert found["capacity"]["requests_per_second"] <= max(step["throughput_rps"] for step in found["steps"])
        _is_watched(listing, file, f"http://{listen}/metrics", a, b)


def _is_watched(listing: _Listing, file: Path, address: str, a: Sim, b: Sim) -> None:
    """Assert that a monitor reads both replicas, then one of them, and loses no canary by that."""
    monitor = Process(listing.asking([*COMMAND, "run", "-c", str(file)]), file.with_suffix(".log"))

    def page() -> str:
        try:
            return httpx.get(address, timeout=20, trust_env=False).text
        except httpx.HTTPError:
            return ""

    def reads_both() -> bool:
        return set(_ENGINE.findall(page())) == {f"localhost:{each.port}" for each in (a, b)}

    try:
        eventually(reads_both, within_s=60, what="both replicas")
        listing.put(a)
        eventually(lambda: f"localhost:{b.port} went" in monitor.tail(), within_s=60, what="one that went")
        eventually(lambda: page() and not reads_both(), within_s=60, what="one replica")
        listing.put(a, b)
        eventually(reads_both, within_s=60, what="both again")
        assert re.search(r'kneewatch_requests_total\{target="router",.*outcome="ok".*\} [1-9]', page())
        assert not re.search(r'kneewatch_requests_total\{target="router",.*outcome="(?!ok)\w+".*\} [1-9]', page())
    finally:
        monitor.terminate()
