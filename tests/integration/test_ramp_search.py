"""`kneewatch ramp` beside the mock server: the search, rates, a terminal, and Ctrl-C."""

import json
import os
import pty
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from kneewatch_command import COMMAND, LATE, Finished, kneewatch, start_kneewatch
from monitor import Sim
from process import eventually
from stalls import Stalls

from probe.report.result_json import loads

pytestmark = pytest.mark.alone

SMALL = ("--prompt-tokens", "64", "--output-tokens", "16")


def _ramp(tiny: Sim, folder: Path, *options: str) -> tuple[dict[str, Any], Finished]:
    """Return the result of up to five runs: a client-bound run is repeated."""
    file = folder / "result.json"
    with Stalls() as stalls:
        for _ in range(5):
            done = kneewatch("ramp", "--base-url", tiny.base_url, *SMALL, *options, "--json", file)
            assert done.status in (0, 1), done.err
            assert done.err == ""
            loads(file.read_text())
            result: dict[str, Any] = json.loads(file.read_text())
            if not result["steps"] or not _was_late(result["steps"][0]):
                return result, done
    assert stalls.too_long, f"client_bound five times, and the machine woke within {stalls.longest_s * 1000:.1f} ms"
    return result, done


def _was_late(step: dict[str, Any]) -> bool:
    return bool(step["is_late"] or step["reason"] == "client_bound")


def _rows(out: str) -> list[str]:
    verdicts = ("passed", "broke", "not judged:", "stopped:")
    return [line for line in out.splitlines() if line[:1] == " " and any(word in line for word in verdicts)]


@pytest.mark.long
def test_the_search_ends_with_a_figure_or_with_a_reason(tiny: Sim, tmp_path: Path) -> None:
    result, done = _ramp(tiny, tmp_path, "--observe", "2", "--max-seconds", "40")
    capacity = result["capacity"]
    if capacity["requests_per_second"] is None:
        assert (done.status, bool(capacity["reason"])) == (1, True)
        assert "No knee:" in done.out
    else:
        assert done.status == 0
        assert capacity["mode"] in ("forecast", "verified", "empirical")
        assert f"; {capacity['mode']}" in done.out
    assert result["steps"]
    plans = [step["plan"] for step in result["steps"]]
    at_once = [plan for plan in plans if plan["loop"] == "closed"]
    assert all(plan["requests"] == plan["concurrency"] for plan in at_once), "pulses"
    assert plans[: len(at_once)] == at_once, "and steps after them"
    assert len(_rows(done.out)) == len(result["steps"])
    assert result["stopped"]["by"] in ("done", "budget", "guard")
    assert result["cost"]["seconds"] < 42, "nothing is sent beyond the budget"
    assert result["users"]["requests_per_second"] == 0.0
    for label in ("Ended by:", "Cost:", "Advice:"):
        assert label in done.out


def test_load_levels_are_judged_by_e2e_and_by_the_longest_gap(tiny: Sim, tmp_path: Path) -> None:
    """An answer takes this server more than a second; 10 s no token."""
    few = ("--output-tokens", "192", "--concurrency", "10", "--requests-per-step", "20", "--confirm-seconds", "0")
    levels = (*few, "--ttft", "20s", "--tpot", "10s")
    result, done = _ramp(tiny, tmp_path, *levels, "--e2e", "700ms", "--itl", "10s")
    promised = result["context"]["objectives"]
    assert (promised["e2e"], promised["itl"]) == ({"ratio": 0.95, "within_s": 0.7}, {"ratio": 0.95, "within_s": 10.0})
    (step,) = result["steps"]
    assert (step["broken"], result["capacity"]["limiting"]) == (["e2e"], "e2e")
    assert step["good_ratio"]["itl"] == step["good_ratio"]["ttft"] == 1.0
    assert "broke e2e" in done.out
    kept, done = _ramp(tiny, tmp_path, *levels, "--e2e", "20s", "--itl", "10s")
    assert (done.status, kept["steps"][0]["broken"]) == (0, [])
    assert kept["steps"][0]["good_ratio"]["all"] == 1.0


def test_rates_end_where_the_server_does_not_keep_up(tiny: Sim, tmp_path: Path) -> None:
    """It takes some 40 requests/s of this kind."""
    result, done = _ramp(tiny, tmp_path, "--rates", "10,200", "--step-seconds", "4")
    assert [step["plan"]["arrivals"]["rate_rps"] for step in result["steps"]] == [10.0, 200.0]
    assert result["steps"][1]["tripped"] == result["stopped"]["reason"]
    assert result["stopped"]["by"] == "guard"
    assert "stopped:" in done.out
    assert result["stopped"]["reason"] in done.out
    if _was_late(result["steps"][0]):
        assert (done.status, result["capacity"]["requests_per_second"]) == (1, None), "what nobody could measure"
        assert "not judged: client bound" in done.out
        return
    assert result["steps"][0]["valid"], result["steps"][0]["reason"]
    assert done.status == 0
    assert 5.0 < result["capacity"]["requests_per_second"] < 15.0
    assert result["capacity"]["upper"] is None, "the guard stopped the load before it was judged"
    assert "no knee up to" in done.out


@pytest.mark.fault(
    "SI5",
    "Ctrl-C during a ramp",
    area="Signals",
    users_see="the result so far",
    stays="the load ends at once",
)
def test_ctrl_c_ends_the_load_at_once_and_reports_what_was_measured(tiny: Sim, tmp_path: Path) -> None:
    with Stalls() as stalls:
        steps = (_interrupted(tiny, tmp_path, attempt)["steps"] for attempt in range(5))
        first = next((each[0] for each in steps if not _was_late(each[0])), None)
    assert first["valid"] if first else stalls.too_long


def _interrupted(tiny: Sim, tmp_path: Path, attempt: int) -> dict[str, Any]:
    """Return the output of a run of two steps that was interrupted in its second."""
    log, file = tmp_path / f"ramp-{attempt}.log", tmp_path / f"result-{attempt}.json"
    options = ("--rates", "10,12", "--step-seconds", "4", "--json", file)
    ramp = start_kneewatch("ramp", "--base-url", tiny.base_url, *SMALL, *options, log=log)
    try:
        eventually(lambda: _rows(ramp.tail()), within_s=40, what="the first row, while the run goes on")
        assert ramp.alive
        os.kill(ramp.pid, signal.SIGINT)
        interrupted = time.monotonic()
        eventually(lambda: not ramp.alive, within_s=10, what="the end of the command", every_s=0.05)
        assert time.monotonic() - interrupted < 5
    finally:
        ramp.kill()
    assert "Ended by:    interrupt (signal)" in ramp.tail()
    assert "let a run finish" in ramp.tail()
    assert "Traceback" not in ramp.tail()
    result: dict[str, Any] = json.loads(file.read_text())
    assert len(_rows(ramp.tail())) == len(result["steps"])
    return result


def test_on_a_terminal_there_is_a_bar_that_says_what_is_done_and_goes_away(tiny: Sim, tmp_path: Path) -> None:
    arguments = ("ramp", "--base-url", tiny.base_url, *SMALL, "--concurrency", "1", "--requests-per-step", "25")
    arguments += ("--confirm-seconds", "0")
    with Stalls() as stalls:
        for _ in range(5):
            status, text = _on_a_terminal(*arguments, screen=tmp_path / "screen")
            if not LATE.search(text):
                break
    if LATE.search(text) and stalls.too_long:
        pytest.skip("this machine is too busy to measure on")
    assert status == 0, text
    assert "step 1: concurrency 1" in text
    assert "passed" in text
    after_row = text.rpartition("passed")[2]
    assert "Knee:        no knee up to 1 request in flight" in after_row
    assert after_row.rindex("\x1b[2K") < after_row.index("Knee:"), "the bar is wiped before the result"


def _on_a_terminal(*arguments: str, screen: Path) -> tuple[int, str]:
    """Return the exit status, and everything written to the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
        os.execvpe(COMMAND[0], [*COMMAND, *arguments], environ)  # noqa: S606 - that is what a terminal does
    with screen.open("wb") as output:
        try:
            while chunk := os.read(terminal, 65536):
                output.write(chunk)
        except OSError:  # Linux says so when the other end is closed
            pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen.read_text()
