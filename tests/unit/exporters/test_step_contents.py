"""What each step of vLLM held, from what vLLM reports after it. A full step has 100 tokens, a KV block 16."""

from dataclasses import replace

import pytest

from exporters.vllm_plugin.step_contents import SchedulerLimits, Step, StepContents, StepReport

ASYNC, SYNC = SchedulerLimits(100, 16, is_async=True), SchedulerLimits(100, 16, is_async=False)
# Two requests decode, and nothing else is planned.
CALM = StepReport(gaps_s=(0.01, 0.01), first_tokens=0, prompt_tokens=0, finished=0, running=2, kv_tokens=320.0)


def steps_of(limits: SchedulerLimits, *reports: StepReport) -> list[Step]:
    """Return the steps known after these reports, which follow a calm one."""
    contents = StepContents(limits)
    contents.add(CALM)
    return [step for report in reports for step in contents.add(report)]


def test_a_step_without_prompts() -> None:
    # Allocated are 320 tokens; the last blocks are half empty; asynchronously, this step's two tokens are among them.
    assert steps_of(SYNC, CALM) == [Step(0.01, 2, 2, 0, 320.0 - 15.0)]
    assert steps_of(ASYNC, CALM) == [Step(0.01, 2, 2, 0, 320.0 - 15.0 - 2.0)]


def test_a_prompt_within_one_step() -> None:
    prompt = CALM._replace(first_tokens=1, prompt_tokens=60, running=3)
    (step,) = steps_of(SYNC, prompt)
    assert (step.requests, step.decode_tokens, step.prefill_tokens) == (3, 2, 60)
    (_, step) = steps_of(ASYNC, CALM._replace(running=3), prompt)
    assert (step.requests, step.decode_tokens, step.prefill_tokens) == (3, 2, 60)


@pytest.mark.parametrize("limits", [ASYNC, SYNC])
def test_a_prompt_of_three_steps(limits: SchedulerLimits) -> None:
    """250 tokens beside two decoding requests: 98, 98 and 54."""
    planned = CALM._replace(running=3)
    last = CALM._replace(first_tokens=1, prompt_tokens=250, running=3)
    reports = [planned, planned, planned, last] if limits.is_async else [planned, planned, last]
    found = steps_of(limits, *reports)[-3:]
    assert [step.prefill_tokens for step in found] == [98, 98, 54]
    assert [step.requests for step in found] == [3, 3, 3]


def test_a_prompt_that_ends_where_another_begins() -> None:
    both = CALM._replace(first_tokens=1, prompt_tokens=40, running=4)
    last = CALM._replace(gaps_s=(0.02,) * 3, first_tokens=1, prompt_tokens=70, running=4)
    found = steps_of(SYNC, both, last)
    assert [(step.requests, step.decode_tokens, step.prefill_tokens) for step in found] == [(4, 2, 98), (4, 3, 12)]


def test_steps_of_a_prompt_are_held_back_until_it_ends() -> None:
    assert steps_of(SYNC, CALM._replace(running=3)) == []


def test_a_request_that_was_aborted_is_no_prompt() -> None:
    """Its client has left, and the scheduler does not know yet: it runs, and its tokens are not reported."""
    contents = StepContents(SYNC)
    contents.add(CALM)
    assert contents.add(CALM._replace(gaps_s=(0.01,))) == []
    assert contents.add(CALM._replace(gaps_s=(0.01,), running=1)) == []
    assert contents.skipped == 2
    (step,) = contents.add(CALM._replace(gaps_s=(0.01,), running=1))
    assert step.prefill_tokens == 0


def test_a_preempted_request_leaves_the_steps_of_its_return_out() -> None:
    contents = StepContents(ASYNC)
    contents.add(CALM)
    assert contents.add(CALM._replace(gaps_s=(0.01, 0.35))) == []
    assert (contents.skipped, len(contents.add(CALM))) == (2, 1)


def test_a_step_without_a_decoding_request_has_no_duration() -> None:
    alone = StepReport((), first_tokens=1, prompt_tokens=30, finished=0, running=1, kv_tokens=32.0)
    contents = StepContents(SYNC)
    assert contents.add(alone) == []
    assert contents.skipped == 1


def test_a_prompt_begun_before_the_first_decode_has_unknown_parts() -> None:
    """Its beginning was in a step without tokens, so the rest cannot be computed from its length."""
    contents = StepContents(SYNC)
    contents.no_tokens(running=1, kv_tokens=112.0)
    assert contents.add(CALM._replace(first_tokens=1, prompt_tokens=150, running=3)) == []
    assert len(contents.add(CALM._replace(gaps_s=(0.01,) * 3, running=3))) == 1


def test_where_prompts_are_cut_in_steps_that_are_not_full_their_steps_are_left_out() -> None:
    limits = replace(SYNC, step_tokens=None)
    last = CALM._replace(first_tokens=1, prompt_tokens=60, running=3)
    assert steps_of(limits, CALM._replace(running=3), last) == []
    assert [step.prefill_tokens for step in steps_of(limits, last)] == [60]
