"""Tables and sentences for a terminal."""

import io
from array import array
from dataclasses import replace

import pytest
from example_records import CHAT, WALL_S, record, result, snapshot, spec, status
from rich.console import Console

from probe.core.request import Outcome
from probe.core.result import Capacity
from probe.report.terminal import canary_words, live_summary

UNPLACED = record(events=replace(record().events, tokens=array("i", [4] * 3), unplaced=9), output_tokens=12, ttft_s=0.1)
LATE_TEXT = record(events=replace(record().events, first_visible=2))


def _printed(thing: object) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False, force_terminal=False)
    console.print(thing)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (record(), "): ok, every objective met; TTFT "),
        (record(ttft_s=0.7), "): missed ttft; TTFT 700 ms"),
        (record(ttft_s=0.7, gap_s=0.1), "missed ttft, tpot"),
        (record(outcome=Outcome.TIMEOUT), "timeout: it failed"),
        (record(outcome=Outcome.REJECTED, is_overload=True), "rejected: it failed; the server is up and refuses load"),
        (record(outcome=Outcome.REJECTED), "rejected: it failed; a rate limit, or a full queue"),
        (record(asked=spec(output_tokens=1)), "TPOT -"),
        (record(gap_s=0.0), "not streamed: 100 % of the tokens came together with the first one, so TPOT is unknown"),
        (UNPLACED, "12 tokens came in 3 events, and no usage says which in which, so TPOT is unknown"),
        (UNPLACED, "every objective that can be judged is met"),
        (LATE_TEXT, "TTFT 100 ms, first token with text 120 ms, TPOT 10"),
    ],
)
def test_a_canary_in_words(one: object, words: str) -> None:
    assert words in canary_words(one, CHAT)  # type: ignore[arg-type]


def test_a_canary_names_its_target_or_the_address_that_was_given() -> None:
    assert canary_words(record(target="llama"), CHAT).startswith("llama (")
    assert canary_words(record(target="target"), CHAT, "gpu-1:8000").startswith("gpu-1:8000 (")


@pytest.mark.fault("SE24")
def test_a_server_cannot_write_on_the_terminal() -> None:
    """A model's name comes from the server: no escape sequence of its may reach a terminal."""
    evil = "\x1b[2J\x1b]0;owned\x07"
    assert "\x1b" not in canary_words(record(model=evil), CHAT)
    assert "\x1b" not in canary_words(record(outcome=Outcome.SERVER_ERROR, detail=evil), CHAT)
    assert "\x1b" not in _printed(live_summary([status(capacity_state=evil)], WALL_S))


def test_the_live_summary_before_and_after_the_first_canary() -> None:
    text = _printed(live_summary([status(), status(name="b", up=True, recent=[record()], server=snapshot())], WALL_S))
    assert "none yet" in text
    assert "KV tokens" in text
    assert "1, last ok" in text


def test_a_narrow_live_summary_fits_eighty_columns() -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False, force_terminal=False)
    console.print(live_summary([status(recent=[record()], capacity=result())], WALL_S + 31.5, 80))
    head, _, row, *_ = console.file.getvalue().splitlines()[1:]  # type: ignore[attr-defined]
    assert head.split() == ["target", "canaries", "good", "TTFT", "TPOT", "capacity", "limited", "by"]
    assert "1, last ok" in row
    assert "10 req/s" in row


def test_the_live_summary_shows_the_capacity_or_why_there_is_none() -> None:
    shown = _printed(live_summary([status(capacity=result())], WALL_S + 31.5 + 7300))
    assert "10 req/s at 4 requests in flight, 2 h ago" in shown
    rate = Capacity(mode="verified", requests_per_second=12.5)
    assert "12.5 req/s, 2 h ago" in _printed(
        live_summary([status(capacity=result(capacity=rate))], WALL_S + 31.5 + 7300)
    )
    assert "running" in _printed(live_summary([status(capacity_state="running")], WALL_S))


@pytest.mark.parametrize("state", ["busy: [/x] waits", "no_server_metrics: http://[fe80::1]:8000/metrics: refused"])
def test_words_from_outside_are_no_markup(state: str) -> None:
    text = "".join(_printed(live_summary([status(capacity_state=state)], WALL_S)).split())
    for word in state.split():
        assert word in text
