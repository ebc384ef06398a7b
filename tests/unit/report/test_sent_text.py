"""What was sent beside what was asked for."""

from dataclasses import replace

import pytest
from example_records import result

from probe.core.step import Arrivals, SentTokens, TokenCounts
from probe.report.sent_text import sent_lines

_LENGTH = {"tokens": [100, 100], "shares": [0.0, 1.0]}
_ASKED = {"name": "w", "api": "completions", "prompt_tokens": _LENGTH, "output_tokens": 20}
_PROMPTS, _ANSWERS = TokenCounts(101.0, 100.0, 103.0, 104.0), TokenCounts(20.0, 20.0, 20.0, 20.0)
_SENT = SentTokens(_PROMPTS, _ANSWERS, TokenCounts(110.0), answered_prompts=90.0)


def test_a_run_states_rate_and_lengths_as_sent_and_as_asked() -> None:
    plain = result()
    step = replace(plain.steps[0], tokens=_SENT, offered_rps=9.9)
    step = replace(step, plan=replace(step.plan, arrivals=Arrivals(rate_rps=10.0)))
    found = replace(plain, steps=(step,), context=replace(plain.context, workload=_ASKED))
    ((label, words),) = sent_lines(found)
    assert label == "Sent"
    assert words.startswith("9.9 requests/s of 10 asked")
    assert words.endswith(
        "; prompts mean 101 of 100, p50 100 of 100, p95 103 of 100, p99 104 of 100 tokens"
        "; in answered ones the server counted 110 of 90;"
        " answers mean 20 of 20, p50 20 of 20, p95 20 of 20, p99 20 of 20 tokens"
    )


@pytest.mark.parametrize("answered", [90.0, None])
def test_what_was_not_answered_is_no_difference_in_counting(answered: float | None) -> None:
    """The short requests are answered where a step is cut; results of before do not have their lengths."""
    sent = SentTokens(_PROMPTS, _ANSWERS, TokenCounts(90.0), answered_prompts=answered)
    plain = result()
    found = replace(
        plain, steps=(replace(plain.steps[0], tokens=sent),), context=replace(plain.context, workload=_ASKED)
    )
    assert "counted" not in sent_lines(found)[0][1]


def test_fixed_lengths_need_no_such_line() -> None:
    assert (
        sent_lines(replace(result(), context=replace(result().context, workload={**_ASKED, "prompt_tokens": 9}))) == []
    )
    assert sent_lines(replace(result(), context=replace(result().context, workload={"name": "old"}))) == []
