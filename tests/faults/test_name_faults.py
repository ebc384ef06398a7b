"""Names that no DNS server answers for, beside one that is answered."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from dns_server import DnsServer, dns_server
from kneewatch_command import COMMAND
from monitor import Sim
from process import CLIENT_CORE, Process, eventually, pinned

from probe.runtime.kept_program import free_port

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0,
    reason="needs root, for a private /etc/resolv.conf",
)
_ALIVE = "alive.kneewatch.test"


@pytest.fixture
def names(tmp_path: Path) -> Iterator[DnsServer]:
    with dns_server(tmp_path, _ALIVE) as server:
        yield server


def _dead(number: int) -> dict[str, Any]:
    return {"name": f"dead{number}", "base_url": f"http://dead{number}.kneewatch.test:8000"}


def _monitor(names: DnsServer, folder: Path, config: dict[str, Any]) -> tuple[Process, str]:
    """Start `kneewatch run`. Return it with the address of its pages."""
    address, file = f"127.0.0.1:{free_port()}", folder / "kneewatch.yml"
    file.write_text(yaml.safe_dump({"listen": address, **config}))
    command = names.used_by([*COMMAND, "run", "-c", str(file)])
    process = Process(pinned(command, CLIENT_CORE), folder / "run.log")
    process.ready(lambda: _page(address) is not None, within_s=60)
    return process, address


def _page(address: str) -> str | None:
    try:
        return httpx.get(f"http://{address}/metrics", timeout=5, trust_env=False).text
    except httpx.HTTPError:
        return None


def _canaries(address: str, target: str) -> dict[str, int]:
    """Return how many canaries of a target had each outcome."""
    found = re.findall(
        rf'^kneewatch_requests_total{{(.*target="{target}".*)}} (\S+)$', _page(address) or "", re.MULTILINE
    )
    counts = ((re.search(r'outcome="(\w+)"', labels), float(value)) for labels, value in found)
    return {outcome[1]: int(count) for outcome, count in counts if outcome and count}


@pytest.mark.fault(
    "C29",
    "No DNS server answers for eight targets, a proxy, Prometheus and two discoveries",
    area="Names",
    users_see="these targets: `timeout` or `unreachable`",
    stays="another target by name keeps all of its canaries, at default intervals",
)
@pytest.mark.fault(
    "C46",
    "SIGTERM while lookups hang",
    area="Names",
    users_see="-",
    stays="the process ends within 5 s",
)
def test_names_that_hang_leave_another_target_its_canaries_and_the_monitor_its_end(
    names: DnsServer, tiny: Sim, tmp_path: Path
) -> None:
    """Eight targets, a proxy, a Prometheus, a registry and a discovery by names that take ten seconds each."""
    alive = {"name": "alive", "base_url": f"http://{_ALIVE}:{tiny.port}"}
    proxied = {
        "name": "proxied",
        "base_url": "http://far.kneewatch.test",
        "connection": {"proxy": "http://proxy.kneewatch.test:1"},
    }
    found = [
        {"name": "registry", "discover": {"http": {"url": "http://registry.kneewatch.test/targets"}}},
        {"name": "records", "discover": {"dns": {"name": "records.kneewatch.test", "type": "A", "port": 8000}}},
    ]
    config = {
        "prometheus": {"url": "http://prometheus.kneewatch.test:9090"},
        "targets": [*(_dead(number) for number in range(8)), proxied, alive, *found],
    }
    process, address = _monitor(names, tmp_path, config)
    try:
        eventually(lambda: _canaries(address, "alive").get("ok", 0) >= 4, within_s=90, what="four canaries")
        assert list(_canaries(address, "alive")) == ["ok"]
        assert set(_canaries(address, "dead0")) - {"unreachable"} == {"timeout"}
        up = re.compile(r'^kneewatch_target_up{.*target="alive".*} 1.0$', re.MULTILINE)
        eventually(lambda: up.search(_page(address) or ""), within_s=30, what="it is up")
        expected = [f"dead{number}" for number in range(8)] + ["proxy", "prometheus", "registry", "records"]
        looked_up = {f"{name}.kneewatch.test" for name in expected}
        eventually(lambda: looked_up <= names.asked, within_s=60, what="a lookup of each name")
        began_s = time.monotonic()
        assert process.terminate() == 0, process.tail()
        assert time.monotonic() - began_s < 5
        assert "Traceback" not in process.tail(100_000)
    finally:
        process.kill()


@pytest.mark.fault(
    "NM1",
    "A command for a name that no DNS server answers for",
    area="Names",
    users_see="one line, exit 2",
    stays="it ends at its deadline",
)
def test_a_command_for_a_name_that_hangs_ends_with_one_line(names: DnsServer) -> None:
    command = names.used_by([*COMMAND, "check", "--base-url", "http://dead.kneewatch.test:8000"])
    began_s = time.monotonic()
    done = subprocess.run(pinned(command, CLIENT_CORE), check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, ""), done.stderr
    assert time.monotonic() - began_s < 20
