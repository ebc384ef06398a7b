"""Reading a target's server: one page, or those of several replicas together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hostile_server import Asked, Hostile, hostile, whole
from scraping import PAGE, SECRET, VERSION, by_path

from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.core.snapshot import DIFFERS, ServerSnapshot
from probe.scrape.scraper import Scraper


@asynccontextmanager
async def reading(gateway: Hostile, *replicas: Hostile, **where: Any) -> AsyncIterator[Scraper]:
    pages = tuple(f"{one.base_url}/metrics" for one in replicas)
    endpoint = Endpoint("a", gateway.base_url, metrics_urls=pages, secret=lambda: SECRET, **where)
    scraper = Scraper(endpoint, SystemClock(), 1.0)
    try:
        yield scraper
    finally:
        await scraper.close()


def page(running: int, tokens: int = 0, engine: str = "vllm") -> bytes:
    return whole(200, f"{engine}:num_requests_running {running}\n{engine}:generation_tokens_total {tokens}\n")


def test_one_page_is_the_whole_snapshot() -> None:
    async def main() -> ServerSnapshot:
        async with hostile(by_path([PAGE])) as server, reading(server) as scraper:
            snapshot = await scraper.read()
            assert scraper.page_bytes > 1000
            assert scraper.seconds > 0
            return snapshot

    snapshot = asyncio.run(main())
    assert (snapshot.version, snapshot.prompt_tokens, dict(snapshot.replicas)) == ("0.32.0", 18, {})


def test_the_pages_of_replicas_are_read_together_and_added() -> None:
    async def main() -> tuple[ServerSnapshot, list[Asked]]:
        one, other = (by_path([page(running, tokens)]) for running, tokens in ((1, 10), (2, 20)))
        async with hostile(by_path([])) as gateway, hostile(one) as a, hostile(other) as b:
            async with reading(gateway, a, b) as scraper:
                snapshot = await scraper.read()
                assert scraper.page_bytes == 2 * len(page(1, 10).partition(b"\r\n\r\n")[2])
            return snapshot, gateway.asked

    snapshot, at_gateway = asyncio.run(main())
    assert (snapshot.running, snapshot.generation_tokens, snapshot.engines) == (3, 30, 2)
    assert [one.running for one in snapshot.replicas.values()] == [1, 2]
    assert list(snapshot.replicas) == list(snapshot.by_engine)
    assert at_gateway == []


def test_each_replica_is_asked_for_its_own_version_without_the_key() -> None:
    async def main() -> tuple[ServerSnapshot, list[Asked]]:
        older = whole(200, {"version": "0.31.0"})
        async with (
            hostile([VERSION]) as gateway,
            hostile(by_path([PAGE])) as a,
            hostile(by_path([PAGE], [older])) as b,
            reading(gateway, a, b, plain_headers={"x-tenant": "team-a"}) as scraper,
        ):
            return await scraper.read(), [*a.asked, *b.asked]

    snapshot, asked = asyncio.run(main())
    assert snapshot.version == f"0.31.0{DIFFERS}0.32.0"
    assert len(asked) == 4
    assert not any({"authorization", "x-tenant"} & one.headers.keys() for one in asked)


def test_a_replica_below_the_base_url_gets_the_key() -> None:
    async def main() -> list[Asked]:
        async with hostile(by_path([PAGE])) as server, hostile(by_path([PAGE])) as elsewhere:
            async with reading(server, server, elsewhere) as scraper:
                await scraper.read()
            return server.asked

    assert {one.headers["authorization"] for one in asyncio.run(main())} == {f"bearer {SECRET}"}


@pytest.mark.parametrize(
    ("broken", "reason", "words"),
    [
        (whole(503, b""), "status", "HTTP 503"),
        (whole(200, b"<html>"), "not_metrics", "no series of vllm"),
        (page(1, engine="sglang"), "not_metrics", "vllm and "),
    ],
)
@pytest.mark.fault("TR18")
def test_without_the_page_of_each_replica_there_is_no_snapshot(broken: bytes, reason: str, words: str) -> None:
    async def main() -> tuple[TargetError, str]:
        async with (
            hostile([]) as gateway,
            hostile(by_path([page(1)])) as a,
            hostile(by_path([broken])) as b,
            reading(gateway, a, b) as scraper,
        ):
            with pytest.raises(TargetError) as caught:
                await scraper.read()
            return caught.value, b.base_url.removeprefix("http://")

    error, address = asyncio.run(main())
    assert error.reason == reason
    assert words in str(error)
    assert address.rpartition(":")[2] in str(error), "it names the replica"
    assert ("1 of 2 replicas cannot be read" in str(error)) == ("vllm and " not in words)


def test_a_replica_s_page_that_needs_a_key_is_not_called_the_base_url() -> None:
    async def main() -> tuple[str, str]:
        locked = by_path([whole(401, b"")])
        async with (
            hostile([]) as gateway,
            hostile(by_path([PAGE])) as a,
            hostile(locked) as b,
            reading(gateway, a, b) as scraper,
        ):
            with pytest.raises(TargetError) as caught:
                await scraper.read()
            return str(caught.value), b.base_url

    message, replica = asyncio.run(main())
    assert "the page needs the key; set api_key_file, it is sent only below base_url" in message
    assert f"below base_url, {replica}" not in message


def test_flags_are_those_that_each_replica_reports() -> None:
    async def main(*answers: bytes) -> dict[str, str] | None:
        scripts = [lambda asked, a=answer: [a if "/server_info" in asked.line else PAGE] for answer in answers]
        async with (
            hostile([]) as gateway,
            hostile(scripts[0]) as a,
            hostile(scripts[1]) as b,
            reading(gateway, a, b) as scraper,
        ):
            return await scraper.read_flags()

    def info(**scheduler: int) -> bytes:
        return whole(200, {"vllm_config": {"scheduler_config": scheduler}})

    refused = whole(404, {"detail": "Not Found"})
    assert asyncio.run(main(info(max_num_seqs=8), info(max_num_seqs=8))) == {"max_num_seqs": "8"}
    assert asyncio.run(main(info(max_num_seqs=8), info(max_num_seqs=16))) == {"max_num_seqs": f"16{DIFFERS}8"}
    assert asyncio.run(main(info(max_num_seqs=8), refused)) == {}


@pytest.mark.slow
@pytest.mark.fault("ME12")
def test_pages_of_many_replicas_may_be_as_large_together_as_four_of_one_server() -> None:
    large = whole(200, PAGE.partition(b"\r\n\r\n")[2] + b"# x\n" * (5 * 2**18))

    async def main(count: int) -> int:
        async with hostile([]) as gateway, hostile(by_path([large])) as one, reading(gateway) as _:
            pages = tuple(f"{one.base_url}/r{i}/metrics" for i in range(count))
            scraper = Scraper(Endpoint("a", gateway.base_url, metrics_urls=pages), SystemClock(), 10.0)
            try:
                await scraper.read()
                return scraper.page_bytes
            finally:
                await scraper.close()

    assert asyncio.run(main(2)) > 10 * 2**20
    with pytest.raises(TargetError, match="more than 4194304 bytes") as caught:
        asyncio.run(main(8))
    assert caught.value.reason == "too_large"


# Replicas that come and go.


def test_the_replicas_that_it_is_told_are_read_from_then_on() -> None:
    async def main() -> None:
        one, other = (by_path([page(running)] * 9) for running in (1, 2))
        async with hostile(by_path([])) as gateway, hostile(one) as a, hostile(other) as b:
            scraper = Scraper(Endpoint("a", gateway.base_url), SystemClock(), 1.0, follows=True)
            with pytest.raises(TargetError, match="a: its replicas are not known yet"):
                await scraper.read()
            assert scraper.follow([f"{a.base_url}/metrics"]) == ""
            assert (await scraper.read()).flags["replicas"] == "1"
            came = scraper.follow([f"{a.base_url}/metrics", f"{b.base_url}/metrics"])
            assert came == f"localhost:{b.base_url.rpartition(':')[2]} came"
            assert (await scraper.read()).running == 3
            asked = len([each for each in a.asked if " /version " in each.line])
            assert asked == 1, "the one that stays is the same"
            assert scraper.follow([f"{b.base_url}/metrics"]).endswith(" went")
            assert (await scraper.read()).running == 2
            scraper.follow([])
            with pytest.raises(TargetError, match="metrics_discovery finds no replicas"):
                await scraper.read()
            scraper.follow([f"http://127.0.0.1:{port}/metrics" for port in range(8000, 8033)])
            with pytest.raises(TargetError, match="metrics_discovery finds 33 replicas; at most 32 can be read"):
                await scraper.read()
            assert gateway.asked == []
            await scraper.close()

    asyncio.run(main())


def test_a_replica_that_goes_while_it_is_read_is_read_to_the_end() -> None:
    async def main() -> None:
        async with hostile(by_path([])) as gateway, hostile(by_path([page(1)])) as a:
            scraper = Scraper(Endpoint("a", gateway.base_url), SystemClock(), 1.0, follows=True)
            scraper.follow([f"{a.base_url}/metrics"])
            reading = asyncio.create_task(scraper.read())
            await asyncio.sleep(0)
            scraper.follow([])
            assert (await reading).running == 1
            await scraper.close()

    asyncio.run(main())
