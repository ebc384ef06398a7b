"""A Service's endpoints found through a real HTTP API: what slices say, and that the way to them is that of pods.

How lists and watches are repaired is tested more closely with pods (test_discovery_pods.py): it is one path.
"""

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import discovery_listener
import pytest
from api_server import NAMESPACE, ApiServer, Object, api_server, endpoint, endpoint_slice, pod
from both_loops import Run
from discovery_listener import SEEN_S, TROUBLES, Listener

from probe.discovery.types import DiscoveredServer

SLICES = {"endpoints": "qwen", "port": "http"}
LOADING: dict[str, Any] = {"ready": False, "serving": False, "terminating": False}
TERMINATING: dict[str, Any] = {"ready": False, "serving": True, "terminating": True}


def listening(api: ApiServer, directory: Path, **kubernetes: Any) -> AbstractAsyncContextManager[Listener]:
    return discovery_listener.listening(api, directory, SLICES | kubernetes)


@pytest.fixture(autouse=True)
def _config_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


def test_endpoints_are_found_with_labels_and_changes_are_seen(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            one, other = endpoint("10.0.0.1", "qwen-a", zone="zone-b"), endpoint("10.0.0.2", "qwen-b")
            api.put(endpoint_slice("qwen-1", one, endpoint("10.0.0.3", "qwen-loading", **LOADING)))
            api.put(endpoint_slice("qwen-2", other))
            api.put(endpoint_slice("llama-1", endpoint("10.0.0.4", "llama-a"), service="llama"))
            api.put(pod("qwen-pod"))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.states)
                labels, facts = {"kubernetes.io/service-name": "qwen", "node": "node-0"}, {"node": "node-0"}
                assert seen.states[0] == tuple(
                    DiscoveredServer(
                        name,
                        f"http://{host}:8000",
                        labels | {"zone": zone},
                        is_rolling_out=True,
                        facts=facts,
                        pod={"pod": name, "namespace": "serving"},
                    )
                    for name, host, zone in (("qwen-a", "10.0.0.1", "zone-b"), ("qwen-b", "10.0.0.2", "zone-a"))
                )
                api.put(endpoint_slice("qwen-1", one, endpoint("10.0.0.3", "qwen-loading")))
                await seen.until(lambda: seen.ids == ["qwen-a", "qwen-b", "qwen-loading"])
                assert not any(found.is_rolling_out for found in seen.states[-1])
                api.put(endpoint_slice("qwen-1", one, endpoint("10.0.0.3", "qwen-loading", **LOADING)))
                await seen.until(lambda: not seen.states[-1][2].is_ready)
                assert not any(found.is_rolling_out for found in seen.states[-1])
                api.put(endpoint_slice("qwen-1", one, endpoint("10.0.0.3", "qwen-loading", **TERMINATING)))
                await seen.until(lambda: seen.ids == ["qwen-a", "qwen-b"])
                assert all(found.is_rolling_out for found in seen.states[-1])
                api.delete("qwen-1", "endpointslices")
                await seen.until(lambda: seen.ids == ["qwen-b"])
                assert api.lists() == 1
                assert seen.problems == []
            ways = {urlsplit(asked.partition(" ")[2]) for asked in api.asked}
            assert {way.path for way in ways} == {"/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"}
            asked_for = [parse_qs(way.query)["labelSelector"] for way in ways]
            assert asked_for == [["kubernetes.io/service-name=qwen"]] * len(ways)

    run(story())


def test_servers_that_are_no_pods_are_called_by_their_addresses_and_the_service_is_one_more(
    run: Run, tmp_path: Path
) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(endpoint_slice("by-hand", endpoint("192.0.2.7"), endpoint("192.0.2.8"), ports=[]))
            async with listening(api, tmp_path, port=8000, service="qwen") as seen:
                await seen.until(lambda: seen.states)
                assert [(one.id, one.base_url) for one in seen.states[0]] == [
                    ("192.0.2.7:8000", "http://192.0.2.7:8000"),
                    ("192.0.2.8:8000", "http://192.0.2.8:8000"),
                    ("qwen", f"http://qwen.{NAMESPACE}.svc:8000"),
                ]

    run(story())


def test_an_endpoint_that_moves_and_one_with_two_families_is_one_target(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            one, other = endpoint("10.0.0.1", "qwen-a"), endpoint("10.0.0.2", "qwen-b")
            api.put(endpoint_slice("v6", endpoint("fd00::1", "qwen-a"), endpoint("fd00::2", "qwen-b"), family="IPv6"))
            api.put(endpoint_slice("v4-1", one, other))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)
                api.put(endpoint_slice("v4-2", other))
                api.put(endpoint_slice("v4-1", one))
                api.put(endpoint_slice("v4-3", endpoint("10.0.0.3", "qwen-c")))
                await seen.until(lambda: seen.ids == ["qwen-a", "qwen-b", "qwen-c"])
                addresses = {tuple(found.base_url for found in state)[:2] for state in seen.states}
                assert addresses == {("http://10.0.0.1:8000", "http://10.0.0.2:8000")}

    run(story())


def test_a_cut_watch_goes_on_where_it_was_and_a_bookmark_saves_a_list(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(endpoint_slice("s", endpoint("10.0.0.1", "qwen-a")))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)
                api.put(endpoint_slice("other", service="llama"))  # no event for us
                api.bookmark()
                await asyncio.sleep(0.1)
                api.compact()
                api.cut()
                await seen.until(lambda: not api.watchers)
                api.put(endpoint_slice("s", endpoint("10.0.0.1", "qwen-b")))
                await seen.until(lambda: seen.ids == ["qwen-b"])
                assert api.lists() == 1
                assert seen.problems == []

    run(story())


@pytest.mark.long
@pytest.mark.parametrize("as_status", [True, False], ids=["by its status", "in the watch"])
@pytest.mark.fault(
    "KU16",
    "410 Gone for EndpointSlices",
    area="Kubernetes",
    users_see="nothing",
    stays="slices are listed again",
)
def test_after_410_gone_slices_are_listed_again(run: Run, tmp_path: Path, *, as_status: bool) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.gone_as_status = as_status
            api.put(endpoint_slice("s", endpoint("10.0.0.1", "qwen-a")))
            api.put(endpoint_slice("t", endpoint("10.0.0.2", "qwen-b")))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)
                api.put(endpoint_slice("t", endpoint("10.0.0.2", "qwen-b", **LOADING)))
                await seen.until(lambda: seen.states and not seen.states[-1][1].is_ready)
                api.cut()
                await seen.until(lambda: not api.watchers)
                api.delete("s", "endpointslices")
                api.put(endpoint_slice("u", endpoint("10.0.0.3", "qwen-c")))
                api.compact()
                await seen.until(lambda: seen.ids == ["qwen-b", "qwen-c"])
                assert [one.is_ready for one in seen.states[-1]] == [False, True], "what has been ready is remembered"
                assert api.lists() == 2
                assert seen.problems == []

    run(story())


@pytest.mark.long
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_missing_role_is_one_line_and_can_be_fixed_while_it_runs(run: Run, tmp_path: Path, verb: str) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(endpoint_slice("s", endpoint("10.0.0.1", "qwen-a")))
            api.forbidden |= {f"{verb} endpointslices", "list pods", "watch pods"}
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.problems)
                await asyncio.sleep(0.5)
                (line,) = seen.problems
                assert line.startswith("endpointslices in serving: endpointslices is forbidden")
                assert f'cannot {verb} resource "endpointslices" in API group "discovery.k8s.io"' in line
                needed = "it needs a Role in serving with the verbs list and watch for endpointslices"
                assert f"{needed} (docs/discovery.md)" in line
                assert "\n" not in line
                api.forbidden = {"list pods", "watch pods"}
                await seen.until(lambda: api.watchers and seen.ids == ["qwen-a"])
                await seen.until(lambda: seen.wells == 1)

    run(story())


def test_it_says_that_there_is_no_slice_or_none_has_the_port(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api, listening(api, tmp_path) as seen:
            await seen.until(lambda: seen.problems and seen.states)
            assert seen.states == [()]
            where = "endpointslices in serving with kubernetes.io/service-name=qwen"
            assert seen.problems[0].startswith(f"{where}: there are no slices; check the Service's name")
            api.put(endpoint_slice("s", endpoint("10.0.0.1"), ports=[{"name": "grpc", "port": 9000}]))
            await seen.until(lambda: len(seen.problems) == 2)
            assert seen.problems[1] == f"{where}: slices without a port called 'http' are left out, such as s"
            api.put(endpoint_slice("s", endpoint("10.0.0.1")))
            await seen.until(lambda: seen.ids == ["10.0.0.1:8000"] and seen.wells == 1)

    run(story())


@pytest.mark.alone
@pytest.mark.long
def test_1000_endpoints_settle_in_5_s_and_a_change_is_seen_in_2(run: Run, tmp_path: Path) -> None:
    """Ten slices of 100, as the controller fills them; then a rollout that replaces them all at once."""
    put = partial(endpoint_slice, padding=2000)

    def of(part: int, name: str) -> list[Object]:
        return [endpoint(f"10.{part}.0.{i + 1}", f"{name}-{part}-{i:02}") for i in range(100)]

    async def story() -> tuple[float, float, float]:
        async with api_server() as api:
            for part in range(10):
                api.put(put(f"s{part}", *of(part, "qwen")))
            began = time.perf_counter()
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.states, within_s=10.0)
                settled_s = time.perf_counter() - began
                assert len(seen.states[0]) == 1000
                await seen.until(lambda: api.watchers)
                api.put(put("s5", *of(5, "qwen")[:-1]))
                one_s = await seen.until(lambda: len(seen.states[-1]) == 999)
                for part in range(10):
                    api.put(put(f"s{part}", *of(part, "new")))
                all_s = await seen.until(lambda: seen.ids[:1] == ["new-0-00"] and len(seen.ids) == 1000)  # type: ignore[index, arg-type]
                return settled_s, one_s, all_s

    settled_s, one_s, all_s = run(story())
    print(f"settled {settled_s:.2f} s, one change {one_s:.2f} s, a rollout of all {all_s:.2f} s")  # noqa: T201
    assert settled_s < 5.0
    assert one_s < SEEN_S
    assert all_s < 5.0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_whatever_happens_on_the_way_what_is_found_is_what_there_is(run: Run, tmp_path: Path, seed: int) -> None:
    """Endpoints come, move and go, while the API server is cut off, restarted, compacted, and makes errors."""
    chance = random.Random(seed)

    def change(api: ApiServer) -> None:
        name = f"s{chance.randrange(4)}"
        if name in api.kept["endpointslices"] and chance.random() < 0.3:
            api.delete(name, "endpointslices")
        else:
            several = (endpoint(f"10.0.0.{chance.randrange(1, 12)}") for _ in range(chance.randrange(4)))
            api.put(endpoint_slice(name, *several, service=chance.choice(["qwen", "qwen", "llama"])))

    async def story() -> None:
        async with api_server() as api, listening(api, tmp_path) as seen:
            for _ in range(60):
                for _ in range(chance.randrange(5)):
                    change(api)
                if chance.random() < 0.25:
                    await chance.choice(TROUBLES)(api)
                await asyncio.sleep(chance.uniform(0.0, 0.1))
            there = {
                f"{one['addresses'][0]}:8000"
                for found in api.kept["endpointslices"].values()
                for one in found["endpoints"]
                if found["metadata"]["labels"] == {"kubernetes.io/service-name": "qwen"}
            }
            await seen.until(lambda: seen.ids == sorted(there))

    run(story())
