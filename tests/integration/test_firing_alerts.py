"""Which alerts fire, asked of a real Prometheus."""

import asyncio
import time
from pathlib import Path

import pytest
import yaml
from process import eventually
from real_prometheus import RealPrometheus

from probe.config.prometheus import PrometheusConfig
from probe.prometheus.queries import Prometheus

pytestmark = pytest.mark.prometheus

_TARGET = 'label_replace(vector(1), "target", "a", "", "")'


@pytest.mark.fault(
    "PR15",
    "There is no Alertmanager",
    area="Prometheus",
    users_see="alerts that fire are known all the same: Prometheus is asked for them",
    stays="-",
)
def test_kneewatchs_alerts_that_fire_are_known_with_target_and_time(prometheus_binary: str, tmp_path: Path) -> None:
    rules = [
        {"alert": "KneewatchPage", "expr": _TARGET, "for": "1s", "labels": {"severity": "page"}},
        {"alert": "KneewatchTicket", "expr": "vector(1)", "labels": {"severity": "ticket"}},
        {"alert": "KneewatchPending", "expr": "vector(1)", "for": "1h", "labels": {"severity": "ticket"}},
        {"alert": "KneewatchTargetDown", "expr": _TARGET, "labels": {"severity": "none"}},
        {"alert": "Foreign", "expr": "vector(1)", "labels": {"severity": "page"}},
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    begun_s = time.time()
    with RealPrometheus(prometheus_binary, tmp_path, addresses=[], rule_files=[file]) as server:
        connection = Prometheus(PrometheusConfig(url=server.base_url))
        eventually(lambda: len(asyncio.run(connection.firing_alerts())) == 2, within_s=30, what="two alerts that fire")
        found = asyncio.run(connection.firing_alerts())
    assert [(one.name, one.severity, one.target) for one in found] == [
        ("KneewatchPage", "page", "a"),
        ("KneewatchTicket", "ticket", None),
    ]
    assert all(one.since_s is not None and begun_s - 1 <= one.since_s <= time.time() for one in found)
