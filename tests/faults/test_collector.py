"""An OpenTelemetry collector that is away, or takes requests and never answers."""

import re
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from monitor import Monitor, Sim
from process import eventually

from probe.runtime.kept_program import free_port

_SENT = re.compile(r'^kneewatch_requests_total\{[^}]*traffic="canary"[^}]*\} (\S+)$', re.MULTILINE)
_FAILED = re.compile(r"^kneewatch_otlp_failures_total (\S+)$", re.MULTILINE)


def total(found: re.Pattern[str], monitor: Monitor) -> float:
    return sum(float(value) for value in found.findall(monitor.page("/metrics")))


@pytest.mark.parametrize("kind", ["away", "silent"])
@pytest.mark.fault(
    "OT1",
    "The OpenTelemetry collector is away",
    area="Prometheus",
    users_see="`kneewatch_otlp_failures_total`; one line in the log",
    stays="canaries at their pace; up to 2,048 spans wait",
    case="away",
)
@pytest.mark.fault(
    "OT2",
    "The collector accepts connections and never answers",
    area="Prometheus",
    users_see="the same, after 5 s",
    stays="canaries at their pace",
    case="silent",
)
def test_a_collector_holds_no_canary(sim: Sim, tmp_path: Path, kind: str) -> None:
    """Beside a monitor without one, at the same time on the same machine."""
    targets = {"targets": [{"name": "a", "base_url": sim.base_url, "canary": {"every": "1s"}}]}
    with ExitStack() as held:
        silent = held.enter_context(socket.create_server(("127.0.0.1", 0)))  # connects, and never answers
        port = silent.getsockname()[1] if kind == "silent" else free_port()
        otlp = {"otlp": {"endpoint": f"http://127.0.0.1:{port}"}}
        plain = held.enter_context(Monitor(targets, tmp_path / "plain"))
        telling = held.enter_context(Monitor({**targets, **otlp}, tmp_path / "telling"))
        began = {each.base_url: total(_SENT, each) for each in (plain, telling)}
        eventually(lambda: total(_FAILED, telling) >= 1, within_s=40, what="a failure that is counted")
        sent = {each.base_url: total(_SENT, each) - began[each.base_url] for each in (plain, telling)}
        assert sent[plain.base_url] >= 8
        assert abs(sent[telling.base_url] - sent[plain.base_url]) <= 2
        assert telling.output.count("canaries cannot be sent to the collector") == 1
        assert "Traceback" not in telling.output
        assert httpx.get(f"{telling.base_url}/-/ready", trust_env=False).is_success
