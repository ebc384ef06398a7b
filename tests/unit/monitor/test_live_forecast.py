"""When the forecast for what users send is made, beside that for the workload of the target's capacity."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from example_records import result
from set_clock import SetClock

from probe.config.config_file import config_from
from probe.core.request import Api
from probe.core.result import Capacity, CapacityResult
from probe.core.workload import Workload
from probe.monitor.live_forecast import LiveForecast

_NAMED = Workload("default", Api.COMPLETIONS, 256, 128)
_EVERY_S = 1800.0


@dataclass
class _Load:
    """The workload of the capacity, and what users send."""

    users: Workload | None = field(default_factory=lambda: Workload("users", Api.COMPLETIONS, 900, 20))

    def current(self) -> Workload:
        return _NAMED

    def of_users(self) -> Workload | None:
        return self.users


class _Server:
    """A server of which too little is known for a forecast, so that none computes."""

    def __init__(self) -> None:
        config = config_from({"targets": [{"name": "a", "base_url": "http://127.0.0.1:9"}]}, "test")
        self.clock, self.load, self.history = SetClock(), _Load(), SimpleNamespace(packed=(), seconds=60.0)
        self._target = config.target("a")
        observer = SimpleNamespace(state=SimpleNamespace(history=self.history), server=None, gpus=None)
        parts: tuple[Any, ...] = (observer, self.load, config.objectives_of(self._target), self.clock)
        self.forecasts = LiveForecast(self._target, *parts)

    def tries(self) -> bool:
        """Return whether a forecast for users is due, and is made."""
        made = asyncio.run(self.forecasts.update_for_users("m", self._target.capacity, lambda found: found))
        assert made is None or (made is self.forecasts.for_users and made.context.workload["name"] == "users")
        return made is not None

    def finds(self) -> None:
        self.forecasts.for_users = cast(CapacityResult, result(capacity=Capacity("forecast", 10.0, 9.0, 11.0)))

    def passes(self, intervals: float) -> None:
        self.clock.now_s += intervals * _EVERY_S


def test_it_is_made_at_each_fourth_interval() -> None:
    server = _Server()
    assert server.tries()
    server.finds()
    tried = []
    for _ in range(8):
        server.passes(1.001)
        tried.append(server.tries())
        server.finds()
    assert tried == [False, False, False, True] * 2


def test_it_is_made_at_once_for_another_mix() -> None:
    server = _Server()
    assert server.tries()
    server.finds()
    assert not server.tries()
    server.load.users = Workload("users", Api.COMPLETIONS, 3000, 20)
    assert server.tries()


def test_where_it_found_nothing_it_waits_for_twice_the_evidence() -> None:
    server = _Server()
    assert server.tries()
    server.history.seconds = 119.0
    assert not server.tries()
    server.history.seconds = 120.0
    assert server.tries()
    server.finds()
    server.history.seconds = 3600.0
    assert not server.tries()


def test_nothing_is_made_while_the_mix_is_unknown() -> None:
    server = _Server()
    server.load.users = None
    assert not server.tries()
