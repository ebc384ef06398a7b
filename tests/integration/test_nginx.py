"""nginx with its defaults in front of one server, or of two: what users have who put it there and change nothing."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kneewatch_command import kneewatch, measured
from monitor import Sim
from nginx_proxy import nginx_before, nginx_before_nothing, nginx_that_limits
from plain_records import spec

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.request import Outcome, RequestRecord, Traffic

pytestmark = [pytest.mark.long, pytest.mark.alone]

_LENGTHS = ("--prompt-tokens", "64", "--output-tokens", "64", "--ttft", "5s", "--tpot", "5s")
_LEVELS = ("--concurrency", "2,4", "--requests-per-step", "24", "--confirm-seconds", "0")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sim, Sim]]:
    folder = tmp_path_factory.mktemp("behind-nginx")
    with Sim(folder / "a", "tiny") as one, Sim(folder / "b", "tiny") as other:
        yield one, other


def test_a_server_behind_nginx_is_checked_and_measured_as_without(
    nginx: str, two: tuple[Sim, Sim], tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    with nginx_before(nginx, tmp_path / "nginx", two[0].base_url) as url:
        checked = kneewatch("check", "--base-url", url)
        done = measured("ramp", "--base-url", url, *_LENGTHS, *_LEVELS, "--json", file)
    assert checked.status == 0, checked.err
    assert "not streamed" not in checked.out
    assert done.status == 0, done.err
    result = json.loads(file.read_text())
    assert [step["reason"] for step in result["steps"]] == [None, None], "no step was held back"
    assert all(step["tpot_s"]["p50"] > 0 for step in result["steps"])
    assert result["context"]["engine"] == "vllm"


def test_two_servers_behind_nginx_are_named(nginx: str, two: tuple[Sim, Sim], tmp_path: Path) -> None:
    alone = kneewatch("ramp", "--base-url", two[0].base_url, *_LENGTHS, *_LEVELS)
    assert alone.status == 0, alone.err
    with nginx_before(nginx, tmp_path / "nginx", *(each.base_url for each in two)) as url:
        done = kneewatch("ramp", "--base-url", url, *_LENGTHS, *_LEVELS)
    assert done.status == 1, done.err
    assert "several servers answer at this address" in done.out


async def _asked(url: str, times: int) -> list[RequestRecord]:
    """Return a request that generates for a while, and others that were sent beside it."""
    clock = SystemClock()
    async with Client(Endpoint("a", url), clock, 20.0) as client:
        long = asyncio.create_task(client.send(spec(8, 200), "mock-model", Traffic.CANARY, clock.monotonic_ns()))
        await asyncio.sleep(0.3)
        short = [client.send(spec(8, 2), "mock-model", Traffic.CANARY, clock.monotonic_ns()) for _ in range(times)]
        return [*await asyncio.gather(*short), await long]


@pytest.mark.parametrize(("status", "outcome"), [(None, Outcome.SERVER_ERROR), (429, Outcome.REJECTED)])
def test_a_limit_of_nginx_is_a_rate_limit_where_its_status_says_so(
    nginx: str, two: tuple[Sim, Sim], tmp_path: Path, status: int | None, outcome: Outcome
) -> None:
    """By default it answers 503 with the page that a Service without endpoints gets too."""
    with nginx_that_limits(nginx, tmp_path / "nginx", two[0].base_url, status) as url:
        limited, passed = asyncio.run(_asked(url, 1))
    assert passed.outcome is Outcome.OK, passed.detail
    assert (limited.outcome, limited.http_status, limited.is_overload) == (outcome, status or 503, False)


def test_nginx_before_a_dead_server_answers_with_a_server_error(nginx: str, tmp_path: Path) -> None:
    with nginx_before_nothing(nginx, tmp_path / "nginx") as url:
        dead, _ = asyncio.run(_asked(url, 1))
    assert (dead.outcome, dead.http_status, dead.is_overload) == (Outcome.SERVER_ERROR, 502, False)


def test_a_full_queue_behind_nginx_keeps_the_words_of_the_server(nginx: str, tmp_path: Path) -> None:
    with (
        Sim(tmp_path / "full", "tiny", "--max-num-queued-reqs", "1") as server,
        nginx_before(nginx, tmp_path / "nginx", server.base_url) as url,
    ):
        *refused, passed = asyncio.run(_asked(url, 3))
    assert passed.outcome is Outcome.OK, passed.detail
    assert {(one.outcome, one.http_status, one.is_overload) for one in refused} == {(Outcome.REJECTED, 503, True)}


def _pages(*servers: Sim) -> list[str]:
    return [part for each in servers for part in ("--metrics-url", f"{each.base_url}/metrics")]


@pytest.mark.fault("TR18")
def test_two_servers_behind_nginx_are_measured_as_one_by_the_pages_of_both(
    nginx: str, two: tuple[Sim, Sim], tmp_path: Path
) -> None:
    def ramp(url: str, levels: str, *pages: str) -> dict[str, Any]:
        file = tmp_path / f"{levels}.json"
        load = ("--concurrency", levels, "--requests-per-step", "48", "--confirm-seconds", "0")
        done = measured("ramp", "--base-url", url, *_LENGTHS, *load, *pages, "--json", file)
        assert done.status == 0, done.out + done.err
        return json.loads(file.read_text())  # type: ignore[no-any-return]

    one = ramp(two[0].base_url, "6")
    with nginx_before(nginx, tmp_path / "nginx", *(each.base_url for each in two)) as url:
        both = ramp(url, "6,12", *_pages(*two))
    assert both["stopped"] == {"by": "done", "reason": None}
    rate = both["capacity"]["requests_per_second"]
    assert rate <= max(step["throughput_rps"] for step in both["steps"])
    assert 1.5 < rate / one["capacity"]["requests_per_second"] < 2.3
    assert both["context"]["flags"]["replicas"] == "2"
    assert both["steps"][-1]["server"]["running_peak"] > 8, "more than one server runs at once"


def test_without_the_page_of_each_server_behind_nginx_nothing_is_sent(
    nginx: str, two: tuple[Sim, Sim], tmp_path: Path
) -> None:
    pages = (*_pages(two[0]), "--metrics-url", "http://127.0.0.1:9/metrics")
    with nginx_before(nginx, tmp_path / "nginx", *(each.base_url for each in two)) as url:
        done = kneewatch("ramp", "--base-url", url, *_LENGTHS, *_LEVELS, *pages)
    assert done.status == 2, done.out
    assert "http://127.0.0.1:9/metrics: no metrics of a server" in done.err
    assert "1 of 2 replicas cannot be read, and all of them are needed" in done.err


def test_a_server_that_nginx_does_not_reach_is_an_error_of_the_server(nginx: str, tmp_path: Path) -> None:
    with Sim(tmp_path / "sim", "tiny") as server, nginx_before(nginx, tmp_path / "nginx", server.base_url) as url:
        server.__exit__()
        done = kneewatch("check", "--base-url", url, "--model", "mock-model")
    assert done.status == 1, done.err
    assert "server_error: HTTP 502" in done.out
