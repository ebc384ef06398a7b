"""Where the GPUs of a discovered server are: the exporter on its node and the labels of its pod, or why not."""

import asyncio

import pytest
from for_each import for_each

from probe.config.gpu import DcgmConfig, GpuConfig
from probe.config.targets import TargetConfig
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.discovery.types import DiscoveredServer
from probe.monitor.gpu_places import Exporters, GpuPlace, place_of
from probe.monitor.gpu_readers import GpuReaders

DCGM = DcgmConfig.model_validate({"kubernetes": {"namespace": "gpu-operator", "selector": "app=dcgm"}})
NAMED = "app=dcgm in gpu-operator, port 9400/metrics"
OF_POD = {"pod": "qwen-0", "namespace": "serving"}


def server(node: str = "gpu-1", **pod: str) -> DiscoveredServer:
    facts = {"node": node} if node else {}
    return DiscoveredServer("qwen-0", "http://10.0.0.1:8000", facts=facts, pod=pod)


def exporter(name: str, node: str, *, ready: bool = True) -> DiscoveredServer:
    return DiscoveredServer(name, f"http://{name}:9400/metrics", facts={"node": node}, is_ready=ready)


def place(found: DiscoveredServer, *exporters: DiscoveredServer, problem: str | None = None) -> GpuPlace:
    its = Exporters()
    asyncio.run(its.found(DCGM.name, exporters))
    its.problem(DCGM.name, problem)
    return place_of(GpuConfig(dcgm=DCGM), found, its)


@pytest.mark.fault(
    "KU60",
    "A pod that moves to another node, or a dcgm-exporter that is replaced",
    area="Kubernetes",
    users_see="nothing",
    stays="the exporter on the pod's node is read",
)
def test_the_exporter_on_the_pods_node_is_read_also_after_either_has_moved() -> None:
    both = (exporter("a", "gpu-1"), exporter("b", "gpu-2"))
    assert place(server(**OF_POD), *both) == GpuPlace(("http://a:9400/metrics",), OF_POD, "gpu-1")
    assert place(server("gpu-2", **OF_POD), *both).urls == ("http://b:9400/metrics",)
    replaced = (exporter("a", "gpu-1", ready=False), exporter("c", "gpu-1"), exporter("b", "gpu-2"))
    assert place(server(**OF_POD), *replaced).urls == ("http://c:9400/metrics",)
    assert place(server(**OF_POD), exporter("a", "gpu-1", ready=False)).urls == ("http://a:9400/metrics",)


WHY = {
    "no exporter there": (
        place(server(**OF_POD), exporter("b", "gpu-2")),
        f"there is no dcgm-exporter on node gpu-1 ({NAMED}: 1 on other nodes)",
    ),
    "none at all": (
        place(server(**OF_POD), problem="pods in gpu-operator with app=dcgm: no pod has these labels"),
        f"there is no dcgm-exporter on node gpu-1 ({NAMED}: none on any node)",
    ),
    "no pod": (place(server()), "the discovery does not say which pod the server is (labels pod and namespace)"),
    "no node": (place(server("", **OF_POD)), "the discovery does not say on which node the pod is (label node)"),
    "not listed": (
        place_of(GpuConfig(dcgm=DCGM), server(**OF_POD), Exporters()),
        f"the dcgm-exporters ({NAMED}) are not known: they have not been listed yet",
    ),
}


@pytest.mark.fault(
    "KU61",
    "No dcgm-exporter on the pod's node, or none that may be listed",
    area="Kubernetes",
    users_see="one line on the target's page",
    stays="no GPU of another node is taken",
)
@for_each(WHY, str)
def test_a_place_that_is_not_known_is_said(name: str) -> None:
    found, words = WHY[name]
    assert (found.problem, found.urls) == (words, ())


def test_the_reason_that_exporters_cannot_be_listed_is_said_until_they_can() -> None:
    its = Exporters()
    its.problem(DCGM.name, "pods in gpu-operator: forbidden (HTTP 403)")
    gpu = GpuConfig(dcgm=DCGM)
    assert str(place_of(gpu, server(**OF_POD), its).problem).endswith(
        "not known: pods in gpu-operator: forbidden (HTTP 403)"
    )
    its.problem(DCGM.name, None)
    asyncio.run(its.found(DCGM.name, (exporter("a", "gpu-1"),)))
    assert place_of(gpu, server(**OF_POD), its).problem is None


def test_in_prometheus_servers_of_one_host_have_no_gpus_unless_something_says_which() -> None:
    gpu, its = GpuConfig(prometheus=True), Exporters()
    assert place_of(gpu, server(), its) == GpuPlace(node="gpu-1")
    assert str(place_of(gpu, server(), its, shares_host=True).problem).startswith("several servers are on 10.0.0.1")
    assert place_of(gpu, server(**OF_POD), its, shares_host=True) == GpuPlace(labels=OF_POD, node="gpu-1")
    by_uuid = gpu.model_copy(update={"labels": {"UUID": "GPU-a"}})
    assert place_of(by_uuid, server(), its, shares_host=True).problem is None


def test_the_first_reading_waits_until_the_exporters_have_been_listed() -> None:
    async def story() -> str:
        its, readers, gpu = Exporters(), GpuReaders(SystemClock()), GpuConfig(dcgm=DCGM)
        target = TargetConfig(name="qwen", base_url="http://10.0.0.1:8000", gpu=gpu)
        read = readers.reader(target, None, lambda: place_of(gpu, server(**OF_POD), its))
        assert read is not None
        asyncio.get_running_loop().call_later(0.05, its.problem, DCGM.name, "forbidden")
        with pytest.raises(TargetError) as caught:
            await read()
        return str(caught.value)

    assert asyncio.run(story()) == f"the dcgm-exporters ({NAMED}) are not known: forbidden"
