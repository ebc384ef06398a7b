"""GPUs of discovered pods, with the API server of the tests, dcgm-exporter's pages and a real Prometheus."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from api_server import pod
from cluster import Cluster, cluster
from kneewatch_command import kneewatch
from monitor import Monitor, Sim
from process import eventually
from real_prometheus import RealPrometheus
from threaded_server import Request, threaded_server

from probe.config.prometheus import PrometheusConfig
from probe.core.errors import TargetError
from probe.core.snapshot import Gpu
from probe.gpu.dcgm import parse
from probe.gpu.dcgm_series import GpuOwner
from probe.prometheus.queries import Prometheus

__all__ = ["cluster"]
pytestmark = [pytest.mark.alone, pytest.mark.long]

PAGES = Path(__file__).parents[1] / "pages/gpu"
SHARED, LLAMA = ((PAGES / f"dcgm-{name}.prom").read_text() for name in ("4.8-shared", "4.9"))
OF_LLAMA = {"pod": "llama-0", "namespace": "serving"}


@contextmanager
def exporter(*pages: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a page of dcgm-exporter: the last one of the list, which may change. Yields the address and the list."""
    shown = list(pages)

    def reply(request: Request, _: bytes) -> None:
        request.answer(200, shown[-1].encode(), "text/plain; version=0.0.4")

    with threaded_server(reply) as url:
        yield url, shown


def gpu(monitor: Monitor) -> dict[str, object]:
    """Return the target's GPUs and why there are none, as the API has them."""
    (target,) = json.loads(monitor.page("/api/v1/targets")) or [{"gpus": None, "gpu_error": "no target"}]
    uuids = [one["labels"]["UUID"] for one in target["gpus"] or ()]
    return {"uuids": uuids, "error": target["gpu_error"]}


def test_the_gpus_of_a_found_pod_follow_it_and_its_exporter(cluster: Cluster, tiny: Sim, tmp_path: Path) -> None:
    other = LLAMA.replace("llama-0", "qwen-9").replace("llama-1", "llama-0")
    with exporter(LLAMA) as (first, pages), exporter(other) as (second, _):
        ports = [int(url.rpartition(":")[2]) for url in (first, second)]
        serves = {"kubernetes": {"selector": "app=qwen", "port": tiny.port, "namespace": "serving"}}
        exporters = {"kubernetes": {"selector": "app=dcgm", "port": "metrics", "namespace": "serving"}}
        target = {"name": "qwen", "discover": serves, "gpu": {"dcgm": exporters, "every": "1s"}}

        def put_exporter(name: str, node: str, port: int) -> None:
            one = pod(name, "127.0.0.1", labels={"app": "dcgm"}, port="metrics", node=node)
            one["spec"]["containers"][0]["ports"][0]["containerPort"] = port
            cluster.do(lambda api: api.put(one))

        cluster.do(lambda api: api.put(pod("llama-0", "127.0.0.1", node="node-0")))
        put_exporter("dcgm-1", "node-1", ports[1])
        with Monitor({"targets": [target]}, tmp_path / "run") as monitor:
            eventually(
                lambda: "no dcgm-exporter on node node-0" in str(gpu(monitor)["error"]), within_s=20, what="none there"
            )
            put_exporter("dcgm-0", "node-0", ports[0])
            mine, theirs = (one.labels["UUID"] for one in parse(LLAMA, 0, 0.0, {}).gpus)
            eventually(lambda: gpu(monitor) == {"uuids": [mine], "error": None}, within_s=20, what="its GPU")
            page = monitor.page("/metrics")
            assert re.search(rf'kneewatch_gpu_power_watts\{{target="qwen/llama-0".*UUID="{mine}"', page)
            assert theirs not in page
            cluster.do(lambda api: api.delete("llama-0"))
            cluster.do(lambda api: api.put(pod("llama-0", "127.0.0.1", node="node-1", uid="another")))
            eventually(lambda: gpu(monitor) == {"uuids": [theirs], "error": None}, within_s=20, what="on its new node")
            cluster.do(lambda api: api.delete("dcgm-1"))
            put_exporter("dcgm-2", "node-1", ports[0])
            eventually(lambda: gpu(monitor)["uuids"] == [mine], within_s=20, what="by the exporter that replaced it")
            pages.append(re.sub(r',container=.*,pod="llama-\d"', "", LLAMA))
            eventually(
                lambda: "does not say which pods" in str(gpu(monitor)["error"]), within_s=20, what="no labels of pods"
            )
            assert 'kneewatch_gpu_scrape_up{target="qwen/llama-0"} 0' in monitor.page("/metrics")
            assert "DCGM_EXPORTER_KUBERNETES" in monitor.page("/targets/qwen/llama-0")


@pytest.mark.prometheus
@pytest.mark.parametrize("honours", ["honours", "renames"])
def test_a_prometheus_has_the_same_gpus_as_the_page_with_honor_labels_and_without(
    prometheus_binary: str, tmp_path: Path, honours: str
) -> None:
    with ExitStack() as held:
        addresses = [held.enter_context(exporter(page))[0].partition("//")[2] for page in (LLAMA, SHARED)]
        job = {
            "job_name": "dcgm",
            "honor_labels": honours == "honours",
            "static_configs": [
                {"targets": [address], "labels": {"pod": "dcgm-exporter-x2z9k", "namespace": "gpu-operator"}}
                for address in addresses
            ],
        }
        real = held.enter_context(RealPrometheus(prometheus_binary, tmp_path, addresses=[], jobs=[job]))
        eventually(lambda: real.value('count(up{job="dcgm"} == 1)') == 2, within_s=30, what="both are scraped")
        asked = Prometheus(PrometheusConfig(url=real.base_url))

        def found(of: GpuOwner) -> tuple[tuple[Gpu, ...], float]:
            return asyncio.run(asked.gpus(of))

        shared = {"pod": "chat-0", "namespace": "team-a"}
        gpus, age_s = found(GpuOwner(OF_LLAMA, node="gpu-node-9"))
        assert gpus == parse(LLAMA, 0, 0.0, OF_LLAMA).gpus
        assert found(GpuOwner(shared))[0] == parse(SHARED, 0, 0.0, shared).gpus, "the whole, not the pod's part"
        assert 0 <= age_s < 3
        (whole,) = found(GpuOwner({"Hostname": "gpu-node-1"}))[0]
        assert whole.values == parse(SHARED, 0, 0.0, {}).gpus[0].values
        with pytest.raises(TargetError, match="no series of DCGM with pod=chat-0, namespace=team-b"):
            found(GpuOwner({"pod": "chat-0", "namespace": "team-b"}))
        with pytest.raises(TargetError, match=r"the GPUs of 127.0.0.1 are used by pods"):
            found(GpuOwner(host="127.0.0.1"))


def test_a_ramp_and_doctor_read_the_gpus_that_an_option_names(tiny: Sim) -> None:
    begun = time.monotonic()

    def reply(request: Request, _: bytes) -> None:
        busy = LLAMA + f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-x",gpu="7"}} {int(time.monotonic() - begun) % 50 + 50}\n'
        request.answer(200, busy.encode(), "text/plain")

    with threaded_server(reply) as url:
        gpus = ["--dcgm-url", f"{url}/metrics", "--gpu-label", "UUID=GPU-x"]
        steps = ["--concurrency", "1", "--step-seconds", "6", "--confirm-seconds", "0", "--json"]
        ramp = kneewatch("ramp", "--base-url", tiny.base_url, *steps, *gpus)
        (step,) = json.loads(ramp.out)["steps"]
        assert 0.5 <= step["gpu"]["utilization_peak"] <= 1
        doctor = kneewatch("doctor", "--base-url", tiny.base_url, "--seconds", "15", *gpus)
        assert re.search(r"GPU: \d+ % busy", doctor.out)
    dead = ["--dcgm-url", f"{url}/metrics"]
    ramp = kneewatch("ramp", "--base-url", tiny.base_url, *steps[:2], "--step-seconds", "2", *steps[4:], *dead)
    assert "the result has no GPUs while they cannot be read" in ramp.err
    assert json.loads(ramp.out)["steps"][0]["gpu"]["utilization_peak"] is None
    doctor = kneewatch("doctor", "--base-url", tiny.base_url, "--seconds", "15", *dead)
    assert f"GPUs: {url}/metrics: no metrics of GPUs" in doctor.out
