"""DCGM's series in a Prometheus: a server's GPUs with the values of its exporter's page, or why there are none."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from prometheus_client.parser import text_string_to_metric_families

from probe.gpu.dcgm import parse
from probe.gpu.dcgm_series import GpuOwner, gpus, owner, pods_gpus, series

PAGES = Path(__file__).parents[2] / "pages/gpu"
CHAT = {"pod": "chat-0", "namespace": "team-a"}
LLAMA = {"pod": "llama-0", "namespace": "serving"}


def rows(page: str, **added: str) -> list[dict[str, Any]]:
    """Return a page as the series of a Prometheus that adds these labels, and renames the exporter's."""
    text = (PAGES / f"dcgm-{page}.prom").read_text()
    lines = (line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    families = text_string_to_metric_families("".join(lines))
    return [
        {
            "metric": {"__name__": one.name}
            | {f"exported_{name}" if name in added else name: value for name, value in one.labels.items()}
            | added,
            "value": [1e9, str(one.value)],
        }
        for family in families
        for one in family.samples
    ]


def failure(answer: Iterable[dict[str, Any]], of: GpuOwner) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        gpus(list(answer), of)
    return str(caught.value)


@pytest.mark.parametrize("page", ["4.8-shared", "4.9"])
@pytest.mark.parametrize(
    "added", [{}, {"pod": "dcgm-exporter-x2z9k", "namespace": "gpu-operator", "container": "dcgm"}]
)
def test_a_pods_gpus_are_those_of_its_page_with_and_without_honor_labels(page: str, added: dict[str, str]) -> None:
    labels = CHAT if page == "4.8-shared" else LLAMA
    text = (PAGES / f"dcgm-{page}.prom").read_text()
    age = {"metric": {"of": "age"}, "value": [1e9, "12.5"]}
    found, age_s = gpus([*rows(page, instance="10.0.0.7:9400", **added), age], GpuOwner(labels))
    assert found == parse(text, 0, 0.0, labels).gpus
    assert len(found) == 1
    assert age_s == 12.5


def test_the_question_is_for_every_spelling_of_the_pods_labels_and_for_no_other_cluster() -> None:
    of = owner(LLAMA, "http://10.0.0.1:8000", "gpu-1", {"cluster": "eu", "namespace": "monitoring"})
    query = pods_gpus(of)
    assert query is not None
    assert query.count('cluster="eu"') == 3
    assert "monitoring" not in query
    for spelling in (
        'exported_pod="llama-0", exported_namespace="serving"',
        'exported_pod="", pod="llama-0", namespace="serving"',
        'pod_name="llama-0", pod_namespace="serving"',
    ):
        assert spelling in query
    assert 'UUID=~"GPU\\\\-a|GPU\\\\-b", cluster="eu"' in series(of, ["GPU-b", "", "GPU-a"])
    host = owner({}, "http://[fd00::7]:8000", None, {})
    assert pods_gpus(host) is None
    assert 'instance=~"\\\\[fd00::7\\\\](:[0-9]+)?"' in series(host)
    assert 'Hostname="fd00::7"' in series(host)
    assert "instance" not in series(owner({"Hostname": "gpu-3"}, "http://127.0.0.1:8000", None, {}))


def test_a_pair_of_prometheus_sees_each_gpu_once() -> None:
    pair = [row for replica in "ab" for row in rows("4.9", instance="10.0.0.7:9400", prometheus_replica=replica)]
    found, _ = gpus(pair, GpuOwner(LLAMA, node="gpu-node-9"))
    assert len(found) == 1


NARROW = "set prometheus.labels to those of this cluster"
REFUSED = {
    "none": ([], GpuOwner(LLAMA), "no series of DCGM with pod=llama-0, namespace=serving"),
    "another pod's": (
        rows("4.9"),
        GpuOwner({"pod": "llama-7", "namespace": "serving"}),
        "no series of DCGM with pod=llama-7, namespace=serving",
    ),
    "two clusters": (
        [
            *rows("4.9", instance="10.0.0.7:9400", cluster="eu"),
            *(
                {**row, "metric": {**row["metric"], "UUID": f"us-{row['metric']['UUID']}"}}
                for row in rows("4.9", instance="10.0.0.7:9400", cluster="us")
            ),
        ],
        GpuOwner(LLAMA, node="gpu-node-9"),
        f"several exporters have GPUs with pod=llama-0, namespace=serving (cluster: eu, us); {NARROW}",
    ),
    "another node": (
        rows("4.9"),
        GpuOwner(LLAMA, node="gpu-node-8"),
        (
            "the GPUs with pod=llama-0, namespace=serving are on gpu-node-9, and the pod is on gpu-node-8: it may be a"
            f" pod of another cluster; {NARROW}"
        ),
    ),
    "a host with pods": (
        rows("4.9"),
        GpuOwner(host="gpu-node-9"),
        "the GPUs of gpu-node-9 are used by pods (serving/llama-0, serving/llama-1); set gpu.labels to this server's",
    ),
}


@pytest.mark.fault(
    "KU63",
    "A Prometheus with GPUs of pods of one name from several clusters, or of the host's other pods",
    area="Kubernetes",
    users_see="one line on the target's page",
    stays="no GPU of another pod is taken",
)
@for_each(REFUSED, str)
def test_gpus_that_are_not_certainly_the_servers_are_not_taken(name: str) -> None:
    answer, of, words = REFUSED[name]
    assert failure(answer, of) == words


def test_a_node_may_be_named_with_its_domain_or_not_and_named_labels_settle_it() -> None:
    assert gpus(rows("4.9"), GpuOwner(LLAMA, node="gpu-node-9.example.com"))[0]
    assert gpus(rows("4.9"), GpuOwner(LLAMA, node="elsewhere", places={"cluster": "eu"}))[0]
    without_node_name = [
        {**row, "metric": {**row["metric"], "hostname": "nvidia-dcgm-exporter-wwwjh"}} for row in rows("4.9")
    ]
    assert gpus(without_node_name, GpuOwner(LLAMA, node="gpu-node-8"))[0]
