"""Tables and sentences for a terminal."""

import io
from dataclasses import replace

import pytest
from example_records import CHAT, WALL_S, no_knee, record, result, snapshot, spec, status, step
from rich.console import Console

from probe.records import Capacity, Distribution, Outcome, Stopped
from probe.report.terminal import canary_words, live_summary, print_step, result_words, step_table


def _printed(thing: object) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False, force_terminal=False)
    console.print(thing)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_the_table_has_a_row_for_each_step_with_its_verdict() -> None:
    text = _printed(step_table([step(1), step(2, broken=("ttft", "tpot")), step(4, reason="client_bound")]))
    rows = [words for line in text.splitlines() if (words := line.split()) and words[0].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert rows[0][-1] == "held"
    assert "broke ttft, tpot" in text
    assert "invalid: client_bound" in text
    assert "90.0/200.0/300.0" in text


def test_a_step_that_saw_nothing_has_dashes() -> None:
    empty = replace(step(reason="cut_short"), ttft_s=Distribution(), good_ratio={})
    assert "-" in _printed(step_table([empty]))
    assert "concurrency 4" in _printed_step(empty)


def _printed_step(one: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_step(console, one)  # type: ignore[arg-type]
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_knee_in_words_with_its_bounds_its_limit_and_its_cost() -> None:
    words = result_words(result())
    assert "Knee at 4 requests in flight (empirical)" in words
    assert "10 requests/s (10 to 12.5), 640 output tokens/s" in words
    assert "Limited by ttft." in words
    assert "Ended by done (concurrency 8 broke ttft)." in words
    assert "300 requests, 57,600 tokens, 31.5 s, 2.0 s over an objective" in words


def test_a_lower_bound_says_that_it_is_one() -> None:
    at_least = Capacity(mode="empirical", requests_per_second=10.0, lower=10.0, reason="the capacity is at least this")
    words = result_words(result(capacity=at_least, stopped=Stopped("done")))
    assert "(lower bound)" in words
    assert "at least this" in words
    assert "Ended by done.\n" in words


def test_no_knee_says_why() -> None:
    words = result_words(result(capacity=no_knee("no step was valid: cut_short"), stopped=Stopped("guard", "queue")))
    assert words.startswith("No knee: no step was valid: cut_short.")
    assert "Ended by guard (queue)." in words


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (record(), "every objective met"),
        (record(ttft_s=0.7), "missed ttft"),
        (record(ttft_s=0.7, gap_s=0.1), "missed ttft, tpot"),
        (record(outcome=Outcome.TIMEOUT), "timeout: it failed"),
        (record(asked=spec(output_tokens=1)), "TPOT -"),
    ],
)
def test_a_canary_in_words(one: object, words: str) -> None:
    assert words in canary_words(one, CHAT)  # type: ignore[arg-type]


def test_a_server_cannot_write_on_the_terminal() -> None:
    """A model's name comes from the server: no escape sequence of its may reach a terminal."""
    evil = "\x1b[2J\x1b]0;owned\x07"
    assert "\x1b" not in canary_words(record(model=evil), CHAT)
    assert "\x1b" not in canary_words(record(outcome=Outcome.SERVER_ERROR, detail=evil), CHAT)
    assert "\x1b" not in result_words(result(capacity=no_knee(evil), stopped=Stopped("error", evil)))
    assert "\x1b" not in _printed(live_summary([status(capacity_state=evil)], WALL_S))


def test_the_live_summary_before_and_after_the_first_canary() -> None:
    text = _printed(live_summary([status(), status(name="b", up=True, recent=[record()], server=snapshot())], WALL_S))
    assert "none yet" in text
    assert "1, last ok" in text


def test_the_live_summary_shows_the_capacity_or_why_there_is_none() -> None:
    shown = _printed(live_summary([status(capacity=result())], WALL_S + 31.5 + 7300))
    assert "10 req/s at 4, 2 h ago" in shown
    assert "running" in _printed(live_summary([status(capacity_state="running")], WALL_S))


@pytest.mark.parametrize("state", ["busy: [/x] waits", "no_server_metrics: http://[fe80::1]:8000/metrics: refused"])
def test_words_from_outside_are_no_markup(state: str) -> None:
    text = "".join(_printed(live_summary([status(capacity_state=state)], WALL_S)).split())
    for word in state.split():
        assert word in text
