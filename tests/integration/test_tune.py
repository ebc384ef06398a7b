"""`kneewatch tune` starts a server whose limit is known, skips the value that loses, and picks the better one."""

import json
import re
import shlex
from pathlib import Path

import pytest
from kneewatch_command import COMMAND, LATE, kneewatch

from probe.report.measured_file import read_result

pytestmark = [pytest.mark.alone, pytest.mark.long]

_STALLED = re.compile(rf"{LATE.pattern}|worker_lost")  # this machine, not the server
_START = shlex.join([*COMMAND, "sim", "--profile", "tiny", "--port"]) + " {port}"


def test_a_larger_max_num_seqs_is_found_better_and_a_smaller_one_is_not_measured(tmp_path: Path) -> None:
    """With 4 requests at once the server's steps are half empty; it can have more than 8."""
    for attempt in range(2):
        out = tmp_path / f"{attempt}"
        options = ("--prompt-tokens", "64", "--output-tokens", "32", "--observe", "2", "--max-seconds", "75")
        done = kneewatch("tune", "--start", _START, "--knob", "max_num_seqs=4,2,8", *options, "-o", out, within_s=600)
        if done.status == 0 or not any(_STALLED.search(file.read_text()) for file in out.glob("*.json")):
            break
    assert done.status == 0, done.out + done.err
    record = json.loads((out / "decision.json").read_text())
    (knob,) = record["knobs"]
    assert (knob["chosen"], record["settings"]) == ("8", {"max_num_seqs": "8"})
    assert [(one["value"], one["verdict"]) for one in knob["values"]] == [
        ("4", "base"), ("2", "not measured"), ("8", "better"), ("4", "base again"),
    ]  # fmt: skip
    gained = knob["values"][2]
    assert gained["predicted"]["lower"] > 0.1
    assert gained["change"]["ratio"] > 0.2
    assert read_result(out / gained["file"]).context.flags["max_num_seqs"] == "8"
