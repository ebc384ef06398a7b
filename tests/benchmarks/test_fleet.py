"""The fleet's servers: a mock server's page, with what simulated users have added to it."""

import asyncio
import json

import httpx
import pytest

from benchmarks.fleet import config
from benchmarks.fleet_servers import LOADS, fleet, server_app, with_users
from probe.config.config_file import config_from
from probe.mock_server.metrics import Metrics
from probe.scrape import engines
from probe.simulator.engine import SimulatedEngine
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

pytestmark = pytest.mark.slow


def test_a_page_shows_what_users_have_asked_for_and_nothing_else_moves() -> None:
    server = fleet(3)[2]
    profile = server.case.profile
    simulated = VirtualServer(profile, seed=1, users=BackgroundTraffic(server.rate_rps, server.case.workload))
    simulated.advance(90.0)
    seen = simulated.snapshot()
    plain = Metrics(profile, "m").page(SimulatedEngine(profile)).decode()
    page = with_users(plain, seen)
    shown = engines.parse(page, at_ns=0, wall_s=0.0)
    for name in ("running", "waiting", "kv_cache_usage", "prompt_tokens", "generation_tokens", "kv_cache_tokens"):
        assert getattr(shown, name) == pytest.approx(getattr(seen, name)), name
    for name, histogram in seen.histograms.items():
        assert shown.histograms[name].buckets == histogram.buckets, name
        assert shown.histograms[name].sum == pytest.approx(histogram.sum), name
    assert shown.finished["length"] == seen.finished["length"] > 10
    assert [line.split("{")[0] for line in page.splitlines()] == [line.split("{")[0] for line in plain.splitlines()]


def test_each_server_answers_with_users_and_the_configuration_is_valid() -> None:
    servers = fleet(11)
    loaded = config_from(json.loads(config(servers, "http://127.0.0.1:1", 2, "30m")), "test")
    assert [target.capacity.server.max_num_seqs for target in loaded.servers] == [
        one.case.profile.max_num_seqs for one in servers
    ]
    assert len({one.rate_rps for one in servers}) == 11
    assert (min(LOADS), max(LOADS)) == (0.2, 0.8)

    async def page() -> str:
        transport = httpx.ASGITransport(server_app(servers[1], 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            assert (await client.get("/v1/models")).status_code == 200
            return (await client.get("/metrics")).text

    found = engines.parse(asyncio.run(page()), at_ns=0, wall_s=0.0)
    assert found.finished["length"] > 10
