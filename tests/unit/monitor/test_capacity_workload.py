"""The workload of a target's capacity: configured, or learnt from users."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from example_records import result, snapshot

from probe.capacity.run.request import context_of
from probe.capacity.trend.fingerprint import fingerprint
from probe.config.capacity import ServerLimitsConfig
from probe.config.config import Config
from probe.core.errors import TargetError
from probe.core.objectives import Objectives
from probe.core.request import Api
from probe.core.result import CapacityResult
from probe.core.snapshot import Histogram, ServerSnapshot, UserTotals
from probe.core.token_length import MeasuredLength
from probe.core.workload import Workload
from probe.monitor.capacity_workload import CapacityWorkload, workload_since_start
from probe.monitor.startup_flags import StartupFlags
from probe.observe.length_history import LengthHistory
from probe.report.result_json import dumps, loads
from probe.simulator.metrics_model import GrowingHistogram, one_two_five


def config_of(**target: Any) -> Config:
    raw: dict[str, Any] = {"name": "a", "base_url": "http://127.0.0.1:9", "capacity": {"workload": "users"}, **target}
    return Config.model_validate({"targets": [raw]})


def counted(lengths: Sequence[float]) -> Histogram:
    histogram = GrowingHistogram(one_two_five(4096))
    for length in lengths:
        histogram.add(length)
    return histogram.histogram()


def page(prompts: Sequence[float], at_ns: int = 0) -> ServerSnapshot:
    outputs = counted([100.0] * len(prompts))
    return replace(snapshot(histograms={"prompt_length": counted(prompts), "output_length": outputs}), at_ns=at_ns)


def learnt(workload: CapacityWorkload, lengths: LengthHistory, prompts: Sequence[float]) -> Workload | None:
    """Return the workload after users have sent these prompts."""
    before, after = page([]), page(prompts)
    lengths.add(before, UserTotals(histograms=before.histograms))
    lengths.add(after, UserTotals(histograms=after.histograms))
    return workload.current()


def watched(config: Config) -> tuple[CapacityWorkload, LengthHistory]:
    target, lengths = config.target("a"), LengthHistory()
    flags = StartupFlags(target, None)  # type: ignore[arg-type] - nothing is scraped
    return CapacityWorkload(config, target, lengths, flags), lengths


def stored(workload: Workload) -> CapacityResult:
    """Return a result of the workload after a round trip through the store."""
    context = context_of(snapshot(), workload, Objectives("o"), ServerLimitsConfig())
    return loads(dumps(replace(result(), context=context)))


def test_too_few_requests_are_no_workload_and_say_so() -> None:
    workload, lengths = watched(config_of())
    assert (
        workload.lacking()
        == "the server's metrics have shown no lengths of requests; use another workload if they never do"
    )
    assert learnt(workload, lengths, [300.0] * 37) is None
    assert workload.lacking() == (
        "the server's metrics show the lengths of 37 requests, 200 needed; wait, or use another workload"
    )
    assert learnt(workload, lengths, [300.0] * 400) is not None
    assert workload.lacking() is None


def test_a_configured_workload_needs_no_users() -> None:
    workload, _ = watched(config_of(capacity={}))
    found = workload.current()
    assert found is not None
    assert (found.name, found.prompt_tokens, workload.lacking()) == ("default", 256, None)


def test_a_workload_named_users_in_the_file_is_that_one() -> None:
    config = Config.model_validate(
        {
            "workloads": {"users": {"prompt_tokens": 99}},
            "targets": [{"name": "a", "base_url": "http://127.0.0.1:9", "capacity": {"workload": "users"}}],
        }
    )
    found = watched(config)[0].current()
    assert found is not None
    assert found.prompt_tokens == 99


def test_what_users_send_is_known_beside_a_configured_workload() -> None:
    workload, lengths = watched(config_of(capacity={}))
    assert workload.of_users() is None
    configured = learnt(workload, lengths, [300.0] * 400)
    found = workload.of_users()
    assert configured is not None
    assert found is not None
    assert (configured.name, found.name) == ("default", "users")
    learnt(workload, lengths, [300.0] * 405 + [350.0] * 5)
    assert workload.of_users() is found, "until they send something else"


def test_what_users_send_is_not_told_twice_nor_under_a_name_that_is_taken() -> None:
    named = {"workloads": {"users": {"prompt_tokens": 99}}, "targets": config_of(capacity={}).model_dump()["targets"]}
    for config in (config_of(), Config.model_validate(named)):
        workload, lengths = watched(config)
        learnt(workload, lengths, [300.0] * 400)
        assert workload.of_users() is None


def test_the_workload_stays_until_users_send_something_else() -> None:
    workload, lengths = watched(config_of())
    first = learnt(workload, lengths, [300.0] * 400)
    assert learnt(workload, lengths, [300.0] * 405 + [350.0] * 5) is first
    changed = learnt(workload, lengths, [300.0] * 410 + [3000.0] * 400)
    assert changed is not None
    assert changed is not first
    assert isinstance(changed.prompt_tokens, MeasuredLength)
    assert changed.prompt_tokens.quantile(0.9) > 1000


def test_the_workload_of_a_stored_result_is_taken_up_with_its_fingerprint() -> None:
    first = learnt(*watched(config_of()), [300.0] * 400)
    assert first is not None
    kept = stored(first)
    workload, lengths = watched(config_of())
    workload.restore(kept)
    again = learnt(workload, lengths, [301.0] * 300)
    assert again == workload.current()
    assert again is not None
    assert fingerprint("m", stored(again).context) == fingerprint("m", kept.context)
    context = context_of(snapshot(), first, Objectives("o"), ServerLimitsConfig())
    assert fingerprint("m", context) == fingerprint("m", kept.context), "the same before and after the store"


def test_a_stored_result_of_another_workload_is_not_taken_for_users() -> None:
    workload, _ = watched(config_of())
    workload.restore(stored(Workload("default", Api.COMPLETIONS, 256, 128)))
    workload.restore(replace(result(), context=replace(result().context, workload={"name": "users", "old": 1})))
    assert workload.current() is None


def test_max_model_len_is_taken_from_the_servers_flags() -> None:
    limits = {"workload": "users", "server": {"flags": {"max_model_len": "4096"}}}
    workload, lengths = watched(config_of(capacity=limits, canary={"workload": "default"}))
    found = learnt(workload, lengths, [300.0] * 400)
    assert found is not None
    assert found.context_tokens == 4096


def test_a_command_learns_from_all_requests_since_the_servers_start() -> None:
    config = config_of()
    target = config.target("a")
    found = workload_since_start(config, target, "users", page([300.0] * 250), {})
    assert (found.name, found.context_tokens) == ("users", 2000)
    assert workload_since_start(config, target, "default", page([]), {}).prompt_tokens == 256
    with pytest.raises(TargetError, match=r"a: no workload users: .* 7 requests, 200 needed"):
        workload_since_start(config, target, "users", page([300.0] * 7), {})
    with pytest.raises(TargetError, match="have shown no lengths of requests; use another workload"):
        workload_since_start(config, target, "users", snapshot(), {})
