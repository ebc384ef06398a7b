"""Several replicas and several kinds of canaries: what is large, slow or reloaded while they are under way."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
import pytest
import yaml
from foreign_server import MODELS, NO_METRICS, Answer, foreign_server, stream
from monitor import Monitor, Sim
from process import eventually
from process_memory import MIB, peak

RECORDED = (Path(__file__).parents[1] / "golden/vllm-0.32/metrics.txt").read_bytes()
_POD = 384 * MIB
_SHORT_LINES = b"ab\n" * (2_700_000)  # 8 MiB with the page before it, and each line takes 50 bytes once it is split
_MANY = 32


def _target(name: str, url: str, **more: object) -> dict[str, object]:
    return {"name": name, "base_url": url, "scrape": "1s", "canary": {"every": "1s", "workload": "w"}, **more}


def _config(*targets: dict[str, object]) -> dict[str, Any]:
    return {"targets": list(targets), "workloads": {"w": {"prompt_tokens": 8, "output_tokens": 4}}}


@pytest.mark.fault(
    "ME12",
    "32 replicas (`metrics_urls`) have metrics pages of 8 MiB of short lines",
    area="Memory",
    users_see="scrape error `too_large`: all pages together may have 32 MiB",
    stays="below 384 MiB; the other targets",
)
def test_many_replicas_whose_pages_are_large(sim: Sim, tmp_path: Path) -> None:
    asked = 0

    def answer(path: str, body: bytes) -> Answer:
        nonlocal asked
        if path.endswith("/metrics"):
            asked += 1
            return 200, "text/plain", [RECORDED, _SHORT_LINES]
        if path == "/v1/models":
            return 200, "application/json", [MODELS]
        return stream(body) if path == "/v1/completions" else NO_METRICS

    with foreign_server(answer) as url:
        pages = [f"{url}/r{i}/metrics" for i in range(_MANY)]
        large = _target("large", url, metrics_urls=pages)
        with Monitor(_config(large, _target("good", sim.base_url)), tmp_path) as monitor:
            eventually(lambda: asked > 3 * _MANY, within_s=90, what="three scrapes")
            page = monitor.page("/metrics")
            most = peak(monitor.pid)
    assert re.search(r'kneewatch_server_scrape_errors_total{target="large",reason="too_large"} [1-9]', page)
    assert 'kneewatch_server_scrape_up{target="good"} 1.0' in page
    assert most < _POD, f"{most / MIB:.0f} MiB"


class _Slow:
    """A server and its replicas, all slow; counts what is in flight."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.in_flight = self.asked = 0

    def answer(self, path: str, body: bytes) -> Answer:
        if path == "/v1/models":
            return 200, "application/json", [MODELS]
        if path != "/v1/completions" and not path.endswith("/metrics"):
            return NO_METRICS
        if path.endswith("/metrics"):
            return 200, "text/plain", self._slowly([RECORDED] if "r0" in path else [RECORDED[:100], *[b"# x\n"] * 100])
        return 200, "text/event-stream", self._slowly([*stream(body)[2], *[b": ping\n\n"] * 100])

    def _slowly(self, pieces: list[bytes]) -> Iterator[bytes]:
        with self._lock:
            self.in_flight += 1
            self.asked += 1
        try:
            for piece in pieces:
                yield piece
                time.sleep(0.05)
        finally:
            with self._lock:
                self.in_flight -= 1


def _kinds(url: str, replicas: int, every: int) -> dict[str, Any]:
    """Return a configuration with as many replicas and three kinds of canaries."""
    kinds = [{"every": f"{every}s", "timeout": "4s", "workload": name} for name in ("w", "v", "u")]
    target: dict[str, object] = {"name": "slow", "base_url": url, "scrape": "1s", "canaries": kinds}
    target["metrics_urls"] = [f"{url}/r{i}/metrics" for i in range(replicas)]
    target["canary_tokens_per_day"] = 10**8
    sizes = {name: {"prompt_tokens": 8 + i, "output_tokens": 4} for i, name in enumerate(("w", "v", "u"))}
    return {"targets": [target], "workloads": sizes}


@pytest.mark.fault(
    "CO43",
    "Reloads, a removal and SIGTERM while slow pages of replicas are read and three kinds of canaries are in flight",
    area="Configuration",
    users_see="nothing of the old configuration",
    stays="the removed target's requests are gone within 3 s; SIGTERM ends it within 5 s",
)
def test_a_reload_while_replicas_are_read_and_kinds_of_canaries_are_in_flight(sim: Sim, tmp_path: Path) -> None:
    slow = _Slow()
    with foreign_server(slow.answer) as url, Monitor(_kinds(url, 3, 1), tmp_path) as monitor:

        def reload(config: dict[str, Any]) -> None:
            monitor.config_file.write_text(yaml.safe_dump({"listen": monitor.address, **config}))
            done = httpx.post(f"{monitor.base_url}/-/reload", timeout=30, trust_env=False)
            assert done.status_code == 200, done.text

        for i in range(6):
            eventually(lambda: slow.in_flight >= 4, within_s=30, what="canaries and pages in flight")
            reload(_kinds(url, 2 + i % 3, 1 + i % 2))
        eventually(lambda: slow.in_flight >= 4, within_s=30, what="canaries and pages in flight")
        reload(_config(_target("good", sim.base_url)))
        eventually(lambda: slow.in_flight == 0, within_s=3, what="nothing in flight", every_s=0.05)
        asked = slow.asked
        eventually(lambda: 'target="good"' in monitor.page("/metrics"), within_s=30, what="the other target")
        assert 'target="slow"' not in monitor.page("/metrics")
        assert slow.asked == asked
        reload(_kinds(url, 3, 1))
        eventually(lambda: slow.in_flight >= 4, within_s=30, what="canaries and pages in flight")
        began = time.monotonic()
    assert time.monotonic() - began < 5, "SIGTERM ends it while all is in flight"
    assert "Traceback" not in monitor.output
    assert '"level": "error"' not in monitor.output
