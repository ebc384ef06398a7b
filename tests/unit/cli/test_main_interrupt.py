"""Ctrl-C in the first moments of a command."""

import sys
from types import ModuleType

import pytest

import kneewatch
from probe.cli import main as cli


class _Interrupted(ModuleType):
    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_while_it_is_imported_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "probe.cli.main", _Interrupted("probe.cli.main"))
    with pytest.raises(SystemExit) as ended:
        kneewatch.main()
    assert ended.value.code == 130


def test_before_a_command_has_its_own_handler_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def command() -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "command", command)
    monkeypatch.setattr(cli, "discard_output", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 130
    assert capfd.readouterr() == ("", "")
