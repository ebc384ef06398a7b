"""Reading dcgm-exporters over the network: GPUs of several pages, each asked once, or a TargetError of one line."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hostile_server import CLOSE, HANG, Asked, Script, chunked, head, hostile, whole

from probe.core.errors import TargetError
from probe.core.snapshot import GpuSnapshot
from probe.gpu.dcgm import DcgmPages, read, some_of

RECORDED = (Path(__file__).parents[2] / "pages/gpu/dcgm-4.1-kubernetes.prom").read_text()
PAGE = whole(200, RECORDED, "text/plain; version=0.0.4")


@dataclass(slots=True)
class SetClock:
    """Shows what the test sets."""

    now_s: float = 100.0

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def wall_s(self) -> float:
        return 1e9 + self.now_s


Test = Callable[[DcgmPages, SetClock], Awaitable[None]]


def run(test: Test, timeout_s: float = 2.0) -> None:
    async def main() -> None:
        clock = SetClock()
        pages = DcgmPages(clock, timeout_s)
        try:
            await test(pages, clock)
        finally:
            await pages.close()

    asyncio.run(main())


def page(host: str, count: int = 1) -> bytes:
    lines = (f'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-{host}-{n}",Hostname="{host}"}} 50\n' for n in range(count))
    return whole(200, "".join(lines), "text/plain")


def hosts(snapshot: GpuSnapshot) -> list[str]:
    return [gpu.labels["Hostname"] for gpu in snapshot.gpus]


def failure(script: Script, timeout_s: float = 2.0, path: str = "/metrics") -> str:
    message = ""

    async def test(pages: DcgmPages, _: SetClock) -> None:
        nonlocal message
        async with hostile(script) as server:
            with pytest.raises(TargetError) as caught:
                await pages.read([server.base_url + path], {}, 1.0)
            message = str(caught.value)

    run(test, timeout_s)
    return message


def test_a_page_is_a_snapshot_of_the_gpus_with_the_labels() -> None:
    async def test(pages: DcgmPages, _: SetClock) -> None:
        async with hostile([PAGE]) as server:
            snapshot = await pages.read([f"{server.base_url}/metrics"], {"pod": "dcgmproftester2"}, 1.0)
        assert (snapshot.at_ns, snapshot.wall_s, snapshot.source) == (100 * 10**9, 1e9 + 100, "dcgm")
        assert [gpu.labels["gpu"] for gpu in snapshot.gpus] == ["0"]
        assert [asked.line for asked in server.asked] == ["GET /metrics HTTP/1.1"]

    run(test)


def test_the_gpus_of_several_nodes_are_joined_and_as_old_as_the_oldest_page() -> None:
    async def test(pages: DcgmPages, clock: SetClock) -> None:
        async with hostile([page("a", 2)]) as a, hostile([page("b")]) as b:
            assert hosts(await pages.read([a.base_url], {}, 10.0)) == ["a", "a"]
            clock.now_s += 5.0
            joined = await pages.read([b.base_url, a.base_url, b.base_url], {}, 10.0)
        assert hosts(joined) == ["b", "a", "a"]
        assert joined.at_ns == 100 * 10**9
        assert (len(a.asked), len(b.asked)) == (1, 1)

    run(test)


def test_targets_that_ask_at_about_the_same_time_share_a_request_and_differ_in_labels() -> None:
    async def test(pages: DcgmPages, clock: SetClock) -> None:
        async with hostile([PAGE]) as server:
            urls = [f"{server.base_url}/metrics"]
            wanted = [{"gpu": str(number)} for number in range(3)]
            found = await asyncio.gather(*(pages.read(urls, labels, 4.0) for labels in wanted))
            assert [[gpu.labels["gpu"] for gpu in one.gpus] for one in found] == [["0"], ["1"], ["2"]]
            clock.now_s += 3.9
            await pages.read(urls, {}, 4.0)
            assert len(server.asked) == 1
            clock.now_s += 0.1
            await pages.read(urls, {}, 4.0)
            assert len(server.asked) == 2

    run(test)


def test_a_page_is_parsed_once_and_a_large_one_beside_the_event_loop() -> None:
    def workers() -> int:
        return sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())

    async def test(pages: DcgmPages, _: SetClock) -> None:
        large = whole(200, RECORDED + "# " + "x" * 300_000 + "\n", "text/plain")
        async with hostile([PAGE]) as a, hostile([large]) as b:
            for urls, beside in (([a.base_url], 0), ([b.base_url], 1)):
                one, other = await asyncio.gather(*(pages.read(urls, {}, 9.0) for _ in range(2)))
                assert len(one.gpus) == 3
                assert one.gpus[0].values is other.gpus[0].values
                assert workers() == beside

    run(test)


def test_a_failure_too_is_shared_and_forgotten_as_a_page_is() -> None:
    answers = iter([[whole(503, b"")], [PAGE]])

    async def test(pages: DcgmPages, clock: SetClock) -> None:
        async with hostile(lambda _: next(answers)) as server:
            for _ in range(2):
                with pytest.raises(TargetError, match="HTTP 503"):
                    await pages.read([server.base_url], {}, 4.0)
            clock.now_s += 4.0
            assert len((await pages.read([server.base_url], {}, 4.0)).gpus) == 3

    run(test)


@pytest.mark.fault(
    "FA96",
    "One of several dcgm-exporters does not answer",
    area="Foreign answers",
    users_see="GPU series go as a whole: no partial sum",
    stays="canaries",
)
def test_one_node_that_does_not_answer_is_a_failure_of_all() -> None:
    """Without its page, its GPUs would look as if they were gone."""

    async def test(pages: DcgmPages, _: SetClock) -> None:
        async with hostile([page("a")]) as a, hostile([CLOSE]) as b:
            with pytest.raises(TargetError) as caught:
                await pages.read([a.base_url, b.base_url], {}, 1.0)
        assert str(caught.value).startswith(f"{b.base_url}: no metrics of GPUs (")

    run(test)


def test_more_gpus_than_a_target_may_have_on_all_pages_together_ask_for_labels() -> None:
    async def test(pages: DcgmPages, _: SetClock) -> None:
        async with hostile([page("a", 20)]) as a, hostile([page("b", 20)]) as b:
            urls = [a.base_url, b.base_url]
            with pytest.raises(TargetError, match=rf"^{a.base_url}: 40 GPUs, .*; set labels "):
                await pages.read(urls, {}, 9.0)
            assert hosts(await pages.read(urls, {"Hostname": "b"}, 9.0)) == ["b"] * 20

    run(test)


def test_no_credentials_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    async def test(pages: DcgmPages, _: SetClock) -> None:
        async with hostile([PAGE]) as server:
            await pages.read([server.base_url.replace("//", "//user:password@")], {}, 1.0)
        assert {"authorization", "cookie", "proxy-authorization"}.isdisjoint(server.asked[0].headers)

    run(test)


BAD: dict[str, tuple[Script, str]] = {
    "refused": ([CLOSE], "no metrics of GPUs"),
    "401": ([whole(401, b"")], "HTTP 401"),
    "302": ([whole(302, b"", "text/html", "location: /elsewhere")], "HTTP 302"),
    "HTML": ([whole(200, "<html>", "text/html")], "no series of dcgm-exporter on the page"),
    "AMD": ([whole(200, 'gpu_edge_temperature{gpu_id="0"} 41\n')], "no series of dcgm-exporter on the page"),
    "garbage": ([whole(200, bytes(range(256)))], "no series of dcgm-exporter on the page"),
    "too large": ([whole(200, b"# " + b"x" * (9 * 2**20))], "more than"),
    "truncated": ([head(200, "text/plain", "content-length: 99999") + PAGE[-500:], CLOSE], "no metrics of GPUs"),
    "truncated in chunks": (
        [head(200, "text/plain", "transfer-encoding: chunked") + chunked(PAGE[-500:], end=False), CLOSE],
        "no metrics of GPUs",
    ),
    "never": ([HANG], "TimeoutError"),
    "stalls": ([head(200, "text/plain", "content-length: 99999") + PAGE[-500:], HANG], "TimeoutError"),
    "not gzip": ([whole(200, b"boo", "text/plain", "content-encoding: gzip")], "no metrics of GPUs"),
}


@pytest.mark.parametrize(("script", "words"), BAD.values(), ids=BAD)
@pytest.mark.fault(
    "FA95",
    "dcgm-exporter answers HTML, garbage, too much or nothing",
    area="Foreign answers",
    users_see="GPU series go, one line",
    stays="server series and canaries",
)
def test_anything_else_is_an_error_of_one_line(script: Script, words: str) -> None:
    message = failure(script, timeout_s=0.2 if HANG in script else 2.0)
    assert words in message
    assert message.startswith("http://127.0.0.1:")
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:99999", "http://127.0.0.1:port", "ftp://x"])
def test_a_url_that_cannot_be_used_is_an_error_of_one_line(url: str) -> None:
    async def test(pages: DcgmPages, _: SetClock) -> None:
        with pytest.raises(TargetError) as caught:
            await pages.read([url], {}, 1.0)
        assert str(caught.value).isprintable()

    run(test)


def test_cancelling_one_target_leaves_the_others_theirs() -> None:
    async def test(pages: DcgmPages, _: SetClock) -> None:
        scripts: list[Sequence[bytes | float]] = [[HANG], [PAGE]]

        def script(_: Asked) -> Script:
            return scripts.pop(0)

        async with hostile(script) as server:
            first = asyncio.create_task(pages.read([server.base_url], {}, 1.0))
            await server.until_asked()
            second = asyncio.create_task(pages.read([server.base_url], {}, 1.0))
            first.cancel()
            assert len((await second).gpus) == 3
            with pytest.raises(asyncio.CancelledError):
                await first
            await asyncio.wait_for(server.gone.wait(), 1)

    run(test)


NO_POD = 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-a",Hostname="n"} 50\n'
SHARED = (Path(__file__).parents[2] / "pages/gpu/dcgm-4.8-shared.prom").read_text()
WHY_NONE = {
    "no GPU": ("# HELP DCGM_FI_DEV_GPU_TEMP C\n", "dcgm-exporter shows no GPU"),
    "no pods": (
        NO_POD,
        (
            "dcgm-exporter does not say which pods use its GPUs, or none does; check DCGM_EXPORTER_KUBERNETES=true and"
            " its mount of /var/lib/kubelet/pod-resources"
        ),
    ),
    "other pods": (
        SHARED,
        (
            "dcgm-exporter has no GPU with pod=qwen-0, namespace=serving, but of team-a/chat-0, team-a/chat-1,"
            " team-b/rerank-0; of a shared GPU it names one pod, or all with KUBERNETES_VIRTUAL_GPUS=true"
        ),
    ),
}


@pytest.mark.fault(
    "KU62",
    "A dcgm-exporter without the labels of pods, or with those of other pods only",
    area="Kubernetes",
    users_see="one line on the target's page",
    stays="no GPU of another pod is taken",
)
@pytest.mark.parametrize("name", WHY_NONE)
def test_a_pod_without_a_gpu_on_the_page_is_told_why(name: str) -> None:
    page, words = WHY_NONE[name]
    with pytest.raises(ValueError, match="dcgm-exporter") as caught:
        some_of(read(page), {"pod": "qwen-0", "namespace": "serving"})
    assert str(caught.value) == words


def test_a_pods_share_of_a_gpu_is_the_gpu_and_not_that_of_a_pod_of_its_name_elsewhere() -> None:
    (gpu,) = some_of(read(SHARED), {"pod": "chat-0", "namespace": "team-a"})
    assert (gpu.values["DCGM_FI_DEV_GPU_UTIL"], gpu.labels["pod"]) == (91, "chat-0")
    with pytest.raises(ValueError, match="no GPU with pod=chat-0, namespace=team-b"):
        some_of(read(SHARED), {"pod": "chat-0", "namespace": "team-b"})
