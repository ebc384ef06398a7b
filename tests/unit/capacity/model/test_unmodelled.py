"""What a forecast makes of flags that its model does not have: each beside the value just inside it."""

import pytest
from simulated_servers import CHAT, promise

from probe.capacity.model.unmodelled import READ, caveat, free_share, refusals, why_withheld
from probe.core.objectives import Objective, Objectives
from probe.core.vllm_flags import BY_NAME
from probe.core.workload import longest

USUAL = promise(0.5, 0.03)
ITL = Objectives("o", itl=Objective(0.95, 0.1))
LONGEST = longest(CHAT)[0]


@pytest.mark.parametrize(
    ("flag", "value", "objectives"),
    [
        ("prefill_schedule_interval", "4", USUAL),
        ("prefill_schedule_interval", "1 | 4", USUAL),  # of replicas
        ("long_prefill_token_threshold", str(LONGEST - 1), USUAL),
        ("enable_chunked_prefill", "False", USUAL),
        ("scheduler_cls", "my.Scheduler", USUAL),
        ("stream_interval", "10", ITL),
    ],
)
def test_there_is_no_figure_where_it_would_be_too_high(flag: str, value: str, objectives: Objectives) -> None:
    assert f"({flag}={value})" in str(why_withheld({flag: value}, CHAT, objectives))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("prefill_schedule_interval", "1"),
        ("long_prefill_token_threshold", "0"),
        ("long_prefill_token_threshold", str(LONGEST)),
        ("enable_chunked_prefill", "True"),
        ("scheduler_cls", "vllm.v1.core.sched.async_scheduler.AsyncScheduler"),
        ("stream_interval", "10"),
        ("scheduling_policy", "fcfs"),
        ("pipeline_parallel_size", "1"),
        ("tensor_parallel_size", "8"),
    ],
)
def test_a_flag_without_effect_on_what_is_asked_is_not_said(flag: str, value: str) -> None:
    assert why_withheld({flag: value}, CHAT, USUAL) is None
    assert caveat({flag: value}, CHAT, USUAL) == ""


def test_what_is_only_said_leaves_the_figure() -> None:
    flags = {"scheduling_policy": "priority", "pipeline_parallel_size": "2", "scheduler_reserve_full_isl": "False"}
    assert why_withheld(flags, CHAT, USUAL) is None
    assert caveat(flags, CHAT, USUAL).count("=") == len(flags)


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ({"max_num_queued_reqs": "135"}, False),  # 100 in flight, and 3 standard deviations more
        ({"max_num_queued_reqs": "125"}, True),
        ({"max_num_queued_reqs": "100 | 200"}, True),
        ({"max_num_queued_tokens": "16K"}, False),  # 5 prompts of 1000 tokens in prefill, or 12 at times
        ({"max_num_queued_tokens": "10K"}, True),
        ({}, False),
    ],
)
def test_a_queue_limit_counts_where_it_would_be_reached(flags: dict[str, str], refused: bool) -> None:  # noqa: FBT001
    found = refusals(flags, rate_rps=10.0, in_flight=100.0, prompt_tokens=1000.0, ttft_s=0.5)
    assert (found is not None) == refused


@pytest.mark.parametrize(
    ("value", "share"), [("0.05", 0.05), ("default | 0.1", 0.1), ("x", 0.0), ("7", 0.0), ("nan", 0.0)]
)
def test_the_watermark(value: str, share: float) -> None:
    assert free_share({"watermark": value}) == share


def test_each_is_a_flag_that_is_read() -> None:
    assert set(READ) <= BY_NAME.keys()
