"""Which endpoints of a Service are found, when, and as what."""

import json
from typing import Any

import msgspec
import pytest
from api_server import endpoint, endpoint_slice
from hypothesis import given
from hypothesis import strategies as st

from probe.discovery.endpointslices import EndpointSlice, Slices
from probe.discovery.kubernetes_sd import SLICES
from probe.discovery.types import DiscoveredServer

LOADING: dict[str, Any] = {"ready": False, "serving": False, "terminating": False}
READY: dict[str, Any] = {"ready": True, "serving": True, "terminating": False}
TERMINATING: dict[str, Any] = {"ready": False, "serving": True, "terminating": True}


def slice_of(*args: Any, **changes: Any) -> EndpointSlice:
    return msgspec.json.decode(json.dumps(endpoint_slice(*args, **changes)), type=EndpointSlice)


def slices(*found: EndpointSlice, port: int | str = "http") -> Slices:
    its = Slices(port, "http", "")
    its.replace(found)
    return its


def ids(its: Slices) -> list[tuple[str, bool]]:
    return [(one.id, one.is_ready) for one in its.state]


def rolling(its: Slices) -> dict[str, bool]:
    return {one.id: one.is_rolling_out for one in its.state}


def test_an_endpoint_that_is_a_pod_has_its_name_and_any_other_its_address() -> None:
    its = slices(slice_of("s", endpoint("10.0.0.1", "qwen-a"), endpoint("10.0.0.9")))
    labels = {"kubernetes.io/service-name": "qwen", "zone": "zone-a", "node": "node-0"}
    pod = {"pod": "qwen-a", "namespace": "serving"}
    assert its.state == (
        DiscoveredServer("10.0.0.9:8000", "http://10.0.0.9:8000", labels, facts={"node": "node-0"}),
        DiscoveredServer("qwen-a", "http://10.0.0.1:8000", labels, facts={"node": "node-0"}, pod=pod),
    )


def test_a_reference_to_something_else_than_a_pod_names_no_target() -> None:
    other, unnamed = endpoint("10.0.0.1", "vm-7"), endpoint("10.0.0.2", "x")
    other["targetRef"]["kind"], unnamed["targetRef"]["name"] = "VirtualMachine", ""
    assert ids(slices(slice_of("s", other, unnamed))) == [("10.0.0.1:8000", True), ("10.0.0.2:8000", True)]


def test_an_endpoint_is_found_once_it_is_ready_and_stays_when_it_is_not_any_more() -> None:
    its = slices(slice_of("s", endpoint("10.0.0.1", "a", **LOADING)))
    assert ids(its) == []
    its.put(slice_of("s", endpoint("10.0.0.1", "a", **READY)))
    assert ids(its) == [("a", True)]
    its.put(slice_of("s", endpoint("10.0.0.1", "a", **LOADING)))
    assert ids(its) == [("a", False)]
    its.put(slice_of("s", endpoint("10.0.0.1", "a", **TERMINATING)))
    assert ids(its) == []
    its.put(slice_of("s"))
    assert ids(its) == []
    its.put(slice_of("s", endpoint("10.0.0.1", "a", **LOADING)))
    assert ids(its) == [], "who has gone has never been ready"


@pytest.mark.parametrize(
    ("conditions", "is_ready"),
    [
        ({}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True}, False),
        ({"ready": True, "serving": False}, False),  # publishNotReadyAddresses
        ({"ready": True, "serving": True, "terminating": True}, False),  # and of one that goes
    ],
)
def test_conditions_that_are_left_out_are_good(conditions: dict[str, bool | None], *, is_ready: bool) -> None:
    assert bool(ids(slices(slice_of("s", endpoint("10.0.0.1", "a", **conditions))))) is is_ready


def test_all_slices_of_the_service_are_its_endpoints_until_they_go() -> None:
    its = slices(slice_of("s", endpoint("10.0.0.1", "a")), slice_of("t", endpoint("10.0.0.2", "b")))
    assert ids(its) == [("a", True), ("b", True)]
    its.remove("s")
    assert ids(its) == [("b", True)]


def test_of_two_slices_with_an_endpoint_the_one_that_changed_last_counts() -> None:
    its = slices(slice_of("s", endpoint("10.0.0.1", "a")), slice_of("t"))
    its.put(slice_of("t", endpoint("10.0.0.1", "a", **LOADING)))
    assert ids(its) == [("a", False)]
    its.put(slice_of("s", endpoint("10.0.0.1", "a")))
    assert ids(its) == [("a", True)]
    its.put(slice_of("s"))
    assert ids(its) == [("a", False)]


def test_one_that_is_moved_has_been_ready_also_between_two_events() -> None:
    its = slices(slice_of("s", endpoint("10.0.0.1", "a")), slice_of("t"))
    its.put(slice_of("s"))
    its.put(slice_of("t", endpoint("10.0.0.1", "a", **LOADING)))
    assert ids(its) == [("a", False)]


def test_who_terminates_in_one_slice_does_so_in_all() -> None:
    its = slices(
        slice_of("v4", endpoint("10.0.0.1", "a")),
        slice_of("v6", endpoint("fd00::1", "a"), endpoint("fd00::2", "b"), family="IPv6"),
    )
    its.put(slice_of("v6", endpoint("fd00::1", "a", **TERMINATING), endpoint("fd00::2", "b"), family="IPv6"))
    assert ids(its) == [("b", True)]


def test_a_pod_that_comes_back_under_its_name_is_another() -> None:
    its = slices(slice_of("s", endpoint("10.0.0.1", "qwen-0", uid="1")))
    its.put(slice_of("t", endpoint("10.0.0.2", "qwen-0", uid="2", **LOADING)))
    its.put(slice_of("s", endpoint("10.0.0.1", "qwen-0", uid="1", **TERMINATING)))
    assert ids(its) == []
    its.put(slice_of("t", endpoint("10.0.0.2", "qwen-0", uid="2")))
    assert [(one.id, one.base_url) for one in its.state] == [("qwen-0", "http://10.0.0.2:8000")]
    its.put(slice_of("s", endpoint("10.0.0.1", "qwen-0", uid="1", **TERMINATING), endpoint("10.0.0.3", "x")))
    assert ids(its) == [("qwen-0", True), ("x", True)], "the old one's last word does not hide the new one"


@pytest.mark.parametrize("first", ["IPv4", "IPv6"])
def test_a_pod_with_two_addresses_is_one_target_at_its_ipv4_address(first: str) -> None:
    both = {"IPv4": "10.0.0.1", "IPv6": "fd00::1"}
    order = sorted(both, key=lambda family: family != first)
    its = slices(*(slice_of(family, endpoint(both[family], "a"), family=family) for family in order))
    assert [one.base_url for one in its.state] == ["http://10.0.0.1:8000"]
    its.remove("IPv4")
    assert [one.base_url for one in its.state] == ["http://[fd00::1]:8000"]


def test_addresses_have_scheme_path_and_brackets() -> None:
    its = Slices("http", "https", "/qwen")
    its.put(slice_of("s", endpoint("fd00::1"), family="IPv6"))
    assert [(one.id, one.base_url) for one in its.state] == [("[fd00::1]:8000", "https://[fd00::1]:8000/qwen")]


def test_a_port_is_a_number_or_the_slices_name_for_it() -> None:
    named = [{"name": "grpc", "port": 9000}, {"name": "http", "port": 8001}]
    its = slices(slice_of("s", endpoint("10.0.0.1"), ports=named), slice_of("t", endpoint("10.0.0.2")))
    assert [one.base_url for one in its.state] == ["http://10.0.0.1:8001", "http://10.0.0.2:8000"]
    its = slices(slice_of("s", endpoint("10.0.0.1"), ports=[]), port=9000)
    assert [one.base_url for one in its.state] == ["http://10.0.0.1:9000"]
    its.replace([slice_of("s", endpoint("10.0.0.1"), ports=[])])
    assert its.problem is None


@pytest.mark.parametrize(
    ("slice_", "problem"),
    [
        (None, "there are no slices; check the Service's name, or write slices for a Service without a selector"),
        (slice_of("s"), None),
        (slice_of("s", ports=[]), None),
        (slice_of("s", endpoint("10.0.0.1", **LOADING)), None),
        (
            slice_of("s", endpoint("10.0.0.1"), ports=[{"name": "grpc", "port": 9000}]),
            "slices without a port called 'http' are left out, such as s",
        ),
        (
            slice_of("s", endpoint("10.0.0.1"), ports=[{"name": "http", "port": None}]),
            "slices without a port called 'http' are left out, such as s",
        ),
        (
            slice_of("s", endpoint("qwen.example.org"), family="FQDN"),
            "slices whose addresses are not IP addresses are left out, such as s",
        ),
    ],
)
def test_the_problem_that_hides_endpoints_is_reported(slice_: EndpointSlice | None, problem: str | None) -> None:
    its = slices() if slice_ is None else slices(slice_)
    assert its.problem == problem
    assert its.state == ()


def test_while_one_comes_or_goes_the_others_get_no_load() -> None:
    steady = endpoint("10.0.0.1", "a")
    its = slices(slice_of("s", steady, endpoint("10.0.0.2", "b")))
    assert rolling(its) == {"a": False, "b": False}
    its.put(slice_of("s", steady, endpoint("10.0.0.2", "b"), endpoint("10.0.0.3", "c", **LOADING)))
    assert rolling(its) == {"a": True, "b": True}
    its.put(slice_of("s", steady, endpoint("10.0.0.2", "b", **TERMINATING), endpoint("10.0.0.3", "c")))
    assert rolling(its) == {"a": True, "c": True}
    its.put(slice_of("s", steady, endpoint("10.0.0.3", "c")))
    assert rolling(its) == {"a": False, "c": False}


def test_that_one_has_failed_is_no_rollout() -> None:
    its = slices(slice_of("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b")))
    its.put(slice_of("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b", **LOADING)))
    assert rolling(its) == {"a": False, "b": False}
    assert ids(its) == [("a", True), ("b", False)]


def test_fields_may_be_missing_or_null() -> None:
    bare: dict[str, Any] = {"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": None, "ports": None}
    assert slices(msgspec.json.decode(json.dumps(bare), type=EndpointSlice)).state == ()
    bare["endpoints"] = [{"addresses": None}, {"addresses": ["10.0.0.1"], "conditions": None, "targetRef": None}]
    (found,) = slices(msgspec.json.decode(json.dumps(bare), type=EndpointSlice), port=8000).state
    assert found == DiscoveredServer("10.0.0.1:8000", "http://10.0.0.1:8000")


def test_the_path_is_what_the_kubernetes_client_has_for_endpoint_slices() -> None:
    from lightkube.core.resource import api_info  # noqa: PLC0415 - slow to import
    from lightkube.resources.discovery_v1 import EndpointSlice  # noqa: PLC0415

    info = api_info(EndpointSlice)
    where = f"apis/{info.resource.group}/{info.resource.version}"
    assert (SLICES.api, SLICES.name) == (where, info.plural)


PODS = st.dictionaries(st.integers(0, 9), st.sampled_from([READY, LOADING, TERMINATING]), max_size=6)
PARTS = st.lists(st.integers(0, 2), min_size=10, max_size=10)  # by pod, which slice it is in


def slice_with(
    name: str, pods: dict[int, dict[str, bool]], network: str = "10.0.0.", family: str = "IPv4"
) -> EndpointSlice:
    each = (endpoint(f"{network}{i + 1}", f"p{i}", **conditions) for i, conditions in pods.items())
    return slice_of(name, *each, family=family)


@given(before=PODS, now=PODS, parts=st.tuples(PARTS, PARTS), six_at=st.none() | st.integers(0, 3))
def test_however_pods_are_spread_over_slices_they_are_found_as_in_one(
    before: dict[int, dict[str, bool]],
    now: dict[int, dict[str, bool]],
    parts: tuple[list[int], list[int]],
    six_at: int | None,
) -> None:
    """Also when they are moved, and when the Service has IPv6 too, whose slice changes before or after the others."""
    one, many = slices(), slices()
    for pods, part_of in zip((before, now), parts, strict=True):
        one.replace([slice_with("all", pods)])
        spread = [slice_with(f"s{k}", {i: pods[i] for i in pods if part_of[i] == k}) for k in range(3)]
        if six_at is not None:
            spread.insert(six_at, slice_with("v6", pods, "fd00::", "IPv6"))
        for part in spread:
            many.put(part)
        assert many.state == one.state
    has_been = {i for i, conditions in before.items() if conditions == READY}
    assert ids(many) == [
        (f"p{i}", conditions == READY)
        for i, conditions in sorted(now.items())
        if conditions == READY or (conditions == LOADING and i in has_been)
    ]
