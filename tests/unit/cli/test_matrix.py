"""`kneewatch matrix`: its rows and their options; runs are those of ramp, and are replaced here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_records import result

from probe.cli import matrix
from probe.cli.main import main
from probe.cli.matrix_rows import ROWS
from probe.config.workloads import PRESETS
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.result import CapacityResult, Stopped


def _named(name: str) -> CapacityResult:
    one = result()
    return replace(one, context=replace(one.context, workload={"name": name}))


def _run(monkeypatch: pytest.MonkeyPatch, out: Path, found: dict[str, Any], *arguments: str) -> tuple[int, list[str]]:
    asked = []

    def measured(options: matrix.MatrixOptions, row: Any, _: str) -> CapacityResult:
        asked.append(matrix.ramp_options(options, row).workload or "")
        answer = found.get(row.workload, _named(row.workload))
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(matrix, "measured_row", measured)
    with pytest.raises(SystemExit) as ended:
        main(["matrix", "http://127.0.0.1:1", "-o", str(out), *arguments])
    return int(ended.value.code or 0), asked


def test_a_row_has_the_options_of_its_command_and_a_preset() -> None:
    options = matrix.MatrixOptions(url="http://a", guard=False, max_seconds=90.0)
    for row in ROWS:
        asked = matrix.ramp_options(options, row)
        assert asked.workload in PRESETS
        assert (asked.concurrency, asked.rates, asked.max_seconds, asked.guard) == (
            row.concurrency,
            row.rates,
            90.0,
            False,
        )
        assert f"--workload {row.workload}" in row.options
    assert matrix.ramp_options(replace(options, max_seconds=None), ROWS[2]).max_seconds == 900


def test_every_row_is_measured_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, asked = _run(monkeypatch, tmp_path / "m", {})
    assert (status, asked) == (0, [row.workload for row in ROWS])
    text = (tmp_path / "m" / "report.md").read_text()
    assert sum(line.startswith("## ") for line in text.splitlines()) == len(ROWS)
    assert "wrote " in capsys.readouterr().out


def test_a_row_that_cannot_be_measured_is_said_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    short = TargetError("the model holds 2048 tokens", Outcome.REJECTED)
    status, asked = _run(monkeypatch, tmp_path / "m", {"prefix-cold": short}, "--rows", "a,E")
    assert (status, asked) == (1, ["short-chat", "prefix-cold", "prefix-warm"])
    assert "- E prefix-cold was not measured: the model holds 2048 tokens" in (tmp_path / "m" / "report.md").read_text()
    assert _run(monkeypatch, tmp_path / "none", {"short-chat": short}, "--rows", "A")[0] == 2


def test_an_interrupt_ends_it_with_the_rows_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = replace(_named("long-prefill"), stopped=Stopped("interrupt", "signal"))
    status, asked = _run(monkeypatch, tmp_path / "m", {"long-prefill": ended})
    assert (status, asked) == (1, ["short-chat", "long-prefill"])


def test_what_makes_no_sense_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, tmp_path / "m", {}, "--rows", "A,G") == (2, [])
    assert "--rows A,G: expected letters of A, B, C, D, E, F" in capsys.readouterr().err
    (tmp_path / "report.md").write_text("")
    assert _run(monkeypatch, tmp_path, {}) == (2, [])
    assert "has the report of another matrix" in capsys.readouterr().err
