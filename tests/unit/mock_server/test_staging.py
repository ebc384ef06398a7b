"""What `kneewatch sim` stages: users, failures, slowness, a stall and its end; and what Kneewatch reads of it."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner

from probe.cli.main import app as command
from probe.core.snapshot import ServerSnapshot
from probe.mock_server.driver import Faults
from probe.mock_server.profiles import PROFILES
from probe.mock_server.server import build_app
from probe.mock_server.staging import OUTPUT_TOKENS, PROMPT_TOKENS, Staging
from probe.scrape import engines
from probe.simulator.cost import Profile

_MODEL = "m"
_Do = Callable[[httpx.AsyncClient, Starlette], Awaitable[None]]


def _staged(staging: Staging, until: _Do) -> ServerSnapshot:
    """Return the page as Kneewatch reads it, after `until` has returned."""

    async def stage() -> str:
        app = build_app(PROFILES["tiny"], model=_MODEL, faults=staging.faults)
        running = asyncio.create_task(staging.run(app, _MODEL, 1))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sim") as client:
            await asyncio.wait_for(until(client, app), 10)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return (await client.get("/metrics")).text

    return engines.parse(asyncio.run(stage()), 0, 0.0)


async def _first_answers(client: httpx.AsyncClient, _: Starlette) -> None:
    while "http_requests_total{" not in (await client.get("/metrics")).text:  # noqa: ASYNC110 - a page has no event
        await asyncio.sleep(0.01)


def test_users_are_served_and_none_fails() -> None:
    found = _staged(Staging(users_rps=200.0), _first_answers)
    assert found.outcomes["ok"] >= 1
    assert found.http_errors == 0


def test_users_failures_are_seen_though_the_engine_never_had_them() -> None:
    found = _staged(Staging(users_rps=200.0, faults=Faults(error_ratio=1.0)), _first_answers)
    assert found.outcomes["failed"] == 0
    assert found.http_errors is not None
    assert found.http_errors >= 1


def test_a_stall_comes_and_goes() -> None:
    seen = []

    async def both(_: httpx.AsyncClient, app: Starlette) -> None:
        for expected in (True, False):
            while app.state.driver.faults.is_stalled != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            seen.append(app.state.driver.faults.error_ratio)

    _staged(Staging(faults=Faults(error_ratio=0.25), stall_after_s=0.02, recover_after_s=0.02), both)
    assert seen == [0.25, 0.25]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda one: one.name)
def test_every_profile_takes_the_users_longest_request(profile: Profile) -> None:
    profile.check_lengths(PROMPT_TOKENS[1], OUTPUT_TOKENS[1])


def test_the_line_at_the_start_says_all_that_is_on() -> None:
    faults = Faults(extra_step_s=0.06, error_ratio=0.3)
    assert Staging(users_rps=3, faults=faults, stall_after_s=60, recover_after_s=30).words == (
        "users send 3 requests/s (128 + 64 tokens on average); 30 % of the requests get HTTP 500;"
        " each token takes 60 ms longer; requests hang after 60 s, for 30 s"
    )
    assert Staging().words == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--recover-after", "30s"], "--stall-after"),
        (["--users", "1", "--embeddings"], "--embeddings"),
        (["--slow", "60"], "--slow 60"),
    ],
)
def test_options_that_stage_nothing_are_refused(options: list[str], words: str) -> None:
    done = CliRunner().invoke(command, ["sim", *options])
    assert done.exit_code != 0
    assert words in str(done.exception)


async def _asks(client: httpx.AsyncClient, _: Starlette) -> None:
    body = {"model": _MODEL, "prompt": "hi", "max_tokens": 4}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert (await client.post("/v1/completions", json=body | {"model": "other"})).status_code == 404
    assert (await client.get("/v1/completions")).status_code == 405


def test_answers_count_by_method_status_and_handler_as_in_vllm() -> None:
    async def page() -> list[str]:
        app = build_app(PROFILES["tiny"], model=_MODEL)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sim") as client:
            await _asks(client, app)
            await client.get("/health")
            return (await client.get("/metrics")).text.splitlines()

    lines = asyncio.run(page())
    assert [line for line in lines if line.startswith("http_requests_total{")] == [
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0',
        'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0',
        'http_requests_total{handler="none",method="GET",status="4xx"} 1.0',
    ]
