"""What the text of an answer to a question with a known answer may be."""

import time
from dataclasses import replace

import pytest
from example_records import spec, token_events

from probe.client.api_json import error_message
from probe.client.judgement import Transcript, corruption, judge
from probe.core.request import Outcome

PARIS = "(?i)paris"


def judged(text: str, expects: str = PARIS, *, is_cut: bool = False) -> str | None:
    return corruption(text, expects, 24, is_cut=is_cut)


@pytest.mark.parametrize(
    ("text", "expects"),
    [
        ("Paris", PARIS),
        (" Paris.\n", PARIS),
        ("The capital of France is **PARIS**.", PARIS),
        ("<think>\nFrance, so its capital: Paris.\n</think>\n\nParis", PARIS),
        ("Париж", "Париж"),
        ("42", r"\A42\Z"),
        ("1, 1, 1, 1, 1, 1 and 1", "1"),
        ("Paris Paris Paris Paris", PARIS),
        ("ParisParisParisParisParisParisParis, no more", PARIS),
    ],
)
def test_a_right_answer_is_no_corruption(text: str, expects: str) -> None:
    assert judged(text, expects) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no text, and the server counted 24 tokens"),
        (" \n ", "no text"),
        ("!" * 24, "1 characters repeated"),
        (" the" * 24, "repeated"),
        ("Paris " * 24, "repeated"),
        ("\n" * 3 + "0 " * 24, "repeated"),
        ("Par\ufffdis, Paris", "U+FFFD"),
        ("Lyon", "does not match canary.known_answer.expect"),
        ("queue block token batch", "does not match"),
    ],
)
def test_a_corrupt_answer_has_a_reason_without_its_text(text: str, why: str) -> None:
    reason = judged(text)
    assert reason is not None
    assert why in reason
    assert "Lyon" not in reason
    assert "block" not in reason


@pytest.mark.fault(
    "FA67",
    "Half a Unicode character at the token limit",
    area="Foreign answers",
    users_see="nothing: no corruption is reported",
    stays="-",
)
def test_a_character_that_the_limit_of_tokens_cut_is_no_corruption() -> None:
    assert judged("Paris \ufffd", is_cut=True) is None
    assert "U+FFFD" in (judged("Paris \ufffd") or "")
    assert "U+FFFD" in (judged("P\ufffdaris Paris \ufffd", is_cut=True) or "")


def test_an_answer_that_was_cut_before_the_expected_text_says_so() -> None:
    assert "cut after 24 tokens" in (judged("<think> France is a country", is_cut=True) or "")


def test_a_long_answer_is_judged_in_bounded_time() -> None:
    assert "does not match" in (judged("ab" * 1_000_000 + "Paris") or "repeated") or judged("ab" * 1_000_000)


@pytest.mark.parametrize(("expects", "text"), [(r"(x+x+)+y", "x" * 9999 + "!"), (r"(a|aa)+$", "a" * 9999 + "!")])
@pytest.mark.fault(
    "FA199",
    "An answer for which known_answer.expect tries exponentially many ways",
    area="Foreign answers",
    users_see="`client_bound` and one line with the setting: the canary accuses no server",
    stays="the event loop goes on within a fraction of a second",
)
def test_no_expression_holds_the_event_loop(expects: str, text: str) -> None:
    began_s = time.perf_counter()
    with pytest.raises(TimeoutError):
        judged(text, expects)
    assert time.perf_counter() - began_s < 5


def test_an_answer_that_the_expression_cannot_judge_in_time_accuses_no_server() -> None:
    asked = replace(spec(), expects="(x+x+)+y")
    answer = Transcript(token_events([(1, 3, True)]), 8, 3, "stop", is_done=True, text="x" * 9999 + "!")
    outcome, words = judge(asked, answer)
    assert outcome is Outcome.CLIENT_BOUND
    assert words is not None
    assert words.startswith("canary.known_answer.expect has not decided within 20 ms")


@pytest.mark.parametrize("text", [" " * 900 + "x", "ab" * 450 + "c", "<title" * 2700, "<title>" * 2300])
@pytest.mark.fault(
    "ST23",
    "An answer or an error page made so that a search in it takes minutes: blanks, repetitions, titles without end",
    area="Starvation",
    users_see="what the answer is",
    stays="the event loop",
)
def test_no_words_of_a_server_hold_the_event_loop(text: str) -> None:
    began_s = time.process_time()
    for _ in range(4):
        judged(text * (10_000 // len(text)))
        error_message(text.encode())
    assert time.process_time() - began_s < 0.2
