"""Which pods are found, when, and as what."""

import json
from typing import Any

import msgspec
import pytest
from api_server import pod as as_json

from probe.discovery.endpointslices import EndpointSlice, SliceEndpoint, Slices
from probe.discovery.pods import Pod, Pods
from probe.kubernetes.client import ObjectMeta


def pod(*args: Any, **changes: Any) -> Pod:
    return msgspec.json.decode(json.dumps(as_json(*args, **changes)), type=Pod)


def pods(*found: Pod, port: int | str = 8000) -> Pods:
    its = Pods(port, "http", "")
    its.replace(found)
    return its


def ids(its: Pods) -> list[tuple[str, bool]]:
    return [(one.id, one.is_ready) for one in its.state]


def test_a_pod_is_found_once_it_is_ready_and_stays_when_it_is_not_any_more() -> None:
    its = pods(pod("a", ready=False))
    assert ids(its) == []
    its.put(pod("a"))
    assert ids(its) == [("a", True)]
    its.put(pod("a", ready=False))
    assert ids(its) == [("a", False)]
    its.put(pod("a"))
    assert ids(its) == [("a", True)]


@pytest.mark.parametrize("over", [{"terminating": True}, {"phase": "Failed"}, {"phase": "Succeeded"}, {"ip": ""}])
def test_one_that_ends_or_has_no_address_is_not_found(over: dict[str, Any]) -> None:
    its = pods(pod("a"), pod("b"))
    its.put(pod("a", **over))
    assert ids(its) == [("b", True)]


@pytest.mark.fault(
    "KU32",
    "A pod comes back under its name",
    area="Kubernetes",
    users_see="it is another server: not ready before it is",
    stays="-",
)
def test_a_pod_that_comes_back_under_its_name_has_never_been_ready() -> None:
    its = pods(pod("qwen-0", uid="1"))
    its.put(pod("qwen-0", uid="2", ready=False))
    assert ids(its) == []
    its.put(pod("qwen-0", uid="2"))
    its.remove("qwen-0")
    its.put(pod("qwen-0", uid="2", ready=False))
    assert ids(its) == []


def test_a_list_replaces_what_was_there_and_remembers_what_has_been_ready() -> None:
    its = pods(pod("a"), pod("b"))
    its.replace([pod("b", ready=False), pod("c", ready=False)])
    assert ids(its) == [("b", False)]


@pytest.mark.parametrize(
    ("labels", "revision"),
    [
        ({"pod-template-hash": "7d4b", "controller-revision-hash": "x"}, "7d4b"),
        ({"controller-revision-hash": "qwen-5f9c"}, "qwen-5f9c"),
        ({}, None),
    ],
)
def test_the_revision_is_what_a_rollout_changes(labels: dict[str, str], revision: str | None) -> None:
    (found,) = pods(pod("a", labels=labels)).state
    assert (found.revision, found.labels) == (revision, labels)


def test_a_port_is_a_number_or_a_containers_name_for_it() -> None:
    assert pods(pod("a"), port="http").state[0].base_url == "http://10.0.0.1:8000"
    assert pods(pod("a"), port=9000).state[0].base_url == "http://10.0.0.1:9000"
    without = pods(pod("b", port="grpc"), pod("a", port="grpc"), pod("loading", port="grpc", ready=False), port="http")
    assert without.state == ()
    assert without.problem == "pods without a port called 'http' are left out, such as a"
    for name in ("a", "b"):
        without.remove(name)
    assert without.problem is None


def test_a_sidecars_port_counts_too() -> None:
    raw = as_json("a", port="grpc")
    raw["spec"]["initContainers"] = [{"name": "proxy", "ports": [{"name": "http", "containerPort": 9090}]}]
    (found,) = pods(msgspec.json.decode(json.dumps(raw), type=Pod), port="http").state
    assert found.base_url == "http://10.0.0.1:9090"


def test_addresses_have_scheme_path_and_brackets() -> None:
    its = Pods(8000, "https", "/qwen")
    its.put(pod("a", "fd00::1"))
    assert its.state[0].base_url == "https://[fd00::1]:8000/qwen"


@pytest.mark.parametrize(
    "ip", ["127.0.0.1/../x", "evil.example", "${HOME}", "::1%lo", "10.0.0.1:80", "10.0.0.1 ", "[fd00::1]", "1.2.3"]
)
@pytest.mark.fault(
    "KU53",
    "A pod or endpoint whose address is no IP address",
    area="Kubernetes",
    users_see="the first of them, by name",
    stays="nothing is sent there",
)
def test_an_address_that_is_none_is_left_out_and_said(ip: str) -> None:
    its = pods(pod("a"), pod("b", ip))
    assert ids(its) == [("a", True)]
    assert its.problem == "pods whose podIP is no IP address are left out, such as b"
    its.put(pod("b"))
    assert its.problem is None
    slices = Slices(8000, "http", "")
    endpoints = [SliceEndpoint(addresses=[ip])]
    slices.put(EndpointSlice(metadata=ObjectMeta(name="s"), address_type="IPv4", endpoints=endpoints))
    assert slices.state == ()


def test_no_pod_at_all_is_a_problem_and_none_ready_is_not() -> None:
    assert pods().problem == "no pod has these labels"
    assert pods(pod("a", ready=False)).problem is None


def test_fields_may_be_missing_or_null() -> None:
    bare = {"metadata": {"name": "a"}, "spec": {"containers": None}, "status": {"conditions": None}}
    assert pods(msgspec.json.decode(json.dumps(bare), type=Pod)).state == ()


def _owned(name: str, revision: str, owner: str = "qwen", *, ready: bool = True, kind: str = "ReplicaSet") -> Pod:
    found = as_json(name, labels={"pod-template-hash": revision}, ready=ready)
    found["metadata"]["ownerReferences"] = [{"kind": kind, "name": f"{owner}-{revision}", "controller": True}]
    return msgspec.json.decode(json.dumps(found), type=Pod)


def _rolling(its: Pods) -> dict[str, bool]:
    return {one.id: one.is_rolling_out for one in its.state}


@pytest.mark.fault(
    "KU33",
    "A rollout is under way",
    area="Kubernetes",
    users_see="runs are refused: `rollout`",
    stays="canaries",
)
def test_a_rollout_is_under_way_from_its_first_pod_on_also_while_that_loads_its_model() -> None:
    its = pods(_owned("a", "1"), _owned("b", "1"))
    assert _rolling(its) == {"a": False, "b": False}
    its.put(_owned("c", "2", ready=False))
    assert _rolling(its) == {"a": True, "b": True}
    its.put(_owned("c", "2"))
    its.remove("a")
    assert _rolling(its) == {"b": True, "c": True}
    its.remove("b")
    assert _rolling(its) == {"c": False}


def test_workloads_of_unlike_revisions_beside_each_other_are_no_rollout() -> None:
    """Prefill and decode, or one for each pool of nodes, by one selector."""
    its = pods(_owned("a", "1", "prefill"), _owned("b", "2", "decode"))
    assert _rolling(its) == {"a": False, "b": False}
    its.put(_owned("c", "3", "decode", ready=False))
    assert _rolling(its) == {"a": False, "b": True}


def test_the_flags_of_its_vllm_come_with_a_pod() -> None:
    started = as_json("a")
    containers = started["spec"]["containers"]
    containers.reverse()  # the first container is not vLLM's
    containers[1] |= {
        "args": ["--model=m", "--max-num-seqs", "$(SEQS)", "--api-key", "sesame"],
        "env": [{"name": "SEQS", "value": "64"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "t"}}}],
    }
    (found,) = pods(msgspec.json.decode(json.dumps(started), type=Pod)).state
    assert found.flags == {"max_num_seqs": "64"}


def test_a_pods_image_and_node_are_facts_of_its_results() -> None:
    one = as_json("a")
    one["status"]["containerStatuses"] = [
        {"name": "logs", "imageID": "logs@sha256:1111"},
        {"name": "vllm", "imageID": "docker-pullable://vllm/vllm-openai@sha256:4f1c"},
    ]
    (found,) = pods(msgspec.json.decode(json.dumps(one), type=Pod)).state
    assert found.facts == {"image": "vllm/vllm-openai:v0.32", "image_digest": "sha256:4f1c", "node": "node-0"}


def test_the_image_is_that_of_the_container_that_runs_vllm() -> None:
    one = as_json("a")
    one["spec"]["containers"].insert(0, {"name": "proxy", "image": "proxy", "ports": [{"containerPort": 8000}]})
    its = pods(msgspec.json.decode(json.dumps(one), type=Pod), port=8000)
    assert its.state[0].facts["image"] == "proxy"
    one["spec"]["containers"][1]["args"] = ["vllm", "serve", "m", "--max-num-seqs", "8"]
    its.put(msgspec.json.decode(json.dumps(one), type=Pod))
    assert its.state[0].facts["image"] == "vllm/vllm-openai:v0.32"


def test_facts_that_a_pod_does_not_state_are_absent_and_long_ones_are_cut() -> None:
    one = as_json("a")
    del one["spec"]["nodeName"]
    one["spec"]["containers"][0]["image"] = "x" * 10_000 + "\n"
    (found,) = pods(msgspec.json.decode(json.dumps(one), type=Pod)).state
    assert found.facts.keys() == {"image"}
    assert len(found.facts["image"]) == 300
