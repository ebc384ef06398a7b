"""When a target's forecasts are made anew, when the last one stays, and when it is out of date."""

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from example_records import WALL_S, whole_snapshot

from probe.config.config_file import config_from
from probe.core.request import Api
from probe.core.result import Capacity, CapacityResult
from probe.core.workload import Workload
from probe.monitor.live_forecast import LiveForecast
from probe.observe.snapshot_history import SnapshotHistory

NAMED = Workload("default", Api.COMPLETIONS, 256, 128)
FOUND = Capacity("forecast", 10.0, 9.0, 11.0)
USERS = Workload("users", Api.COMPLETIONS, 900, 20)


@dataclass
class Clock:
    now_s: float = WALL_S

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def waited_ns(self) -> int:
        return 0


@dataclass
class Load:
    """The workload of the capacity, and what users send."""

    named: Workload = NAMED
    users: Workload | None = None

    def current(self) -> Workload:
        return self.named

    def of_users(self) -> Workload | None:
        return self.users


@dataclass
class Server:
    """A server whose forecasts are computed at once."""

    clock: Clock = field(default_factory=Clock)
    load: Load = field(default_factory=Load)
    history: SnapshotHistory = field(default_factory=SnapshotHistory)
    computed: list[str] = field(default_factory=list)  # workloads
    found: Capacity = FOUND
    _tokens: float = 0.0

    def __post_init__(self) -> None:
        config = config_from({"targets": [{"name": "a", "base_url": "http://127.0.0.1:9"}]}, "test")
        target = config.target("a")
        observer = SimpleNamespace(state=SimpleNamespace(history=self.history), server=None, gpus=None)
        parts: tuple[Any, ...] = (observer, self.load, config.objectives_of(target), self.clock)
        self.forecasts, self.settings = LiveForecast(target, *parts), target.capacity

    def passes(self, minutes: int, tokens_a_minute: float = 0.0) -> None:
        """Let time pass, with a scrape each minute."""
        for _ in range(minutes):
            self.clock.now_s += 60.0
            self._tokens += tokens_a_minute
            at = {"at_ns": self.clock.monotonic_ns(), "wall_s": self.clock.now_s}
            self.history.add(replace(whole_snapshot(), **at, prompt_tokens=0.0, generation_tokens=self._tokens))

    def restarts(self) -> None:
        self.history.clear()
        self._tokens = 0.0

    def forecast(self) -> CapacityResult:
        """Return the forecast that is published."""

        async def compute(name: str, *args: Any) -> Capacity:  # noqa: ARG001
            self.computed.append(args[1].name)
            return self.found

        async def make() -> CapacityResult:
            parts: tuple[Any, ...] = ("m", self.settings, lambda found: found, compute)
            result, _ = await self.forecasts.update(*parts)
            await self.forecasts.update_for_users(*parts)
            return result

        return asyncio.run(make())


@pytest.mark.fault(
    "ST122",
    "A server has no users, for a night or for good",
    area="Starvation",
    users_see="the last forecast, as of now: nothing new was to be learnt",
    stays="no CPU is spent; with new traffic a new forecast",
)
def test_a_forecast_is_made_anew_only_where_the_server_has_shown_something_new() -> None:
    server = Server()
    server.passes(30, 1000.0)
    first = server.forecast()
    server.passes(600)
    later = server.forecast()
    assert server.computed == ["default"]
    assert (later.id, later.capacity) == (first.id, first.capacity)
    assert later.started.timestamp() == server.clock.now_s
    assert server.forecasts.last_result == later
    server.passes(30, 1.0)  # canaries
    server.forecast()
    assert server.computed == ["default"]
    server.passes(5, 1000.0)
    assert server.forecast().id != first.id
    assert server.computed == ["default"] * 2


@pytest.mark.parametrize("changed", ["workload", "flags", "restart"])
def test_it_is_made_anew_for_another_workload_flag_or_process(changed: str) -> None:
    server = Server()
    server.passes(30, 1000.0)
    server.forecast()
    if changed == "workload":
        server.load.named = Workload("default", Api.COMPLETIONS, 512, 128)
    elif changed == "flags":
        limits = server.settings.server.model_copy(update={"max_num_seqs": 64})
        server.settings = server.settings.model_copy(update={"server": limits})
    else:
        server.restarts()
        server.passes(30, 1000.0)
    server.forecast()
    assert len(server.computed) == 2


def test_too_few_scrapes_are_looked_at_again_also_of_an_idle_server() -> None:
    server = Server()
    server.passes(3)
    assert "scrapes of the server: 3" in str(server.forecast().capacity.reason)
    server.passes(30)
    server.forecast()
    assert server.computed == ["default"]


def test_what_users_send_is_forecast_each_time_too() -> None:
    server = Server(load=Load(users=USERS))
    for _ in range(3):
        server.passes(30, 1000.0)
        server.forecast()
    assert server.computed == ["default", "users"] * 3
    assert server.forecasts.for_users is not None
    server.load.users = None
    server.passes(30, 1000.0)
    server.forecast()
    assert server.computed[-1] == "default"


@pytest.mark.fault(
    "ST123",
    "A forecast is not renewed for more than an hour and two intervals: its computation fails, or its turn never comes",
    area="Starvation",
    users_see="`out of date` and the age on pages and in the API; no headroom by it, so no alert on headroom",
    stays="the series of the forecast, with their time",
)
def test_a_forecast_that_is_not_renewed_is_out_of_date() -> None:
    server = Server(load=Load(users=USERS))
    server.passes(30, 1000.0)
    server.forecast()
    server.clock.now_s += 3600.0
    assert server.forecasts.last_result is not None
    assert server.forecasts.last_result.capacity.requests_per_second == 10.0
    server.clock.now_s += 61.0
    for last in (server.forecasts.last_result, server.forecasts.for_users):
        assert last is not None
        assert last.capacity.requests_per_second is None
        assert last.capacity.reason == "out of date: 10 requests/s by the evidence of 1 h ago, and none was made since"
    server.found = Capacity("forecast", reason="no rate holds the objectives")
    server.passes(30, 1000.0)
    server.forecast()
    server.clock.now_s += 9999.0
    assert server.forecasts.last_result is not None
    assert server.forecasts.last_result.capacity.reason == "no rate holds the objectives"
