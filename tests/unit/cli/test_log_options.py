"""Logs of the commands: on standard error, at the level and in the format of --log-level and --log-format."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import structlog

from probe.cli.main import main
from probe.core.errors import ConfigError

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True, slots=True)
class Finished:
    status: str | int | None
    out: str
    err: str


def _kneewatch(capsys: Capture, *arguments: str) -> Finished:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    return Finished(ended.value.code, printed.out, printed.err)


# A command that measures, and the function behind it.
MEASURING = [
    (("check", "--base-url", "http://127.0.0.1:9"), "probe.cli.check.check_one"),
    (("doctor", "--base-url", "http://127.0.0.1:9"), "probe.cli.doctor.diagnose"),
    (("forecast", "--base-url", "http://127.0.0.1:9"), "probe.cli.forecasting.forecast_target"),
    (("ramp", "--base-url", "http://127.0.0.1:9"), "probe.cli.ramp.measure"),
]


def _logs_at(level: str, text: str) -> Callable[..., object]:
    def measure(*_: object, **__: object) -> object:
        structlog.get_logger().log(logging.getLevelNamesMapping()[level.upper()], text)
        raise ConfigError("the end")

    return measure


@pytest.mark.parametrize(("command", "function"), MEASURING)
def test_standard_output_has_no_log_lines(
    command: tuple[str, ...], function: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(function, _logs_at("warning", "a warning"))
    done = _kneewatch(capsys, *command)
    assert (done.status, done.out) == (2, "")
    assert "a warning" in done.err


@pytest.mark.parametrize(
    ("options", "level", "is_logged"),
    [
        ((), "info", False),
        (("--log-level", "info"), "info", True),
        (("--log-level", "error"), "warning", False),
        (("--log-level", "debug"), "debug", True),
        (("--log-level", "INFO"), "info", True),
    ],
)
def test_the_log_level_is_chosen(
    options: tuple[str, ...], level: str, *, is_logged: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    command, function = MEASURING[0]
    monkeypatch.setattr(function, _logs_at(level, "a line"))
    assert ("a line" in _kneewatch(capsys, *options, *command).err) is is_logged


def test_variables_of_the_log_may_be_in_capitals(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    command, function = MEASURING[0]
    monkeypatch.setattr(function, _logs_at("info", "a line"))
    monkeypatch.setenv("KNEEWATCH_LOG_LEVEL", "INFO")
    monkeypatch.setenv("KNEEWATCH_LOG_FORMAT", "JSON")
    assert json.loads(_kneewatch(capsys, *command).err.splitlines()[0])["event"] == "a line"


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_log_format_is_chosen(form: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    command, function = MEASURING[0]
    monkeypatch.setattr(function, _logs_at("warning", "a line"))
    monkeypatch.setenv("KNEEWATCH_LOG_FORMAT", form)
    line = _kneewatch(capsys, *command).err.splitlines()[0]
    assert line.startswith("{") is (form == "json")
    if form == "json":
        assert json.loads(line)["event"] == "a line"


def test_an_unknown_log_level_is_named(capsys: Capture) -> None:
    done = _kneewatch(capsys, "--log-level", "loud", "config", "schema")
    assert done.status == 2
    assert done.err.startswith("kneewatch: Invalid value for '--log-level'")
    assert len(done.err.splitlines()) == 1
