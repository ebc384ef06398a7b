"""`kneewatch run` beside a real vLLM and a real Prometheus, while vLLM is killed and comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kneewatch_command import kneewatch
from monitor import Monitor
from process import eventually
from real_prometheus import RealPrometheus
from real_vllm import RealVllm

from alerts.build import write

pytestmark = [pytest.mark.prometheus, pytest.mark.alone]

# An hour's window becomes three minutes: the same rules, rehearsed. Prometheus is real, so the clock is too.
REHEARSAL = 0.05


def _config(base_url: str) -> dict[str, object]:
    return {
        "objectives": {
            "chat": {
                "availability": 0.999,
                "ttft": {"ratio": 0.95, "within": "500ms"},
                "tpot": {"ratio": 0.95, "within": "50ms"},
            }
        },
        "workloads": {"short": {"prompt_tokens": 32, "output_tokens": 8}},
        "targets": [
            {
                "name": "tiny",
                "base_url": base_url,
                "objectives": "chat",
                "scrape": "1s",
                "canary": {"every": "1s", "workload": "short", "timeout": "5s"},
            }
        ],
    }


@pytest.fixture
def monitor(vllm: RealVllm, tmp_path: Path) -> Iterator[Monitor]:
    with Monitor(_config(vllm.base_url), tmp_path / "monitor") as running:
        yield running


@pytest.fixture
def prometheus(monitor: Monitor, prometheus_binary: str, tmp_path: Path) -> Iterator[RealPrometheus]:
    rules = write(tmp_path / "rules", window_scale=REHEARSAL)
    with RealPrometheus(
        prometheus_binary, tmp_path / "prometheus", addresses=[monitor.address], rule_files=rules
    ) as running:
        yield running


def test_the_rules_of_the_command_load_into_prometheus(prometheus_binary: str, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(_config("http://127.0.0.1:9")))
    done = kneewatch("alerts", "-c", file, "-o", tmp_path / "rules")
    assert done.status == 0, done.err
    rules = sorted((tmp_path / "rules").glob("*.yml"))
    assert rules
    # Prometheus does not start with a file that it cannot read, or whose expressions it refuses.
    with RealPrometheus(prometheus_binary, tmp_path / "prometheus", addresses=[], rule_files=rules) as running:
        assert running.query("1")


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.fault(
    "PR14",
    "A target is killed: rules, Prometheus and pages",
    area="Prometheus",
    users_see="`target_up` 0, canaries `unreachable`, a page; all end when it is back",
    stays="the monitor is ready all the time",
)
def test_a_killed_server_is_noticed_and_paged_and_noticed_when_it_is_back(
    vllm: RealVllm, monitor: Monitor, prometheus: RealPrometheus
) -> None:
    page = _fast_page(monitor, prometheus)

    eventually(lambda: _requests(prometheus, "ok") >= 10, within_s=60, what="ten canaries that succeed")
    assert prometheus.value('kneewatch_target_up{target="tiny"}') == 1
    assert prometheus.value('kneewatch_server_scrape_up{target="tiny"}') == 1
    assert _requests(prometheus, "unreachable") == 0
    assert not page()

    vllm.kill()
    eventually(lambda: _up(prometheus) == 0, within_s=30, what="target_up 0 after the kill")
    eventually(lambda: _requests(prometheus, "unreachable") >= 3, within_s=30, what="canaries that cannot connect")
    eventually(page, within_s=60, what="the page on availability")
    assert monitor.alive
    assert monitor.is_ready()

    ok_before = _requests(prometheus, "ok")
    vllm.start()
    eventually(lambda: _up(prometheus) == 1, within_s=30, what="target_up 1 again")
    eventually(lambda: _requests(prometheus, "ok") >= ok_before + 5, within_s=30, what="canaries that succeed again")
    eventually(lambda: not page(), within_s=400, what="the end of the page")
    assert "Traceback" not in monitor.output


def _fast_page(monitor: Monitor, prometheus: RealPrometheus) -> "_Page":
    """Return the availability page with the shortest window, the first in the rules."""
    (file,) = sorted((monitor.config_file.parent.parent / "rules").glob("*.yml"))
    for group in yaml.safe_load(file.read_text())["groups"]:
        for rule in group["rules"]:
            labels = rule.get("labels", {})
            if labels.get("severity") == "page" and labels.get("objective") == "availability":
                stated = {name: value for name, value in labels.items() if "{{" not in value}
                return _Page(prometheus, {"alertname": rule["alert"], **stated})
    raise AssertionError("no rule pages on availability")


class _Page:
    """Whether the alert with these labels fires now."""

    def __init__(self, prometheus: RealPrometheus, labels: dict[str, str]) -> None:
        self._prometheus, self._labels = prometheus, labels

    def __call__(self) -> bool:
        return any(self._labels.items() <= alert.items() for alert in self._prometheus.firing())


def _up(prometheus: RealPrometheus) -> float | None:
    return prometheus.value('kneewatch_target_up{target="tiny"}')


def _requests(prometheus: RealPrometheus, outcome: str) -> float:
    matchers = f'target="tiny",traffic="canary",outcome="{outcome}"'
    return prometheus.value(f"sum(kneewatch_requests_total{{{matchers}}})") or 0.0
