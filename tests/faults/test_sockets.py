"""Connections to Kneewatch's own web server, and file descriptors: what others do to them, and what runs out."""

import re
import resource
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import trustme
import yaml
from monitor import Monitor, Sim
from process import eventually
from stub_server import stub_server

RECORDED = (Path(__file__).parents[1] / "golden/vllm-0.32/metrics.txt").read_text()
MANIFEST_LIMIT_MB = 384  # memory limit of the shipped manifests
_LISTEN = "0A"


def _watching(url: str, every: str = "1s", **more: object) -> dict[str, object]:
    """Return a configuration with one target and its canary."""
    canary = {"every": every, "timeout": "5s", "workload": "w"}
    objectives = {"default": {"availability": 0.999}}  # a busy machine must not fail a latency
    workloads = {"w": {"prompt_tokens": 8, "output_tokens": 4}}
    target = {"name": "llama", "base_url": url, "canary": canary, "scrape": "2s"}
    return {"targets": [target], "objectives": objectives, "workloads": workloads, **more}


def _counted(page: str, name: str, **labels: str) -> float:
    """Return the sum of a counter's samples that have these labels."""
    total = 0.0
    for line in page.splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def _canaries(page: str, outcome: str) -> float:
    return _counted(page, "kneewatch_requests_total", traffic="canary", outcome=outcome)


def _descriptors(monitor: Monitor) -> int:
    return len(list(Path(f"/proc/{monitor.pid}/fd").iterdir()))


def _connections(monitor: Monitor) -> int:
    """Return how many connections to its pages the monitor holds; the kernel has the queued and the closed ones."""
    port = f":{int(monitor.address.rsplit(':', 1)[1]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] != _LISTEN and row[9] != "0" for row in rows)


def _rss_mb(monitor: Monitor) -> float:
    status = Path(f"/proc/{monitor.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def _connect(monitor: Monitor, address: str = "127.0.0.1") -> socket.socket:
    host, port = monitor.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=5, source_address=(address, 0))


def _scrape(monitor: Monitor, address: str, verify: ssl.SSLContext | None = None) -> bool:
    """Report whether a scrape from this address of the machine is answered within Prometheus' default timeout."""
    transport = httpx.HTTPTransport(local_address=address, verify=verify or False, trust_env=False)
    with httpx.Client(transport=transport, timeout=10) as client:
        try:
            return client.get(f"{monitor.base_url}/metrics").is_success
        except httpx.HTTPError:
            return False


@contextmanager
def _many_descriptors() -> Iterator[None]:
    """Let the test itself hold thousands of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.fault(
    "C32b",
    "A client holds as many idle connections as it can get",
    area="Sockets",
    users_see="scrapes and pages are answered, also for other clients at the same address",
    stays="idle connections are closed after 10 s; at most 256 connections, and the client with the most loses "
    "its oldest",
)
def test_idle_connections_do_not_shut_out_scrapes(tiny: Sim, tmp_path: Path) -> None:
    with Monitor(_watching(tiny.base_url), tmp_path) as monitor, ExitStack() as held, _many_descriptors():
        for _ in range(600):
            held.enter_context(_connect(monitor))
        time.sleep(0.5)
        # From the address of the idle connections too: behind a proxy or NAT all clients have one address.
        answered = [_scrape(monitor, address) for address in ("127.0.0.1", "127.0.0.9") * 10]
        assert answered == [True] * 20
        assert _descriptors(monitor) < 400
        eventually(lambda: _connections(monitor) < 5, within_s=30, what="idle connections are closed")


@pytest.mark.fault(
    "C39",
    "1,500 connections without a TLS handshake",
    area="Sockets",
    users_see="scrapes and canaries go on",
    stays="a connection counts from its accept, so descriptors stay below 400; a handshake has 10 s",
)
def test_connections_without_a_tls_handshake_take_few_descriptors(tiny: Sim, tmp_path: Path) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    (tmp_path / "web.yml").write_text(
        yaml.safe_dump({"tls_server_config": {"cert_file": "cert.pem", "key_file": "key.pem"}})
    )
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    config = _watching(tiny.base_url, web_config_file=str(tmp_path / "web.yml"))
    with Monitor(config, tmp_path, verify=trust) as monitor, ExitStack() as held, _many_descriptors():
        before = _canaries(monitor.page("/metrics"), "ok")
        for _ in range(1500):
            held.enter_context(_connect(monitor))
        most = _descriptors(monitor)
        answered = [_scrape(monitor, address, trust) for address in ("127.0.0.1", "127.0.0.9") * 5]
        assert most < 400
        assert answered == [True] * 10
        eventually(lambda: _canaries(monitor.page("/metrics"), "ok") > before + 3, within_s=20, what="canaries go on")
        assert _canaries(monitor.page("/metrics"), "unreachable") == 0
        eventually(lambda: _connections(monitor) < 5, within_s=30, what="unfinished handshakes end")


@pytest.mark.fault(
    "C33",
    "100 readers request a page of 200 targets and read nothing",
    area="Sockets",
    users_see="scrapes are answered",
    stays="each is dropped after 10 s, at most 24 wait at a time; memory stays below the manifests' limit",
)
def test_readers_that_do_not_read_are_dropped(tmp_path: Path) -> None:
    targets = 200
    with stub_server(200, RECORDED) as url:
        config = {
            "targets": [{"name": f"t{n}", "base_url": url, "passive": True, "scrape": "30s"} for n in range(targets)]
        }
        with Monitor(config, tmp_path) as monitor, ExitStack() as held:
            eventually(lambda: len(monitor.page("/metrics")) > 3_000_000, within_s=90, what="a large page", every_s=2)
            for n in range(100):
                reader = held.enter_context(_connect(monitor))
                if n % 2:  # the kernel takes little of the page; otherwise nearly all of it
                    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            most_mb = 0.0
            end = time.monotonic() + 12
            while time.monotonic() < end:
                most_mb = max(most_mb, _rss_mb(monitor))
                time.sleep(0.2)
            assert most_mb < MANIFEST_LIMIT_MB
            assert _scrape(monitor, "127.0.0.9")
            eventually(lambda: _connections(monitor) < 5, within_s=30, what="readers that take nothing are dropped")


@pytest.mark.fault(
    "C40",
    "30 clients POST `/-/reload` without end",
    area="Sockets",
    users_see="canaries and pages go on; each client gets the result of a reload that began after its request",
    stays="one reload at a time, at most one a second and a fifth of the time",
)
def test_reloads_without_end_slow_nothing(tiny: Sim, tmp_path: Path) -> None:
    config = _watching(tiny.base_url)
    passive = [{"name": f"t{n}", "base_url": tiny.base_url, "passive": True, "scrape": "1h"} for n in range(100)]
    config["targets"] = [*config["targets"], *passive]  # type: ignore[misc]
    stop = threading.Event()

    def reload() -> int:
        answered = 0
        with httpx.Client(timeout=30, trust_env=False) as client:
            while not stop.is_set():
                with suppress(httpx.HTTPError):
                    answered += client.post(f"{monitor.base_url}/-/reload").is_success
        return answered

    def median_s(seconds: float) -> float:
        """Return the median time in which /-/healthy answers."""
        times, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            monitor.page("/-/healthy")
            times.append(time.monotonic() - began)
            time.sleep(0.05)
        return statistics.median(times)

    with Monitor(config, tmp_path) as monitor, ThreadPoolExecutor(30) as clients:
        quiet_s = median_s(2)
        before = _canaries(monitor.page("/metrics"), "ok")
        work = [clients.submit(reload) for _ in range(30)]
        busy_s = median_s(10)
        canaries = _canaries(monitor.page("/metrics"), "ok") - before
        stop.set()
        assert all(one.result() > 0 for one in work), "every client gets the result of its reload"
        assert monitor.output.count("the configuration is loaded") <= 12
        assert canaries >= 7
        assert busy_s < 10 * quiet_s


@pytest.mark.fault(
    "C26",
    "Kneewatch is out of file descriptors",
    area="Sockets",
    users_see="canaries are `client_bound`; one line in the log with the limit to raise; pages wait",
    stays="the server's objectives and `kneewatch_target_up` are as before; everything goes on once there are "
    "descriptors",
)
def test_out_of_descriptors_is_no_failure_of_the_server(tiny: Sim, tmp_path: Path) -> None:
    # Later than a connection is kept: each canary needs a new one.
    with Monitor(_watching(tiny.base_url, every="5s"), tmp_path) as monitor:
        eventually(lambda: _canaries(monitor.page("/metrics"), "ok") > 0, within_s=20, what="canaries")
        _, hard = resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE, (4, hard))
        time.sleep(18)
        resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE, (hard, hard))
        eventually(monitor.is_ready, within_s=10, what="the pages are back")
        page = monitor.page("/metrics")
        assert _canaries(page, "client_bound") >= 2
        assert all(_canaries(page, outcome) == 0 for outcome in ("unreachable", "unauthorized", "timeout"))
        judged = sum(_canaries(page, outcome) for outcome in ("ok", "client_bound"))
        assert _counted(page, "kneewatch_good_requests_total", traffic="canary", objective="availability") == judged
        assert _counted(page, "kneewatch_target_up") == 1
        assert "Traceback" not in monitor.output
        lines = [line for line in monitor.output.splitlines() if "ulimit -n" in line and "canary" in line]
        assert len(lines) == 1, monitor.output
        before = _canaries(page, "ok")
        eventually(lambda: _canaries(monitor.page("/metrics"), "ok") > before, within_s=20, what="canaries go on")


@pytest.mark.fault(
    "C26L",
    "A low soft limit of file descriptors",
    area="Sockets",
    users_see="nothing",
    stays="raised to the hard limit at startup",
)
def test_the_descriptor_limit_is_raised(tiny: Sim, tmp_path: Path) -> None:
    soft = 256
    with _limited(soft), Monitor(_watching(tiny.base_url), tmp_path) as monitor:
        found, hard = resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE)
        assert found == hard > soft


@contextmanager
def _limited(soft: int) -> Iterator[None]:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
