"""The time limits of a configuration, and the lines for those within which an answer cannot end."""

from typing import Any

import pytest

from probe.config.config import Config
from probe.config.config_file import config_from
from probe.config.time_limits import canary_limits, capacity_limits, too_short, valid_s


def configured(canary: dict[str, Any] | None = None, capacity: dict[str, Any] | None = None, **more: Any) -> Config:
    target = {"name": "a", "base_url": "http://a", "canary": canary or {}, "capacity": capacity or {}, **more}
    return config_from({"targets": [target]}, "test")


def test_the_limit_of_canaries_is_that_of_their_longest_answer_unless_one_is_set() -> None:
    def limit_s(**canary: Any) -> float:
        config = configured(canary)
        return canary_limits(config, config.servers[0]).answer_s()

    assert limit_s() == 30.0
    assert limit_s(workload="long-decode") == pytest.approx(4 * 51.65)
    assert limit_s(workload="production") == pytest.approx(4 * 51.65)
    assert limit_s(workload="long-decode", timeout="5s") == 5.0
    assert limit_s(workload="long-decode", every="1s") == 64.0
    config = configured({"workload": "long-decode", "every": "1m"})
    assert valid_s(config, config.servers[0]) == pytest.approx(180 + 8 * 51.65)


def test_capacity_runs_have_a_limit_of_their_own_the_canaries_or_that_of_their_answers() -> None:
    def limit_s(canary: dict[str, Any], capacity: dict[str, Any]) -> float:
        config = configured(canary, capacity)
        return capacity_limits(config, config.servers[0], 1024).answer_s()

    assert limit_s({}, {}) == pytest.approx(4 * 51.65)
    assert limit_s({"timeout": "5s"}, {}) == 5.0
    assert limit_s({"timeout": "5s"}, {"timeout": "8m"}) == 480.0


VERIFY = {"mode": "verify", "workload": "long-decode"}
LONG = "an answer of 1024 tokens may take 51.7 s by its objectives, and cannot end within"


@pytest.mark.fault(
    "CO63",
    "A limit within which an answer cannot end: of canaries, of capacity runs, or a run's budget",
    area="Configuration",
    users_see="a line of `config check`, `run`, `ramp` and `tune` for each",
    stays="the configuration is in use",
)
@pytest.mark.parametrize(
    ("canary", "capacity", "lines"),
    [
        ({}, {}, []),
        ({}, VERIFY, []),
        ({"workload": "long-decode"}, {}, []),
        ({"workload": "long-decode", "timeout": "30s"}, {}, [f"targets[0].canary.timeout: {LONG} 30s; raise it"]),
        ({"timeout": "30s"}, VERIFY, [f"targets[0].capacity.timeout: {LONG} 30 s; raise it"]),
        ({"timeout": "30s"}, {**VERIFY, "timeout": "1m"}, []),
        ({}, {**VERIFY, "budget": {"seconds": 50}}, [f"targets[0].capacity.budget.seconds: {LONG} 50 s; raise it"]),
        ({}, {**VERIFY, "mode": "forecast", "budget": {"seconds": 50}}, []),
    ],
)
def test_a_limit_that_is_too_short_is_one_line(
    canary: dict[str, Any], capacity: dict[str, Any], lines: list[str]
) -> None:
    assert too_short(configured(canary, capacity)) == lines


def test_canaries_that_are_too_frequent_for_their_answers_are_one_line() -> None:
    (line,) = too_short(
        config_from(
            {
                "workloads": {"novel": {"output_tokens": 7168}},
                "targets": [{"name": "a", "base_url": "http://a", "canary": {"workload": "novel", "every": "2s"}}],
            },
            "test",
        )
    )
    assert line == (
        "targets[0].canary.every: an answer of 7168 tokens may take 359 s by its objectives, and cannot end within"
        " 128s; raise it"
    )


def test_each_kind_of_canary_is_named_and_a_passive_target_has_none() -> None:
    kinds = [{"timeout": "1s"}, {"workload": "short-chat"}]
    target = {"name": "a", "base_url": "http://a", "canaries": kinds}
    config = config_from({"targets": [target]}, "test")
    assert [line.partition(":")[0] for line in too_short(config)] == ["targets[0].canaries[0].timeout"]
    assert too_short(configured({"timeout": "1s"}, passive=True)) == []
