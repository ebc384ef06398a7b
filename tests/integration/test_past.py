"""`kneewatch doctor --prometheus` and a real Prometheus with the past of servers, as others store and relabel it."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from kneewatch_command import kneewatch
from past_pages import Page, make_blocks, simulated
from real_prometheus import RealPrometheus

from benchmarks.capacity.truth_file import read
from exporters import names
from probe.config.prometheus import PrometheusConfig
from probe.core.errors import TargetError
from probe.core.objectives import Objective, Objectives
from probe.observe.past_verdict import Health, verdict
from probe.observe.server_past import ServerPast
from probe.prometheus.past import PastReader
from probe.prometheus.queries import Prometheus
from probe.report.past_causes import causes

pytestmark = pytest.mark.prometheus

CHAT = Objectives("chat", ttft=Objective(0.95, 0.5), tpot=Objective(0.95, 0.05))
TRUTH = {name: read()[name].truth.rps for name in ("llama-8b", "seats-16", "kv-tight")}
HOURS = 1
MINUTES = 5.0
CALM = (0.3, 0.5, 0.4, 0.6, 0.7, 0.5, 0.3, 0.5, 0.6, 0.4, 0.5, 0.6)
BUSY = (0.5, 0.6, 1.4, 1.2, 0.5, 0.4, 0.5, 0.6, 0.5, 0.4, 0.5, 0.5)


def _pod(pod: str, model: str, **more: str) -> dict[str, str]:
    return {
        "namespace": "chat",
        "pod": pod,
        "instance": f"{pod}.example:8000",
        "job": "vllm",
        "model_name": model,
        **more,
    }


@dataclass(frozen=True)
class Known:
    """A Prometheus and what was read of it."""

    prometheus: RealPrometheus
    ends_s: float

    def read(self, matchers: str = "", hours: float = HOURS) -> Mapping[str, ServerPast]:
        url = self.prometheus.base_url
        reader = PastReader(Prometheus(PrometheusConfig(url=url)), url, self.ends_s + 60.0, hours * 3600.0, matchers)
        return {one.name: one for one in asyncio.run(reader.read(CHAT))}


@pytest.fixture(scope="module")
def known(promtool: str, prometheus_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    folder = tmp_path_factory.mktemp("past")
    ends_s = time.time() // 60 * 60 - 60.0
    make_blocks(promtool, folder / "prometheus" / "tsdb", _pages(ends_s), list(_more(ends_s)))
    with RealPrometheus(prometheus_binary, folder / "prometheus", addresses=[]) as prometheus:
        yield Known(prometheus, ends_s)


def _rates(case: str, shares: Sequence[float]) -> list[float]:
    return [TRUTH[case] * share for share in shares]


def _pages(ends_s: float) -> list[Page]:
    calm = simulated("llama-8b", _rates("llama-8b", CALM), minutes=MINUTES)
    every_30, every_60 = calm[::2], calm[::4]
    seats = simulated("seats-16", _rates("seats-16", BUSY), minutes=MINUTES, every_s=60)
    kv = simulated("kv-tight", _rates("kv-tight", BUSY), minutes=MINUTES, every_s=60)
    return [
        Page(_pod("llama-0", "llama"), calm, ends_s),
        Page(_pod("llama-1", "llama"), every_30, ends_s),
        Page(_pod("llama-2", "llama"), every_60, ends_s),
        Page(_pod("llama-0", "llama", prometheus_replica="b"), every_60, ends_s),
        Page(_pod("llama-3", "llama"), every_60, ends_s - 900.0),
        Page(_pod("seats-0", "seats"), seats, ends_s),
        Page(_pod("kv-0", "kv"), kv, ends_s),
        Page(_pod("old-0", "old"), every_60, ends_s, old=True),
        Page({"instance": "ray:8080", "job": "ray", "model_name": "ray"}, every_60, ends_s, prefix="ray_vllm_"),
        Page(_pod("reset-0", "reset"), every_60, ends_s, reset_at=0.5, gap=(0.6, 0.8)),
        Page(_pod("short-0", "short"), every_60[-30:], ends_s),
        Page(_pod("dropped-0", "dropped"), every_60, ends_s, without=("ttft", "prompt_length")),
        Page(_pod("two-0", "two"), every_60, ends_s, more={"engine": "0"}),
        Page(_pod("two-0", "two"), every_60, ends_s, more={"engine": "1"}),
        Page({"instance": "page:8000", "job": "vllm", "model_name": "a"}, every_60, ends_s),
        Page(
            {"instance": "page:8000", "job": "vllm", "model_name": "b"}, every_60, ends_s, without=("kv_cache_tokens",)
        ),
    ]


def _more(ends_s: float) -> Iterator[str]:
    """Yield a router's gauges, DCGM's series of one pod, and what a Kneewatch said of a run."""
    gpu = 'gpu="0",UUID="GPU-1",Hostname="node-1",exported_pod="kv-0",exported_namespace="chat",pod="dcgm-x"'
    run = {
        names.CAPACITY_RPS.name: 10.0,
        names.CAPACITY_RPS_LOWER.name: 9.0,
        names.CAPACITY_FINGERPRINT.name: 12345.0,
        names.CAPACITY_LAST_SUCCESS.name: ends_s - 3600.0,
    }
    for minute in range(HOURS * 60):
        at = f"{ends_s - (HOURS * 60 - 1 - minute) * 60:.0f}"
        yield f'vllm:num_requests_running{{job="router",server="http://llama-0:8000"}} 3 {at}'
        for name, value in run.items():
            yield f'{name}{{target="a",workload="chat",mode="verified",model="m"}} {value} {at}'
        yield f"DCGM_FI_DEV_GPU_UTIL{{{gpu}}} 80 {at}"
        yield f"DCGM_FI_DEV_XID_ERRORS{{{gpu}}} 79 {at}"
        yield f"DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL{{{gpu}}} {minute * 12} {at}"


@pytest.mark.fault(
    "PR130",
    "A Prometheus with restarts, gaps, dropped series, two records of a server, and pages of routers",
    area="Prometheus",
    users_see="`doctor --prometheus` names what is missing",
    stays="each server once, by whatever labels; unknown is not healthy",
)
def test_each_server_is_found_once_by_whatever_labels_and_names_it_has(known: Known) -> None:
    """Of one reading: old and new names, Ray's, intervals, restarts, gaps, engines, dropped series."""
    found = known.read()
    health = {name: verdict(one, CHAT).health for name, one in found.items()}
    assert health == {
        **dict.fromkeys(("llama-0", "llama-1", "llama-2", "ray:8080", "reset-0", "short-0", "two-0"), Health.YES),
        **dict.fromkeys(("a/page:8000", "b/page:8000", "old-0", "llama-3"), Health.YES),
        **dict.fromkeys(("seats-0", "kv-0"), Health.NO),
        **dict.fromkeys(("dropped-0", "router"), Health.UNKNOWN),
    }
    assert [name for name, one in found.items() if one.is_gone] == ["llama-3"]
    assert [dict(one) for one in found["llama-0"].records] == [_pod("llama-0", "llama", prometheus_replica="b")]
    _check_counts(found)
    _check_causes(found)
    (gpu,) = found["kv-0"].gpus
    assert (gpu.busy, gpu.xid) == (pytest.approx(0.8), 79)
    assert gpu.throttled_for_power == pytest.approx(0.2, rel=0.05)


def _check_counts(found: Mapping[str, ServerPast]) -> None:
    """Compare what was counted with what was sent, whatever the interval of the scrapes."""
    sent = sum(CALM) * MINUTES * 60 * TRUTH["llama-8b"]
    for name in ("llama-0", "llama-1", "llama-2", "ray:8080", "old-0"):
        assert found[name].sum("requests") == pytest.approx(sent, rel=0.05), name
        peak = verdict(found[name], CHAT).peak.requests_per_second
        assert peak == pytest.approx(max(CALM) * TRUTH["llama-8b"], rel=0.15), name
    assert found["two-0"].sum("requests") == pytest.approx(2 * sent, rel=0.05)
    assert set(found["two-0"].parts["engine_running"]) == {"0", "1"}
    assert found["reset-0"].sum("requests") == pytest.approx(0.8 * sent, rel=0.1)
    assert found["reset-0"].restarts == 1
    assert found["llama-0"].restarts == 0
    assert len(found["short-0"].seen) == pytest.approx(6, abs=1)


def _check_causes(found: Mapping[str, ServerPast]) -> None:
    seats, kv = (causes(one, verdict(one, CHAT)) for one in (found["seats-0"], found["kv-0"]))
    assert seats[0].key == "queue"
    assert "16 ran, as many as ever did" in seats[0].words
    assert {"kv", "preemptions", "gpu"} <= {one.key for one in kv}
    assert "GPU 0 had XID 79" in [one.words for one in kv]


def test_the_history_of_runs_is_found_by_exact_names(known: Known) -> None:
    """All of its series have the same labels, of which PromQL's `or` would keep the first."""
    prometheus = Prometheus(PrometheusConfig(url=known.prometheus.base_url))
    (run,) = asyncio.run(prometheus.capacity_history("a", "chat", known.ends_s))
    assert (run.requests_per_second, run.lower, run.at_s) == (10.0, 9.0, known.ends_s - 3600.0)


@pytest.mark.fault(
    "PR131",
    "A Prometheus without vLLM, or whose matchers are wrong",
    area="Prometheus",
    users_see="one line with what was asked for: exit status 2",
    stays="-",
)
def test_matchers_choose_and_what_there_is_not_is_one_line(known: Known) -> None:
    assert list(known.read('pod=~"llama-[01]"')) == ["llama-0", "llama-1"]
    with pytest.raises(TargetError, match='no series of vLLM that match pod="nobody" in that time'):
        known.read('pod="nobody"')
    with pytest.raises(TargetError, match="parse error"):
        known.read('pod="')


@pytest.mark.fault(
    "PR132",
    "A Prometheus that keeps less than `--since`",
    area="Prometheus",
    users_see="since when each server is known",
    stays="the verdict is of what there is",
)
def test_a_history_shorter_than_asked_for_is_said(known: Known) -> None:
    """Seven days of five minutes are 2,016 steps; Prometheus takes 11,000."""
    found = known.read('pod="llama-0"', hours=7 * 24)
    assert len(found["llama-0"].steps) == 2016
    assert len(found["llama-0"].seen) == pytest.approx(HOURS * 12, abs=2)


@pytest.mark.long
def test_the_command_says_who_suffers_why_and_how_much_each_takes(known: Known) -> None:
    asked = ("doctor", "--prometheus", known.prometheus.base_url, "--since", "1h", "--match", 'pod=~"(llama|seats)-0"')
    done = kneewatch(*asked, "--json")
    assert done.status == 1, done.err
    said: dict[str, Any] = json.loads(done.out)
    assert [(one["name"], one["health"]) for one in said["servers"]] == [("seats-0", "no"), ("llama-0", "yes")]
    for one, case in zip(said["servers"], ("seats-16", "llama-8b"), strict=True):
        capacity = one["capacity"]
        assert capacity["lower"] is not None, capacity["reason"]
        assert capacity["lower"] <= TRUTH[case] * 1.05
        assert 0.7 * TRUTH[case] < capacity["requests_per_second"] < 1.15 * TRUTH[case]
    assert 0 < said["servers"][1]["headroom_at_peak"] < 1 - max(CALM) + 0.1
    text = kneewatch(*asked).out.splitlines()
    assert text[0].startswith("2 vLLM servers, healthy for users in the 1h to ")
    assert "1 not, 1 healthy" in text[0]
    assert text[2].startswith("seats-0 (seats): TTFT missed in ")
    assert any(line.startswith("  queue: requests waited ") for line in text)
