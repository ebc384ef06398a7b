"""Options from the environment: KNEEWATCH_COMMAND_OPTION."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.cli.main import command, main

Capture = pytest.CaptureFixture[str]
# Those without a variable, each with its reason in the code.
WITHOUT = {"--apply", "--header", "--note", "--port", "--version", "--install-completion", "--show-completion"}


def _options(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for option in group.params:
        names = [name for name in option.opts if name.startswith("--")]
        if names:
            yield f"{prefix}_{names[0][2:].upper().replace('-', '_')}", option
    for name, inner in getattr(group, "commands", {}).items():
        yield from _options(inner, f"{prefix}_{name.upper()}")


def _status(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code or 0


def test_every_option_of_every_command_has_its_variable() -> None:
    found = list(_options(command(), "KNEEWATCH"))
    assert len(found) > 80
    for name, option in found:
        assert option.envvar == (None if WITHOUT & set(option.opts) else name)


def test_variables_are_as_good_as_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump({"targets": [{"name": "a", "base_url": "http://127.0.0.1:9"}]}))
    monkeypatch.setenv("KNEEWATCH_CONFIG_CHECK_CONFIG", str(file))
    assert _status(["config", "check"]) == 0
    assert f"{file}: valid" in capsys.readouterr().out


def test_an_option_comes_before_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNEEWATCH_ALERTS_OUT", str(tmp_path / "by-variable"))
    assert _status(["alerts", "-o", str(tmp_path / "by-option")]) == 0
    assert [folder.name for folder in tmp_path.iterdir()] == ["by-option"]
    assert _status(["alerts"]) == 0
    assert (tmp_path / "by-variable").is_dir()


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("KNEEWATCH_RAMP_SEED", "x")
    assert _status(["ramp"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kneewatch ramp: Invalid value for '--seed'")
    assert "(from KNEEWATCH_RAMP_SEED)" in line


def test_a_service_named_like_a_command_does_no_harm(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Kubernetes sets these for a Service kneewatch-sim, and tools often set KNEEWATCH_VERSION."""
    monkeypatch.setenv("KNEEWATCH_SIM_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("KNEEWATCH_VERSION", "0.1.0")
    assert _status(["sim", "--list"]) == 0
    assert "tiny" in capsys.readouterr().out


def test_help_names_the_rule_and_no_variable(capsys: Capture) -> None:
    assert _status(["--help"]) == 0
    assert "KNEEWATCH_RAMP_SEED is --seed of ramp" in capsys.readouterr().out
    assert _status(["ramp", "--help"]) == 0
    assert "KNEEWATCH_" not in capsys.readouterr().out
