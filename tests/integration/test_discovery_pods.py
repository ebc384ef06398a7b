"""Pods found through a real HTTP API: list, watch, bookmarks, 410 Gone, lost connections, refusals; and how fast."""

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import discovery_listener
import pytest
from api_server import NAMESPACE, ApiServer, api_server, pod
from both_loops import Run
from discovery_listener import SEEN_S, TROUBLES, Listener

from probe.discovery.types import DiscoveredServer

PODS = {"selector": "app=qwen", "port": "http"}


def listening(api: ApiServer, directory: Path, **pods: Any) -> AbstractAsyncContextManager[Listener]:
    return discovery_listener.listening(api, directory, PODS | pods)


@pytest.fixture(autouse=True)
def _config_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


def test_pods_are_found_with_labels_and_revision_and_changes_are_seen(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            labels = {"app": "qwen", "team": "chat", "pod-template-hash": "7d4b"}
            facts = {"image": "vllm/vllm-openai:v0.32", "node": "node-0"}
            pods = [{"pod": name, "namespace": NAMESPACE} for name in ("qwen-a", "qwen-b")]
            api.put(pod("qwen-a", "10.0.0.1", labels=labels))
            api.put(pod("qwen-b", "fd00::2"))
            api.put(pod("qwen-loading", "10.0.0.3", ready=False))
            api.put(pod("other", "10.0.0.4", labels={"app": "llama"}))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.states)
                assert seen.states[0] == (
                    DiscoveredServer("qwen-a", "http://10.0.0.1:8000", labels, "7d4b", facts=facts, pod=pods[0]),
                    DiscoveredServer("qwen-b", "http://[fd00::2]:8000", {"app": "qwen"}, facts=facts, pod=pods[1]),
                )
                api.put(pod("qwen-loading", "10.0.0.3"))
                await seen.until(lambda: seen.ids == ["qwen-a", "qwen-b", "qwen-loading"])
                api.put(pod("qwen-a", "10.0.0.1", labels=labels, ready=False))
                await seen.until(lambda: not seen.states[-1][0].is_ready)
                api.put(pod("qwen-a", "10.0.0.1", labels=labels, ready=False, terminating=True))
                await seen.until(lambda: seen.ids == ["qwen-b", "qwen-loading"])
                api.delete("qwen-b")
                await seen.until(lambda: seen.ids == ["qwen-loading"])
                api.put(pod("qwen-loading", "10.0.0.3", labels={"app": "elsewhere"}))
                await seen.until(lambda: seen.ids == [])
                assert api.lists() == 1
            assert all(token == "Bearer of-the-test" for token in api.tokens)

    run(story())


def test_the_service_is_one_more_target(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(pod("qwen-a"))
            async with listening(api, tmp_path, service="qwen:80") as seen:
                await seen.until(lambda: seen.states)
                assert [(one.id, one.base_url) for one in seen.states[0]] == [
                    ("qwen", f"http://qwen.{NAMESPACE}.svc:80"),
                    ("qwen-a", "http://10.0.0.1:8000"),
                ]

    run(story())


@pytest.mark.fault(
    "KU14",
    "A watch ends or is cut",
    area="Kubernetes",
    users_see="nothing",
    stays="it goes on where it was",
)
def test_a_watch_that_ends_or_is_cut_goes_on_where_it_was(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(pod("qwen-a"))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)
                api.end_watches()
                await seen.until(lambda: not api.watchers)
                api.put(pod("qwen-b"))
                await seen.until(lambda: seen.ids == ["qwen-a", "qwen-b"])
                api.cut()
                await seen.until(lambda: not api.watchers)
                api.delete("qwen-a")
                await seen.until(lambda: seen.ids == ["qwen-b"])
                assert api.lists() == 1

    run(story())


def test_a_bookmark_saves_a_list(run: Run, tmp_path: Path) -> None:
    async def story(*, bookmark: bool) -> int:
        async with api_server() as api:
            api.put(pod("qwen-a"))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)
                for _ in range(5):  # of others: no event for us
                    api.put(pod("other", labels={"app": "llama"}))
                if bookmark:
                    api.bookmark()
                    await asyncio.sleep(0.1)
                api.compact()
                api.end_watches()
                await seen.until(lambda: api.watches() == 2)
                api.put(pod("qwen-b"))
                await seen.until(lambda: seen.ids == ["qwen-a", "qwen-b"])
                return api.lists()

    assert run(story(bookmark=True)) == 1
    assert run(story(bookmark=False)) == 2


@pytest.mark.parametrize("as_status", [True, False], ids=["by its status", "in the watch"])
@pytest.mark.fault(
    "KU15",
    "410 Gone as an HTTP status",
    area="Kubernetes",
    users_see="nothing",
    stays="pods are listed again, readiness is remembered",
)
def test_after_410_gone_pods_are_listed_again(run: Run, tmp_path: Path, *, as_status: bool) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.gone_as_status = as_status
            api.put(pod("qwen-a"))
            api.put(pod("qwen-b", ready=True))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)
                api.put(pod("qwen-b", ready=False))
                await seen.until(lambda: seen.states and not seen.states[-1][1].is_ready)
                api.cut()
                await seen.until(lambda: not api.watchers)
                api.delete("qwen-a")
                api.put(pod("qwen-c"))
                api.compact()
                await seen.until(lambda: seen.ids == ["qwen-b", "qwen-c"])
                assert [one.is_ready for one in seen.states[-1]] == [False, True], "what has been ready is remembered"
                assert api.lists() == 2
                assert seen.problems == []

    run(story())


@pytest.mark.fault(
    "KU17",
    "An error event in a watch, an object without fields",
    area="Kubernetes",
    users_see="one line",
    stays="the list is taken again",
)
def test_an_error_in_a_watch_means_a_new_list(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(pod("qwen-a"))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)
                api.error(500, "etcd event received with PrevKv=nil")
                await seen.until(lambda: api.lists() == api.watches() == 2)
                assert seen.problems == []
                api.error(500, "etcd event received with PrevKv=nil")
                await seen.until(lambda: api.lists() == api.watches() == 3)
                api.tell(b'{"type": "MODIFIED", "object": {"metadata": 7}}')
                await seen.until(lambda: api.lists() == api.watches() == 4)
                api.put(pod("qwen-b"))
                await seen.until(lambda: seen.ids == ["qwen-a", "qwen-b"])
                assert "etcd event" in seen.problems[0]
                assert "pods in serving: the API server sent an unexpected answer" in seen.problems[1]

    run(story())


@pytest.mark.fault(
    "KU18",
    "The list changes between two pages",
    area="Kubernetes",
    users_see="nothing",
    stays="pages of one version",
)
def test_pages_are_of_one_version_or_the_list_starts_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr("probe.discovery.kubernetes_sd._PAGE", "2")
        async with api_server() as api:
            for i in range(5):
                api.put(pod(f"qwen-{i}"))
            original, pages = api._list, []

            def listed(resource: str, query: dict[str, str]) -> Any:
                pages.append(query.get("continue"))
                if len(pages) == 2:
                    api.put(pod("other", labels={"app": "llama"}))
                    api.compact()  # between the first page and the second
                return original(resource, query)

            api._list = listed  # type: ignore[method-assign]
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.states)
                assert seen.ids == [f"qwen-{i}" for i in range(5)]
                assert [page is None for page in pages] == [True, False, True, False, False]

    run(story())


@pytest.mark.fault(
    "KU19",
    "API server away while pods change",
    area="Kubernetes",
    users_see="said once",
    stays="what was found stays; the truth when it is back",
)
def test_a_server_that_is_away_leaves_what_was_found(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(pod("qwen-a"))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)
                await api.stop()
                await seen.until(lambda: seen.problems)
                assert "the API server cannot be reached" in seen.problems[0]
                await asyncio.sleep(0.6)
                assert len(seen.problems) == 1, "said once"
                assert seen.ids == ["qwen-a"]
                api.delete("qwen-a")
                api.put(pod("qwen-b"))
                await api.start()
                await seen.until(lambda: seen.ids == ["qwen-b"])
                await seen.until(lambda: seen.wells == 1)

    run(story())


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.fault(
    "KU20",
    "403: the Role to list is missing",
    area="Kubernetes",
    users_see="one line with the verbs, once",
    stays="found as soon as the Role is there",
)
@pytest.mark.fault(
    "KU21",
    "403: the Role to watch is missing",
    area="Kubernetes",
    users_see="one line with the verbs, once",
    stays="found as soon as the Role is there",
)
def test_a_missing_role_is_one_line_and_can_be_fixed_while_it_runs(run: Run, tmp_path: Path, verb: str) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(pod("qwen-a"))
            api.forbidden.add(f"{verb} pods")
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.problems)
                await asyncio.sleep(0.5)
                (line,) = seen.problems
                assert f'User "system:serviceaccount:monitoring:kneewatch" cannot {verb} resource "pods"' in line
                assert "it needs a Role in serving with the verbs list and watch for pods (docs/discovery.md)" in line
                assert "\n" not in line
                api.forbidden.clear()
                await seen.until(lambda: api.watchers and seen.ids == ["qwen-a"])
                await seen.until(lambda: seen.wells == 1)

    run(story())


@pytest.mark.fault(
    "KU54",
    "A list whose pages go on without objects",
    area="Kubernetes",
    users_see="one line",
    stays="a hundred empty pages are read, not more",
)
def test_a_list_without_an_end_is_given_up(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.is_endless = True
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.problems)
                assert "the API server's list does not end: 101 pages in a row are empty" in seen.problems[0]
                api.is_endless = False
                api.put(pod("qwen-a"))
                await seen.until(lambda: seen.ids == ["qwen-a"])

    run(story())


@pytest.mark.fault(
    "KU31",
    "Pods without the port, or no pod with these labels",
    area="Kubernetes",
    users_see="one line",
    stays="-",
)
def test_it_says_that_no_pod_matches_or_none_has_the_port(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api, listening(api, tmp_path) as seen:
            await seen.until(lambda: seen.problems and seen.states)
            assert seen.states == [()]
            assert seen.problems == ["pods in serving with app=qwen: no pod has these labels"]
            api.put(pod("qwen-a", port="grpc"))
            await seen.until(lambda: len(seen.problems) == 2)
            assert "pods without a port called 'http' are left out, such as qwen-a" in seen.problems[1]
            api.put(pod("qwen-b"))
            api.delete("qwen-a")
            await seen.until(lambda: seen.ids == ["qwen-b"] and seen.wells == 1)

    run(story())


@pytest.mark.fault(
    "KU30",
    "No service account is mounted",
    area="Kubernetes",
    users_see="one line that says so",
    stays="-",
)
def test_without_any_way_into_a_cluster_it_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api, listening(api, tmp_path) as seen:
            (tmp_path / "kubeconfig").unlink()
            await seen.until(lambda: seen.problems)
            assert (
                "no service account is mounted (automountServiceAccountToken), and the kubeconfig" in seen.problems[0]
            )

    run(story())


@pytest.mark.fault(
    "KU23",
    "An API server that hangs up on every watch",
    area="Kubernetes",
    users_see="nothing",
    stays="it is asked at most eight times in 2 s",
)
def test_a_server_that_hangs_up_on_every_watch_is_not_asked_all_the_time(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(pod("qwen-a"))
            api.ends_watches = True
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.states)
                await asyncio.sleep(2.0)
                assert 3 <= len(api.asked) <= 8

    run(story())


@pytest.mark.alone
@pytest.mark.long
def test_500_pods_settle_in_5_s_and_a_change_is_seen_in_2(run: Run, tmp_path: Path) -> None:
    put = partial(pod, padding=8000)

    async def story() -> tuple[float, float, float]:
        async with api_server() as api:
            for i in range(500):
                api.put(put(f"qwen-{i:03}", f"10.0.{i // 250}.{i % 250 + 1}"))
            began = time.perf_counter()
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.states, within_s=10.0)
                settled_s = time.perf_counter() - began
                assert len(seen.states[0]) == 500
                await seen.until(lambda: api.watchers)
                api.put(put("qwen-250", "10.1.1.1"))
                one_s = await seen.until(lambda: seen.states[-1][250].base_url == "http://10.1.1.1:8000")
                states = len(seen.states)
                for i in range(500):  # a rollout, all at once
                    api.delete(f"qwen-{i:03}")
                    api.put(put(f"qwen-new-{i:03}", f"10.2.{i // 250}.{i % 250 + 1}"))
                all_s = await seen.until(lambda: seen.ids[:1] == ["qwen-new-000"] and len(seen.ids) == 500)  # type: ignore[index, arg-type]
                assert len(seen.states) - states <= all_s / 0.2 + 2, "a burst is few states"
                return settled_s, one_s, all_s

    settled_s, one_s, all_s = run(story())
    print(f"settled {settled_s:.2f} s, one change {one_s:.2f} s, a rollout of all {all_s:.2f} s")  # noqa: T201
    assert settled_s < 5.0
    assert one_s < SEEN_S
    assert all_s < 5.0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.fault(
    "KU26",
    "Sixty rounds of cuts, restarts, compactions and errors while pods move",
    area="Kubernetes",
    users_see="nothing",
    stays="what is found is what there is",
)
def test_whatever_happens_on_the_way_what_is_found_is_what_there_is(run: Run, tmp_path: Path, seed: int) -> None:
    """Pods come, move, and go, while the API server is cut off, restarted, compacted, and makes errors."""
    chance = random.Random(seed)

    def change(api: ApiServer) -> None:
        name = f"qwen-{chance.randrange(12)}"
        if name in api.pods and chance.random() < 0.4:
            api.delete(name)
        else:
            uid = api.pods.get(name, {"metadata": {"uid": f"{chance.random()}"}})["metadata"]["uid"]
            of_others = {"app": "llama"} if chance.random() < 0.2 else None
            api.put(pod(name, f"10.0.0.{chance.randrange(1, 250)}", labels=of_others, uid=uid))

    async def story() -> None:
        async with api_server() as api, listening(api, tmp_path) as seen:
            for _ in range(60):
                for _ in range(chance.randrange(5)):
                    change(api)
                if chance.random() < 0.25:
                    await chance.choice(TROUBLES)(api)
                await asyncio.sleep(chance.uniform(0.0, 0.1))
            there = sorted(
                (name, f"http://{one['status']['podIP']}:8000")
                for name, one in api.pods.items()
                if one["metadata"]["labels"] == {"app": "qwen"}
            )
            await seen.until(lambda: seen.states and [(o.id, o.base_url) for o in seen.states[-1]] == there)

    run(story())


@pytest.mark.fault(
    "KU50",
    "The API server sends bytes that are not UTF-8",
    area="Kubernetes",
    users_see="one line; the watch begins again",
    stays="the last servers",
)
def test_a_change_that_is_not_utf_8_is_reported_and_the_watch_begins_again(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(pod("qwen-a"))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: api.watchers)

                def is_reported() -> bool:
                    api.tell(b'{"type": "MODIFIED\xb4", "object": {}}')
                    return "the API server sent JSON that is not UTF-8" in str(seen.problems)

                await seen.until(is_reported)  # one lost watch is normal
                api.put(pod("qwen-b"))
                await seen.until(lambda: seen.ids == ["qwen-a", "qwen-b"])

    run(story())


@pytest.mark.fault(
    "A67",
    "the Kubernetes API sends JSON with a million values",
    area="Foreign answers",
    users_see="one line; the watch begins again",
    stays="the last servers",
)
def test_a_change_with_a_million_values_is_refused_before_it_is_parsed(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with api_server() as api:
            api.put(pod("qwen-a", "10.0.0.1"))
            async with listening(api, tmp_path) as seen:
                await seen.until(lambda: seen.ids == ["qwen-a"])

                def is_reported() -> bool:
                    api.tell(b'{"type": "MODIFIED", "object": {"x": [' + b"0," * 1_000_000 + b"0]}}")
                    return "sent JSON that holds more than 1000000 values" in str(seen.problems)

                await seen.until(is_reported)  # one lost watch is normal
                assert seen.ids == ["qwen-a"]

    run(story())
