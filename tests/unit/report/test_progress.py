"""Progress is for terminals: a pipe gets nothing, and a result on standard output is never mixed with it."""

import pytest
from example_records import step

from probe.report.progress import ramp_progress


def test_nothing_is_written_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with ramp_progress([1, 2]) as step_ended:
        step_ended(step(1))
        step_ended(step(2))
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_each_step_is_told_on_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with ramp_progress([1, 2]) as step_ended:
        step_ended(step(1))
        step_ended(step(2, broken=("ttft",)))
    out, err = capfd.readouterr()
    assert out == ""
    assert "concurrency 1" in err
    assert "broke ttft" in err


def test_a_ramp_that_ends_early_or_fails_leaves_the_terminal_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), ramp_progress([1, 2]):
        raise ZeroDivisionError
    assert capfd.readouterr().out == ""
