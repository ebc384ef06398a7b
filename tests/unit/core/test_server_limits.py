"""How many requests run at once, by vLLM's flags: vllm/config and vllm/engine/arg_utils.py of 0.32 and 0.33."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.vllm_plugin.step_series import LIMITS
from probe.core.server_limits import DEFAULTS, LEAST_DEFAULT, Limits, limits_of
from probe.core.vllm_command import count, vllm_flags
from probe.core.vllm_flags import FLAGS, PLUGIN_FLAGS, UNREAD

SEQS, ACTIVE = "max_num_seqs", "max_num_active_seqs"


def draft(method: str, tokens: object = 7) -> str:
    return json.dumps({"method": method, "model": "m", "num_speculative_tokens": tokens})


@pytest.mark.parametrize(
    ("flags", "limits"),
    [
        ({}, Limits()),
        ({SEQS: "256"}, Limits(256, None, 256)),
        ({SEQS: "256", ACTIVE: "64"}, Limits(64, None, 64, ACTIVE)),
        ({SEQS: "default", ACTIVE: "64"}, Limits(64, None, 64, ACTIVE)),
        ({ACTIVE: "300"}, Limits(300, None, 300, ACTIVE)),
        ({SEQS: "64 | 128"}, Limits()),  # of replicas
        ({SEQS: "256", ACTIVE: "64 | default"}, Limits(None, None, 1, ACTIVE)),
        ({SEQS: "default"}, Limits(None, None, 128)),
        ({SEQS: "default", "max_num_batched_tokens": "8K"}, Limits(None, 8192, 128)),
        ({SEQS: "default", "max_num_batched_tokens": "64"}, Limits(64, 64, 64)),
        ({SEQS: "default", "max_num_batched_tokens": "64 | 128"}, Limits(None, None, 1)),
        ({"max_num_batched_tokens": "4096", "max_num_scheduled_tokens": "1024"}, Limits(None, 1024)),
        ({"max_num_batched_tokens": "4096", "max_num_scheduled_tokens": "1024 | 2048"}, Limits()),
        ({"max_num_scheduled_tokens": "1024"}, Limits()),
    ],
)  # fmt: skip
def test_the_smaller_limit_counts_and_what_is_not_certain_is_not_assumed(flags: dict[str, str], limits: Limits) -> None:
    assert limits_of(flags) == limits


@pytest.mark.parametrize(
    ("flags", "speculative", "running", "least"),
    [
        ({SEQS: "256", "max_num_batched_tokens": "8192"}, draft("dflash"), 256, 256),
        ({SEQS: "256", "max_num_batched_tokens": "1024"}, draft("dflash"), None, 128),
        ({SEQS: "256", "max_num_batched_tokens": "1024"}, draft("dspark"), None, 128),  # or 146, by the draft's layout
        ({SEQS: "256", ACTIVE: "146", "max_num_batched_tokens": "1024"}, draft("dspark"), 146, 146),  # vLLM's own
        ({SEQS: "256", "max_num_batched_tokens": "1024"}, draft("eagle3"), 256, 256),
        ({SEQS: "256", "max_num_batched_tokens": "1024"}, json.dumps({"model": "org/x-DFlash"}), None, 1),
        ({SEQS: "256"}, draft("dflash"), None, 1),
        ({SEQS: "default", "max_num_batched_tokens": "256"}, draft("dflash"), None, 32),
        ({SEQS: "256"}, '{"method": "dflash', None, 1),
        ({SEQS: "256", "max_num_batched_tokens": "1024"}, f"{draft('dflash')} | default", None, 1),  # of replicas
        ({SEQS: "256", "max_num_batched_tokens": "1024"}, '["dflash"]', None, 1),
        ({SEQS: "256"}, "ngram", 256, 256),
    ],
)
def test_drafts_of_whole_blocks_leave_room_for_fewer_requests(
    flags: dict[str, str], speculative: str, running: int | None, least: int
) -> None:
    found = limits_of({**flags, "speculative_config": speculative})
    assert (found.running, found.least_running) == (running, least)


TEXTS = st.sampled_from(["default", "8K", "1 | 2", "", draft("dspark"), draft("dflash", None), "[]"]) | st.text(
    max_size=5
)


@given(st.dictionaries(st.sampled_from([flag.name for flag in FLAGS]), TEXTS | st.integers(0, 2000).map(str)))
def test_whatever_the_flags_say_no_more_is_assumed_than_either_limit(flags: dict[str, str]) -> None:
    found = limits_of(flags)
    assert min(found.least_running, found.running or 1, found.step_tokens or 1) >= 1
    assert 0 not in (found.running, found.step_tokens)
    for name in (SEQS, ACTIVE):
        if (stated := count(flags.get(name, ""))) and found.running is not None:
            assert found.running <= stated


def test_a_long_name_of_a_draft_model_leaves_the_limit_known() -> None:
    line = ["vllm", "serve", "m", "--max-num-seqs=64", "-sc", json.dumps({"method": "eagle3", "model": "x" * 900})]
    assert limits_of(vllm_flags(line, [], {})).running == 64


def test_the_least_default_is_the_least_of_any_hardware() -> None:
    assert all(LEAST_DEFAULT <= each.max_num_seqs <= each.max_num_batched_tokens for each in DEFAULTS)


def test_the_plugin_exports_what_the_rows_say() -> None:
    """It imports nothing of Kneewatch, so it has a list of its own."""
    assert sorted(LIMITS) == sorted(PLUGIN_FLAGS)


def test_a_flag_has_one_row() -> None:
    names = [flag.name for flag in FLAGS] + [name for each in UNREAD for name in each.names]
    assert len(names) == len(set(names))
