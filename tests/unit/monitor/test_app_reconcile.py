"""What is watched changes while the monitor runs: fleets that come and go, and workloads of a new configuration."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from call_count import counted
from mock_servers import mock_server

from probe.config.config_file import config_from, load_config
from probe.core.clock import SystemClock
from probe.discovery.types import DiscoveredServer
from probe.monitor.app import App

pytestmark = pytest.mark.slow

NOTHING_DUE = {"canary": {"every": "600s", "workload": "short"}, "scrape": "600s"}


def _found(count: int, *, rolling: bool = False) -> tuple[DiscoveredServer, ...]:
    addresses = [f"127.0.0.1:{10_000 + n}" for n in range(count)]
    return tuple(DiscoveredServer(each, f"http://{each}", is_rolling_out=rolling) for each in addresses)


def _app() -> App:
    """Return an app that does not run: the test passes it servers."""
    pods = {"name": "pods", "discover": {"file": {"files": ["nowhere.json"]}}, **NOTHING_DUE}
    raw = {
        "listen": "127.0.0.1:0",
        "store": {},
        "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 3}},
        "targets": [{**pods, "capacity": {"mode": "verify"}}],
    }
    return App(config_from(raw, "test"), SystemClock())


def _file(path: Path, workloads: dict[str, int], *targets: dict[str, Any]) -> Path:
    """Write a configuration. `workloads` maps each to its number of tokens."""
    lengths = {name: {"prompt_tokens": 8, "output_tokens": tokens} for name, tokens in workloads.items()}
    raw = {"listen": "127.0.0.1:0", "store": {}, "workloads": lengths, "targets": list(targets)}
    path.write_text(yaml.safe_dump(raw))
    return path


@asynccontextmanager
async def _turns(each: Callable[[], None] = lambda: None) -> AsyncIterator[list[None]]:
    """One for each turn of the loop meanwhile, in which `each` is called."""
    turns: list[None] = []

    async def turn() -> None:
        while True:
            each()
            turns.append(None)
            await asyncio.sleep(0)

    task = asyncio.create_task(turn())
    try:
        yield turns
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.fault(
    "ME9",
    "Targets that come and go by hundreds",
    area="Memory",
    users_see="each one's series come and go",
    stays="time grows in proportion",
)
def test_four_times_as_many_targets_come_and_go_in_about_four_times_the_time() -> None:
    async def run(count: int) -> tuple[int, int]:
        app = _app()
        with counted() as came:
            await app._discovered("pods", _found(count))
        assert len(app.monitors) == count
        with counted() as went:
            await app._discovered("pods", ())
        assert not app.monitors
        assert 'target="pods/' not in app.page.render()[0].decode()
        return came.count, went.count

    few, many = asyncio.run(run(25)), asyncio.run(run(100))
    assert many[0] < 5 * few[0]
    assert many[1] < 5 * few[1]


def test_between_any_two_targets_that_come_or_go_the_loop_does_what_else_is_due() -> None:
    """Load workers that hear nothing for two seconds end their load, whichever target's it is."""

    async def run() -> None:
        app = _app()
        seen: set[int] = set()

        def look() -> None:
            assert [status.name for status in app.statuses()] == list(app.monitors)
            seen.add(len(app.monitors))

        for servers in (_found(30), ()):
            seen.clear()
            async with _turns(look) as turns:
                await app._discovered("pods", servers)
                await asyncio.sleep(0)
            assert len(turns) >= 30
            assert len(seen) >= 30

    asyncio.run(run())


def test_no_load_can_begin_on_a_server_of_a_rollout_while_others_are_begun_or_ended() -> None:
    async def run() -> None:
        app = _app()
        await app._discovered("pods", _found(5))
        assert not any(watch.inhibited_by for watch in app.monitors.values())
        held: list[bool] = []

        def look() -> None:
            held.append(all(watch.inhibited_by for watch in app.monitors.values()))

        async with _turns(look):
            await app._discovered("pods", _found(20, rolling=True)[1:])
        # Before it began they were not; the one that goes is until it has gone.
        assert len(app.monitors) == 19
        assert len(held) >= 15
        assert all(held[held.index(True) :])
        assert held.index(True) <= 3

    asyncio.run(run())


def test_ending_during_a_reload_begins_nothing_any_more(tmp_path: Path) -> None:
    async def run() -> None:
        def target(n: int) -> dict[str, Any]:
            return {"name": f"t{n}", "base_url": f"http://127.0.0.1:{10_000 + n}", **NOTHING_DUE}

        file = _file(tmp_path / "kneewatch.yml", {"short": 3}, target(0))
        app, stop, ready = App(load_config(file), SystemClock(), file), asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(app.run(stop, lambda _: ready.set()))
        await ready.wait()
        _file(file, {"short": 3}, *(target(n) for n in range(200)))
        # As /-/reload does: nobody cancels it.
        reloading = asyncio.create_task(app.reload())

        def look() -> None:
            if len(app.monitors) > 1:
                stop.set()

        async with _turns(look), asyncio.timeout(20):
            await running
            watched = len(app.monitors)
            await reloading
        assert 1 < watched < 200
        assert len(app.monitors) == watched

    asyncio.run(run())


def test_requests_on_demand_are_of_the_workloads_that_a_reload_has_brought(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server:
            target = {"name": "a", "base_url": server.url, **NOTHING_DUE}
            path = tmp_path / "kneewatch.yml"
            file = _file(path, {"short": 3, "same": 4, "changes": 5, "goes": 6}, target)
            app = App(load_config(file), SystemClock(), file)

            async def asked(workload: str) -> tuple[int | None, str]:
                record = await app.on_demand("a", workload)
                return record.spec.output_tokens, record.outcome.value

            assert [await asked(name) for name in ("same", "changes", "goes")] == [(n, "ok") for n in (4, 5, 6)]
            with pytest.raises(KeyError):
                await asked("comes")
            watch = app.monitors["a"]
            on_demand = watch._on_demand
            kept = on_demand.for_workload(on_demand.workload("same"))
            _file(path, {"short": 3, "same": 4, "changes": 7, "comes": 8}, target)
            assert await app.reload() is None
            assert app.monitors["a"] is watch, "nothing that it is made of has changed"
            assert [await asked(name) for name in ("same", "changes", "comes")] == [(n, "ok") for n in (4, 7, 8)]
            assert on_demand.for_workload(on_demand.workload("same")) is kept
            with pytest.raises(KeyError):
                await asked("goes")
            await watch.close()

    asyncio.run(run())
