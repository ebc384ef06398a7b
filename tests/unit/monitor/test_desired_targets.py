"""Which targets there are: of the file, found, of our shard; and why one of them gets no load now."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from example_records import CHAT
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.run.admission import Admission
from probe.capacity.run.request import configured_run
from probe.capacity.run.service import job_of
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core.request import Api
from probe.core.workload import Workload
from probe.discovery.types import DiscoveredServer
from probe.load.request_source import RequestSource
from probe.monitor.desired_targets import DesiredTargets, Shard
from probe.monitor.wiring import endpoint
from probe.observe.guard import GO

POD = DiscoveredServer("qwen-7d9-x", "http://10.0.0.1:8000", {"app": "qwen"}, "7d9")


def _config(**template: Any) -> Config:
    return config_from(
        {
            "workloads": {"short": {"prompt_tokens": 8}},
            "targets": [
                {"name": "llama", "base_url": "http://llama:8000"},
                {
                    "name": "qwen",
                    "discover": {"dns": {"name": "qwen.serving", "port": 8000}},
                    "api_key": "sesame",
                    "canary": {"every": "7s", "workload": "short"},
                    **template,
                },
            ],
        },
        "test",
    )


def _desired(config: Config | None = None, shard: Shard | None = None) -> DesiredTargets:
    return DesiredTargets(config or _config(), shard)


def test_discovered_servers_are_watched_as_the_template_says() -> None:
    desired = _desired()
    assert list(desired.by_name()) == ["llama"]
    desired.discovered("qwen", (POD,))
    assert list(desired.by_name()) == ["llama", "qwen/qwen-7d9-x"]
    pod = desired.by_name()["qwen/qwen-7d9-x"]
    assert (pod.discovery, pod.labels, pod.inhibited_by) == ("qwen", {"app": "qwen"}, None)
    assert (pod.config.base_url, pod.config.canary.every, pod.config.secret()) == (
        "http://10.0.0.1:8000",
        7.0,
        "sesame",
    )
    desired.discovered("qwen", ())
    assert list(desired.by_name()) == ["llama"]
    assert desired.left_out == {}


def test_a_pods_image_and_node_are_kept_with_results_unless_the_configuration_states_them() -> None:
    desired = _desired(_config(capacity={"server": {"facts": {"commit": "4f1c2ab8", "node": "stated"}}}))
    desired.discovered("qwen", (replace(POD, facts={"image": "vllm:v0.32", "node": "node-0"}),))
    target = desired.by_name()["qwen/qwen-7d9-x"].config
    source = RequestSource(endpoint(target), "m", Workload("short", Api.COMPLETIONS, 8, 8), 1.0)
    job = job_of(configured_run(target, CHAT, None), source, Admission(GO, None))
    assert job.provenance is not None
    assert job.provenance.facts == {"image": "vllm:v0.32", "commit": "4f1c2ab8", "node": "stated"}


def _role(desired: DesiredTargets, name: str = "qwen/qwen-7d9-x") -> tuple[str | None, str]:
    target = desired.by_name()[name].config
    return target.known_role, target.capacity.mode


@pytest.mark.parametrize(
    ("labels", "flags", "role"),
    [
        ({"llm-d.ai/role": "decode"}, {}, "decode"),
        ({"llm-d.ai/role": "prefill-decode"}, {}, None),
        ({"nvidia.com/dynamo-sub-component-type": "prefill"}, {}, "prefill"),
        ({}, {"kv_role": "kv_producer"}, "prefill"),
        ({}, {"kv_role": "kv_consumer"}, "decode"),
        ({}, {"kv_role": "kv_both"}, None),
        ({"llm-d.ai/role": "decode"}, {"kv_role": "kv_producer"}, "decode"),
    ],
)
def test_a_server_that_computes_one_half_of_each_request_has_no_capacity_of_its_own(
    labels: dict[str, str], flags: dict[str, str], role: str | None
) -> None:
    desired = _desired(_config(capacity={"mode": "verify"}))
    desired.discovered("qwen", (replace(POD, labels=labels, flags=flags),))
    assert _role(desired) == (role, "verify" if role is None else "off")


def test_a_configured_role_counts_before_the_pods() -> None:
    desired = _desired(_config(role="prefill"))
    desired.discovered("qwen", (replace(POD, labels={"llm-d.ai/role": "decode"}),))
    assert _role(desired) == ("prefill", "off")


def test_a_pods_flags_are_stated_of_its_server_where_the_configuration_states_none() -> None:
    flags = {"max_num_seqs": "64", "max_num_batched_tokens": "8K", "tensor_parallel_size": "2", "dtype": "auto"}
    stated = {"max_num_batched_tokens": 4096, "flags": {"dtype": "half"}}
    desired = _desired(_config(capacity={"server": stated}))
    desired.discovered("qwen", (replace(POD, flags=flags),))
    server = desired.by_name()["qwen/qwen-7d9-x"].config.capacity.server
    assert (server.max_num_seqs, server.max_num_batched_tokens) == (64, 4096)
    assert server.startup_flags == {
        "max_num_seqs": "64",
        "max_num_batched_tokens": "4096",
        "tensor_parallel_size": "2",
        "dtype": "half",
    }


def test_a_changed_flag_replaces_the_monitor() -> None:
    desired = _desired()
    desired.discovered("qwen", (replace(POD, flags={"max_num_seqs": "64"}),))
    before = desired.by_name()["qwen/qwen-7d9-x"].spec
    desired.discovered("qwen", (replace(POD, flags={"max_num_seqs": "128"}),))
    after = desired.by_name()["qwen/qwen-7d9-x"].spec
    assert after.changed_fields(before) == ["target.capacity.server.max_num_seqs"]


@pytest.mark.parametrize(
    "address", ["", "10.0.0.1", "http://u:p@10.0.0.1", "file:///etc/passwd", "http://10.0.0.1:99999"]
)
def test_a_server_with_an_invalid_address_is_left_out_and_reported(address: str) -> None:
    desired = _desired()
    desired.discovered("qwen", (DiscoveredServer("odd", address), POD))
    assert list(desired.by_name()) == ["llama", "qwen/qwen-7d9-x"]
    assert desired.left_out == {"qwen": "odd has no address that can be watched"}
    desired.discovered("qwen", (POD,))
    desired.by_name()
    assert desired.left_out == {}


def test_a_spec_changes_with_all_that_a_monitor_is_built_from_and_with_nothing_else() -> None:
    desired = _desired()
    desired.discovered("qwen", (POD,))
    before = {name: one.spec for name, one in desired.by_name().items()}
    desired.configure(_config())
    assert {name: one.spec for name, one in desired.by_name().items()} == before, "the file was written again"
    desired.discovered("qwen", (DiscoveredServer(POD.id, POD.base_url, {"app": "other"}, POD.revision),))
    assert {name: one.spec for name, one in desired.by_name().items()} == before, "labels are only told"
    desired.configure(_config(canary={"every": "8s"}))
    after = {name: one.spec for name, one in desired.by_name().items()}
    assert after["llama"] == before["llama"]
    assert after["qwen/qwen-7d9-x"] != before["qwen/qwen-7d9-x"]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (
            {"workloads": {"short": {"prompt_tokens": 9}}},
            ["canary_workloads[0].prompt_tokens", "capacity_workload.prompt_tokens"],
        ),
        ({"objectives": {"default": {"availability": 0.9}}}, ["objectives"]),
        ({"prometheus": {"url": "http://p:9090"}}, ["prometheus"]),
        ({"lease": {}}, ["lease"]),
        ({"load": {"ray": {"address": "auto"}}}, ["load"]),
    ],
)
def test_configuration_that_a_target_only_names_is_part_of_its_spec(change: dict[str, Any], fields: list[str]) -> None:
    raw: dict[str, Any] = {
        "workloads": {"short": {"prompt_tokens": 8}},
        "targets": [{"name": "a", "base_url": "http://a", "canary": {"workload": "short"}}],
    }
    one, other = (_desired(config_from(each, "test")).by_name()["a"].spec for each in (raw, {**raw, **change}))
    assert one != other
    assert other.changed_fields(one) == fields
    assert one.changed_fields(one) == []


@pytest.mark.parametrize("change", [{"name": "other.serving"}, {"port": 8001}, {"type": "AAAA"}])
def test_servers_of_another_discovery_of_the_same_name_go(change: dict[str, Any]) -> None:
    desired = _desired()
    desired.discovered("qwen", (POD,))
    desired.configure(_config(canary={"every": "8s"}))
    assert "qwen/qwen-7d9-x" in desired.by_name(), "it is the same discovery"
    other = _config(discover={"dns": {"name": "qwen.serving", "port": 8000, **change}})
    desired.configure(other)
    assert list(desired.by_name()) == ["llama"]
    desired.discovered("qwen", (DiscoveredServer("new", "http://10.0.0.2:8000"),))
    desired.configure(other)
    assert list(desired.by_name()) == ["llama", "qwen/new"]
    desired.configure(_config())
    assert list(desired.by_name()) == ["llama"], "what it found long ago is not taken up again"


def test_discovered_servers_go_with_their_template() -> None:
    desired = _desired()
    desired.discovered("qwen", (POD,))
    desired.configure(config_from({"targets": [{"name": "llama", "base_url": "http://llama:8000"}]}, "test"))
    desired.configure(_config())
    assert list(desired.by_name()) == ["llama"]


@pytest.mark.fault("KU33")
def test_while_a_rollout_is_under_way_no_load_may_begin() -> None:
    desired = _desired()
    old, new = (
        DiscoveredServer(f"qwen-{name}", f"http://{name}:8000", revision=name, is_rolling_out=True)
        for name in ("old", "new")
    )
    desired.discovered("qwen", (old, new))
    holds = {name: one.inhibited_by for name, one in desired.by_name().items()}
    words = "a rollout is under way"
    assert holds == {"llama": None, "qwen/qwen-old": words, "qwen/qwen-new": words}
    desired.discovered("qwen", (DiscoveredServer(new.id, new.base_url, is_rolling_out=True),))
    assert desired.by_name()["qwen/qwen-new"].inhibited_by == "servers of its Service come or go"
    desired.discovered("qwen", (DiscoveredServer(new.id, new.base_url),))
    assert all(one.inhibited_by is None for one in desired.by_name().values())


def test_a_pod_that_is_not_ready_is_watched_and_gets_no_load() -> None:
    desired = _desired()
    desired.discovered("qwen", (DiscoveredServer(POD.id, POD.base_url, is_ready=False),))
    assert desired.by_name()["qwen/qwen-7d9-x"].inhibited_by == "the server is not ready"


@given(st.lists(st.text(min_size=1), unique=True, max_size=50), st.integers(1, 9))
def test_every_target_is_of_one_shard_and_one_only(names: list[str], total: int) -> None:
    shards = [Shard(index, total) for index in range(total)]
    assert all(sum(shard.has(name) for shard in shards) == 1 for name in names)


@given(st.lists(st.text(min_size=1), unique=True, max_size=50), st.integers(1, 9))
def test_one_shard_more_takes_its_own_share_and_moves_nothing_else(names: list[str], total: int) -> None:
    def owner(name: str, total: int) -> int:
        return next(index for index in range(total) if Shard(index, total).has(name))

    for name in names:
        assert owner(name, total + 1) in (owner(name, total), total)


def test_a_thousand_targets_are_shared_about_evenly() -> None:
    counts = Counter(
        index for n in range(1000) for index in range(5) if Shard(index, 5).has(f"qwen/qwen-7d9f8b-{n:05d}")
    )
    assert len(counts) == 5
    assert all(150 < count < 250 for count in counts.values())


def test_a_shard_watches_its_own_alone() -> None:
    pods = tuple(DiscoveredServer(f"pod-{n}", f"http://10.0.0.{n}:8000") for n in range(20))
    seen: list[str] = []
    for index in range(3):
        desired = _desired(shard=Shard(index, 3))
        desired.discovered("qwen", pods)
        seen += desired.by_name()
    assert sorted(seen) == sorted(["llama", *(f"qwen/pod-{n}" for n in range(20))])


def test_a_service_before_the_pods_gets_canaries_and_no_load() -> None:
    """Each pod has a lock of its own, and load on the Service would be load on all of them."""
    pods = {"namespace": "serving", "selector": "app=qwen", "port": 8000, "service": "qwen:80"}
    raw = {"name": "qwen", "discover": {"kubernetes": pods}, "capacity": {"mode": "verify"}}
    desired = _desired(config_from({"targets": [raw]}, "test"))
    desired.discovered("qwen", (DiscoveredServer("qwen", "http://qwen.serving:80"), POD))
    modes = {name: one.config.capacity.mode for name, one in desired.by_name().items()}
    assert modes == {"qwen/qwen": "off", "qwen/qwen-7d9-x": "verify"}


# Replicas behind one address.


def _behind_a_router(**keys: Any) -> DesiredTargets:
    found = {"kubernetes": {"selector": "app=qwen", "port": 8000}, **keys}
    router = {"name": "router", "base_url": "http://router:80", "metrics_discovery": found}
    return DesiredTargets(config_from({"targets": [router]}, "test"), None)


def test_the_replicas_behind_an_address_are_the_pages_of_one_target() -> None:
    desired = _behind_a_router()
    before = desired.by_name()["router"]
    assert before.replicas is None, "they are not known yet"
    other = replace(POD, id="qwen-7d9-y", base_url="http://10.0.0.2:8000")
    desired.discovered("router", (POD, other))
    after = desired.by_name()["router"]
    assert after.replicas == ("http://10.0.0.1:8000/metrics", "http://10.0.0.2:8000/metrics")
    assert (after.spec, after.discovery, after.inhibited_by) == (before.spec, None, None)
    desired.discovered("router", ())
    assert desired.by_name()["router"].replicas == ()


def test_the_page_of_a_replica_is_where_its_discovery_says() -> None:
    desired = _behind_a_router(path="/openai", metrics_path="/metrics")
    desired.discovered("router", (replace(POD, base_url="http://10.0.0.1:8000/openai"),))
    assert desired.by_name()["router"].replicas == ("http://10.0.0.1:8000/metrics",)


@pytest.mark.parametrize(
    ("other", "why"),
    [({"is_ready": False}, "the server is not ready"), ({"is_rolling_out": True}, "a rollout is under way")],
)
def test_no_load_goes_to_an_address_while_a_replica_behind_it_is_not_as_it_should_be(
    other: dict[str, Any], why: str
) -> None:
    desired = _behind_a_router()
    desired.discovered("router", (POD, replace(POD, id="b", **other)))
    assert desired.by_name()["router"].inhibited_by == why


def test_another_discovery_of_replicas_begins_with_none_known() -> None:
    desired = _behind_a_router()
    desired.discovered("router", (POD,))
    desired.configure(_behind_a_router(scheme="https").config)
    assert desired.by_name()["router"].replicas is None


def test_the_service_before_pods_has_no_gpus_and_servers_of_one_host_are_known() -> None:
    exporters = {"dcgm": {"kubernetes": {"selector": "app=dcgm"}}}
    discover = {"kubernetes": {"selector": "app=qwen", "port": 8000, "service": "qwen"}}
    desired = _desired(_config(discover=discover, gpu=exporters))
    twin = replace(POD, id="twin", base_url="http://10.0.0.1:8001")
    desired.discovered("qwen", (DiscoveredServer("qwen", "http://qwen.serving.svc:8000"), POD, twin))
    found = desired.by_name()
    assert {name: target.config.gpu.is_read for name, target in found.items()} == {
        "llama": False,
        "qwen/qwen": False,
        "qwen/qwen-7d9-x": True,
        "qwen/twin": True,
    }
    assert found["qwen/twin"].found == twin
    assert [target.shares_host for target in found.values()] == [False, False, True, True]
    moved = replace(POD, facts={"node": "gpu-2"}, pod={"pod": "a", "namespace": "b"})
    desired.discovered("qwen", (moved,))
    assert desired.by_name()["qwen/qwen-7d9-x"].found == moved
