"""What the text of an answer to a question with a known answer may be."""

import pytest

from probe.client.judgement import corruption

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
