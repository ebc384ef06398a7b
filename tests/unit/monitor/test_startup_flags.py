"""Which source of a server's startup flags counts, and that a changed flag is another baseline."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from example_records import CHAT, snapshot
from simulated_servers import CHAT as WORKLOAD

from probe.capacity.run.request import context_of, hints_of
from probe.capacity.trend.fingerprint import fingerprint
from probe.config.capacity import POD, PROCESS, SERVER_INFO
from probe.config.config_file import config_from
from probe.config.targets import TargetConfig
from probe.monitor import startup_flags
from probe.monitor.startup_flags import StartupFlags, with_flags


def target(**server: Any) -> TargetConfig:
    config = config_from({"targets": [{"name": "a", "base_url": "http://x:1", "capacity": {"server": server}}]}, "test")
    return config.target("a")


class FakeScraper:
    """Reports the flags that a test says, one answer after another."""

    def __init__(self, *answers: Mapping[str, str] | None) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def read_flags(self) -> Mapping[str, str] | None:
        self.asked += 1
        return self._answers.pop(0)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the flags of a process on loopback, for a test to set."""
    flags: dict[str, str] = {}
    monkeypatch.setattr(startup_flags, "flags_of_local_server", lambda _: dict(flags))
    return flags


def updated(of: TargetConfig, *answers: Mapping[str, str] | None) -> TargetConfig:
    flags = StartupFlags(of, FakeScraper(*answers))  # type: ignore[arg-type]
    for _ in answers:
        asyncio.run(flags.update())
    return flags.target


def test_the_configuration_then_the_server_then_its_pod_then_its_process(process: dict[str, str]) -> None:
    stated = with_flags(
        target(max_num_seqs=1, flags={"dtype": "half"}),
        {"max_num_seqs": "3", "max_num_batched_tokens": "3K", "block_size": "3", "dtype": "3"},
        POD,
    )
    process |= dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len", "dtype"), "4")
    server = updated(stated, {"max_num_seqs": "2", "max_num_batched_tokens": "2048"}).capacity.server
    assert (server.max_num_seqs, server.max_num_batched_tokens) == (1, 2048)
    assert server.startup_flags == {
        "max_num_seqs": "1", "max_num_batched_tokens": "2048", "block_size": "3", "max_model_len": "4", "dtype": "half",
    }  # fmt: skip
    assert server.flag_sources == {
        "max_num_seqs": "configuration", "max_num_batched_tokens": SERVER_INFO, "block_size": POD,
        "max_model_len": PROCESS, "dtype": "configuration",
    }  # fmt: skip


def test_the_limits_that_were_read_are_hints() -> None:
    found = hints_of(updated(target(), {"max_num_seqs": "48", "max_num_batched_tokens": "8K"}).capacity.server)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (48, 8192)


@pytest.mark.usefixtures("process")
def test_the_lower_limit_of_running_requests_is_the_hint_whoever_states_it() -> None:
    for of in (with_flags(target(), {"max_num_active_seqs": "64"}, POD), target(max_num_active_seqs=64)):
        server = updated(of, {"max_num_seqs": "256"}).capacity.server
        assert (hints_of(server).max_num_seqs, server.startup_flags["max_num_active_seqs"]) == (64, "64")
    small = with_flags(target(), {"max_num_seqs": "default", "max_num_batched_tokens": "96"}, POD)
    assert hints_of(small.capacity.server).max_num_seqs == 96


@pytest.mark.usefixtures("process")
def test_the_default_that_a_pod_has_bounds_max_num_seqs_until_the_server_reports_it() -> None:
    of = with_flags(target(), {"max_num_seqs": "default"}, POD)
    found = hints_of(of.capacity.server)
    assert (found.max_num_seqs, found.least_max_num_seqs) == (None, 128)
    found = hints_of(updated(of, {"max_num_seqs": "48"}).capacity.server)
    assert (found.max_num_seqs, found.least_max_num_seqs) == (48, 1)


@pytest.mark.usefixtures("process")
def test_flags_of_a_server_that_is_silent_are_kept_and_those_it_no_longer_has_are_not() -> None:
    assert updated(target(), {"max_num_seqs": "48"}, None).capacity.server.max_num_seqs == 48
    assert updated(target(), {"max_num_seqs": "48"}, {}).capacity.server.max_num_seqs is None


@pytest.mark.usefixtures("process")
def test_a_passive_target_is_not_asked() -> None:
    scraper = FakeScraper({"max_num_seqs": "48"})
    passive = target().model_copy(update={"passive": True})
    asyncio.run(StartupFlags(passive, scraper).update())  # type: ignore[arg-type]
    assert scraper.asked == 0


def test_the_cross_checks_receive_the_limit() -> None:
    limits: list[int | None] = []
    asyncio.run(StartupFlags(target(), FakeScraper({"max_num_seqs": "48"}), limits.append).update())  # type: ignore[arg-type]
    assert limits == [48]


def _context(of: TargetConfig) -> Any:
    return context_of(snapshot(flags={"block_size": "32"}), WORKLOAD, CHAT, of.capacity.server)


def test_a_changed_flag_is_another_baseline_and_another_source_is_not() -> None:
    read, changed, configured = (
        _context(updated(target(), {"max_num_seqs": "48"})),
        _context(updated(target(), {"max_num_seqs": "64"})),
        _context(updated(target(max_num_seqs=48), {"max_num_seqs": "48"})),
    )
    assert read.flags == {"max_num_seqs": "48", "block_size": "32"}
    assert read.flag_sources == {"max_num_seqs": SERVER_INFO, "block_size": "metrics"}
    assert configured.flag_sources["max_num_seqs"] == "configuration"
    assert fingerprint("m", read) == fingerprint("m", configured) != fingerprint("m", changed)
