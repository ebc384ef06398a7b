"""Proxies and metrics pages that would make wrong numbers: nothing is published that is not known."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from kneewatch_command import Finished, kneewatch
from monitor import Monitor, Sim
from process import eventually
from round_robin import round_robin

pytestmark = pytest.mark.alone
_REFUSED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_FEW = ("--prompt-tokens", "16", "--output-tokens", "32", "--ttft", "5s", "--tpot", "5s")
_LEVEL = (*_FEW, "--confirm-seconds", "0", "--concurrency", "2", "--requests-per-step", "24")
_WORKLOADS = {"short": {"prompt_tokens": 16, "output_tokens": 32}}


@asynccontextmanager
async def _gateway(url: str, refuses: Callable[[bytes], bool] = lambda _: False) -> AsyncIterator[str]:
    """Run a reverse proxy that reads each answer to its end before it passes it on, and refuses requests with 429."""
    upstream = urlsplit(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            length = next((int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0)
            body = await reader.readexactly(length)
            if refuses(lines[0]):
                writer.write(_REFUSED)
            else:
                from_server, to_server = await asyncio.open_connection(upstream.hostname, upstream.port)
                to_server.write(b"\r\n".join([lines[0], b"connection: close", *lines[1:]]) + body)
                writer.write(await from_server.read())
                to_server.close()
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _behind(gateway: Callable[[], object], work: Callable[[str], None]) -> None:
    """Do the work in a thread beside the gateway."""

    async def run() -> None:
        async with gateway() as url:  # type: ignore[attr-defined]
            await asyncio.to_thread(work, url)

    asyncio.run(run())


# A stream that a proxy holds back to its end.


@pytest.mark.fault(
    "D02",
    "a proxy holds the stream of a canary back to its end",
    area="Truth",
    users_see="`kneewatch_canary_held_back_ratio` 1; KneewatchStreamHeldBack; a problem on the page; `check` says "
    "TPOT is unknown",
    stays="TTFT and availability are judged, TPOT is not",
)
def test_a_canary_whose_stream_is_held_back_has_no_tpot_and_says_why(tiny: Sim, tmp_path: Path) -> None:
    def work(url: str) -> None:
        target = {"name": "a", "base_url": url, "scrape": "1s", "canary": {"every": "1s", "workload": "short"}}
        with Monitor({"workloads": _WORKLOADS, "targets": [target]}, tmp_path) as monitor:
            series = 'kneewatch_canary_held_back_ratio{target="a"} 1.0'
            eventually(lambda: series in monitor.page("/metrics"), within_s=60, what="the series")
            assert "arrive with the first one" in monitor.page("/targets/a")
            page = monitor.page("/metrics")
            canaries = json.loads(monitor.page("/api/v1/targets/a"))["canaries"]
            done = kneewatch("check", "-c", monitor.config_file)
        tpot = [line for line in page.splitlines() if line.startswith("kneewatch_tpot_seconds_count{")]
        assert all(line.endswith(" 0.0") for line in tpot), tpot
        assert {each["tpot_s"] for each in canaries if each["outcome"] == "ok"} == {None}
        assert "not streamed: 100 % of the tokens came together with the first one, so TPOT is unknown" in done.out

    _behind(lambda: _gateway(tiny.base_url), work)


@pytest.mark.fault(
    "D02r",
    "the same for a run with a TPOT objective",
    area="Truth",
    users_see="steps are not judged (`held_back`), and the result says what to change",
    stays="no capacity is published",
)
def test_a_ramp_whose_streams_are_held_back_gives_no_capacity_and_says_why(tiny: Sim, tmp_path: Path) -> None:
    done = _ramp_behind(lambda: _gateway(tiny.base_url), tmp_path)
    assert done.status == 1, done.err
    assert "not judged: held back" in done.out
    assert "most answers do not show when their tokens came, so TPOT and ITL cannot be judged" in done.out
    capacity = json.loads((tmp_path / "result.json").read_text())["capacity"]
    assert (capacity["requests_per_second"], capacity["limiting"]) == (None, None)


# A limit of the gateway.


@pytest.mark.fault(
    "D05",
    "a gateway limits the rate of a run (HTTP 429)",
    area="Truth",
    users_see="the run ends as `rate_limited`, which is no knee",
    stays="no capacity limited by it",
)
def test_a_rate_limit_of_a_gateway_is_no_server_error(tiny: Sim, tmp_path: Path) -> None:
    asked = 0

    def refuses(line: bytes) -> bool:
        nonlocal asked
        asked += line.startswith(b"POST")
        return asked > 5

    done = _ramp_behind(lambda: _gateway(tiny.base_url, refuses), tmp_path)
    assert done.status == 1, done.err
    assert "Ended by:    guard (rate_limited)" in done.out
    assert "HTTP 429, which is a rate limit or a full queue, and no knee" in done.out
    assert "server_errors" not in done.out


def _ramp_behind(gateway: Callable[[], object], folder: Path, load: tuple[str, ...] = _LEVEL) -> Finished:
    ended: list[Finished] = []
    file = folder / "result.json"
    _behind(gateway, lambda url: ended.append(kneewatch("ramp", "--base-url", url, *load, "--json", file)))
    return ended[0]


# Several servers behind one address.


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Run two mock servers. The first has answered requests before."""
    folder = tmp_path_factory.mktemp("two")
    with Sim(folder / "a", "tiny") as old, Sim(folder / "b", "tiny") as young:
        before = kneewatch("ramp", "--base-url", old.base_url, *_LEVEL)
        assert before.status == 0, before.err
        yield old.base_url, young.base_url


@pytest.mark.parametrize("by_request", [True, False])
@pytest.mark.fault(
    "TR17",
    "Several servers behind one address, balanced by request or by connection, under a run",
    area="Truth",
    users_see="`several_servers`, and what to do; without a guard, a search too",
    stays="no capacity is published; of fixed steps without a guard, what was measured",
)
def test_a_guarded_ramp_through_a_load_balancer_says_so(
    two: tuple[str, str], tmp_path: Path, *, by_request: bool
) -> None:
    load = ("--rates", "5,10", "--requests-per-step", "40", "--confirm-seconds", "0")
    done = _ramp_behind(lambda: round_robin(*two, by_request=by_request), tmp_path, _FEW + load)
    assert done.status == 1, done.err
    assert "Ended by:    guard (several_servers)" in done.out
    assert "several servers answer at this address" in done.out
    assert "measure each server at its own address" in done.out
    assert json.loads((tmp_path / "result.json").read_text())["capacity"]["requests_per_second"] is None


@pytest.mark.fault("TR17")
def test_an_unguarded_ramp_through_a_load_balancer_gives_what_was_measured(
    two: tuple[str, str], tmp_path: Path
) -> None:
    load = ("--rates", "5,10", "--requests-per-step", "40", "--confirm-seconds", "0", "--no-guard")
    done = _ramp_behind(lambda: round_robin(*two), tmp_path, _FEW + load)
    assert done.status == 0, done.err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["capacity"]["requests_per_second"] == max(step["throughput_rps"] for step in result["steps"])
    assert "Several servers answer at this address" in done.out
    assert "no users are sending requests" not in done.out


@pytest.mark.fault("TR17")
def test_a_search_learns_nothing_from_the_page_of_one_of_several_servers(two: tuple[str, str], tmp_path: Path) -> None:
    done = _ramp_behind(lambda: round_robin(*two), tmp_path, (*_FEW, "--no-guard", "--observe", "1"))
    assert done.status == 1, done.err
    assert "several servers answer at this address" in done.out
    assert json.loads((tmp_path / "result.json").read_text())["capacity"]["requests_per_second"] is None


# Another server's metrics page.


@pytest.mark.fault(
    "D03",
    "the guard reads another server's metrics page",
    area="Truth",
    users_see="the run ends as `other_server` and says to set `metrics_url`",
    stays="no capacity is published",
)
def test_a_ramp_that_reads_another_server_s_page_ends_without_a_capacity(tiny: Sim, sim: Sim, tmp_path: Path) -> None:
    config, file = tmp_path / "kneewatch.yml", tmp_path / "result.json"
    target = {"name": "a", "base_url": tiny.base_url, "metrics_url": f"{sim.base_url}/metrics"}
    target |= {"canary": {"workload": "short"}}
    config.write_text(yaml.safe_dump({"workloads": _WORKLOADS, "targets": [target]}))
    done = kneewatch("ramp", "-c", config, "--concurrency", "1,2,4,8", "--requests-per-step", "25", "--json", file)
    assert done.status == 1, done.err
    assert "Ended by:    guard (other_server)" in done.out
    assert "so it is another server's and guards nothing; set metrics_url to the page of the server" in done.out
    assert json.loads(file.read_text())["capacity"]["requests_per_second"] is None
