"""Rows come as steps end, on standard output; the bar is for terminals alone, and leaves nothing behind."""

import time

import pytest
from example_records import step

from probe.core.result import Phase
from probe.report.progress import following


def test_in_a_pipe_rows_come_as_steps_end_and_there_is_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with following() as follow:
        follow.phase(Phase("watching live traffic", 30.0))
        assert capfd.readouterr() == ("", "")
        follow.step(step(1))
        first = capfd.readouterr().out
        follow.phase(Phase("computing the result"))
        follow.step(step(2, broken=("ttft",)))
    second, err = capfd.readouterr()
    assert "verdict" in first
    assert first.rstrip().endswith("passed")
    assert len(second.splitlines()) == 1
    assert second.rstrip().endswith("broke ttft")
    assert err == ""


def test_where_only_errors_are_seen_on_a_terminal_the_bar_is_there(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with following() as follow:
        follow.phase(Phase("step 3: 12.4 requests/s", 20.0))
        follow.step(step(1))
    out, err = capfd.readouterr()
    assert "passed" in out
    assert "step 3" not in out
    assert "step 3: 12.4 requests/s" in err


def test_a_ramp_that_ends_early_or_fails_leaves_the_terminal_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), following():
        raise ZeroDivisionError
    assert capfd.readouterr().out == ""


def test_without_a_terminal_a_line_every_few_seconds_says_what_it_does(capfd: pytest.CaptureFixture[str]) -> None:
    said = ""
    with following(line_s=0.01) as follow:
        for phase in (Phase("watching live traffic", 30.0), Phase("a first request")):
            follow.phase(phase)
            for _ in range(500):
                said += capfd.readouterr().err
                if phase.text in said:
                    break
                time.sleep(0.01)
    assert "watching live traffic: 0 of 30 s" in said.splitlines()
    assert "a first request: 0 s" in said.splitlines(), "nobody knows how long it takes"
