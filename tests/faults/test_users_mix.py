"""Capacity for what users send, where the server shows nothing of it yet."""

import json
from pathlib import Path

import pytest
from kneewatch_command import kneewatch
from monitor import Sim

ENOUGH = 220


@pytest.mark.fault(
    "LO47",
    "Capacity for `users` is asked for before the server has counted 200 requests",
    area="Load",
    users_see="one line with the count, exit 2; scheduled runs are refused: `no_user_lengths`",
    stays="no load is sent",
)
def test_a_ramp_for_users_needs_requests_of_theirs(tmp_path: Path) -> None:
    with Sim(tmp_path, "tiny") as server:
        at = ("ramp", "--base-url", server.base_url)
        refused = kneewatch(*at, "--workload", "users")
        assert refused.status == 2
        (line,) = refused.err.splitlines()
        assert "show the lengths of 0 requests, 200 needed; wait, or use another workload" in line

        short = ("--prompt-tokens", "24", "--output-tokens", "2", "--confirm-seconds", "0", "--no-guard")
        sent = kneewatch(*at, *short, "--concurrency", "4", "--requests-per-step", str(ENOUGH))
        assert sent.status in (0, 1), sent.err
        file = tmp_path / "result.json"
        found = kneewatch(
            *(*at, "--workload", "users", "--concurrency", "2", "--requests-per-step", "30"),
            *("--confirm-seconds", "0", "--no-guard", "--json", file),
        )
        assert found.status in (0, 1), found.err
        result = json.loads(file.read_text())
        assert result["context"]["workload"]["name"] == "users"
        assert "as users send: prompts of mean 24, " in found.out
        of_one = result["cost"]["tokens"] / result["cost"]["requests"]
        assert 20 <= of_one <= 35
