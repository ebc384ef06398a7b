"""`kneewatch tune`: options that do not fit, what is refused before anything runs, and the plan without a server."""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from probe.cli.main import main

KNOB = ("--knob", "max_num_seqs=16,8")


def _kneewatch(*arguments: str) -> tuple[int, str, str]:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, pytest.raises(SystemExit) as ended:
        main(["tune", *arguments])
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def test_what_does_not_fit_is_one_line_with_the_fix() -> None:
    apply = ("--apply", "env a={value}")
    for arguments, words in (
        # Nothing of these may run.
        (KNOB, "expected either --start COMMAND or --apply COMMAND"),
        ((*KNOB, "--start", "env {port}", *apply), "expected either --start"),
        ((*KNOB, *apply), "--apply: needs --base-url"),
        ((*KNOB, "--apply", "env a", "--base-url", "http://a"), "--apply: has no place for max_num_seqs"),
        ((*KNOB, "--start", "env vllm serve m"), "--start: has no {port}"),
        ((*KNOB, "--start", "env {port}", "--base-url", "http://a"), "--base-url: belongs to --apply"),
        ((*KNOB, "--start", "env vllm serve m --port {port}"), "add --host 127.0.0.1"),
        ((*KNOB, "--start", "env vllm serve m --host ::1 --max-num-seqs 8 --port {port}"), "put it first"),
        ((*KNOB, "--start", "env {port}", "--ready-url", "x"), "--ready-url x: expected an address"),
        (("--knob", "host=::1,::", "--start", "env {port}"), "NAME a flag of the engine such as max_num_seqs"),
        ((*KNOB, "--together", "--start", "env {port}"), "--together: expected two --knob, got 1"),
        ((*KNOB, "--gpus", "2", "--start", "env {port}"), "--gpus: has no effect without --gpu-hour-price"),
    ):
        status, out, err = _kneewatch(*arguments)
        (line,) = err.splitlines()
        assert (status, out) == (2, "")
        assert words in line


def test_the_plan_of_a_server_without_a_result_is_what_it_may_cost(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    options = ("--max-seconds", "100", "--max-tokens", "1000", "-o", str(folder))
    status, out, err = _kneewatch(*KNOB, "--start", "env {port}", "--plan-only", *options)
    assert (status, err) == (0, "")
    assert "Nothing is predicted without a result of the base" in out
    assert "Cost: 3 capacity runs; at most 300 s and 3,000 tokens by their budgets" in out
    assert not folder.exists()


def test_the_record_of_another_tuning_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "decision.json").write_text("{}")
    status, _, err = _kneewatch(*KNOB, "--start", "env {port}", "-o", str(tmp_path))
    assert (status, "has the record of another tuning" in err) == (2, True)
