"""`kneewatch tune` starts a server whose limit is known, skips the value that loses, and picks the better one."""

import json
import shlex
from pathlib import Path

import pytest
from kneewatch_command import COMMAND, LATE, kneewatch

from probe.report.measured_file import read_result

pytestmark = [pytest.mark.alone, pytest.mark.long]

_START = shlex.join([*COMMAND, "sim", "--profile", "tiny", "--port"]) + " {port}"


def test_a_larger_max_num_seqs_is_found_better_and_a_smaller_one_is_not_measured(tmp_path: Path) -> None:
    """With 2 requests at once the server spends its steps half empty; its limit beyond that is 8."""
    for attempt in range(3):
        out = tmp_path / f"{attempt}"
        options = ("--prompt-tokens", "64", "--output-tokens", "32", "--observe", "2", "--max-seconds", "45")
        done = kneewatch("tune", "--start", _START, "--knob", "max_num_seqs=2,1,8", *options, "-o", out, within_s=400)
        if done.status == 0 or not any(LATE.search(file.read_text()) for file in out.glob("*.json")):
            break
    assert done.status == 0, done.out + done.err
    record = json.loads((out / "decision.json").read_text())
    (knob,) = record["knobs"]
    assert (knob["chosen"], record["settings"]) == ("8", {"max_num_seqs": "8"})
    assert [(one["value"], one["verdict"]) for one in knob["values"]] == [
        ("2", "base"), ("1", "not measured"), ("8", "better"), ("2", "base again"),
    ]  # fmt: skip
    gained = knob["values"][2]
    assert gained["predicted"]["lower"] > 0.2
    assert gained["change"]["ratio"] > 0.4
    assert read_result(out / gained["file"]).context.flags["max_num_seqs"] == "8"
