"""`kneewatch check` and `ramp` beside the mock server: what they print, what they write, how they end."""

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from kneewatch_command import kneewatch, measured, start_kneewatch
from monitor import Sim
from process import eventually

from probe.report.json_schemas import file_schema

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def config(tiny: Sim, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("cli") / "kneewatch.yml"
    objectives = {
        "chat": {"availability": 0.999, "ttft": {"ratio": 0.95, "within": "500ms"}},
        "never": {"ttft": {"ratio": 0.95, "within": "1ms"}},
    }
    target = {"base_url": tiny.base_url, "canary": {"workload": "short"}}
    targets = [{"name": "a", "objectives": "chat", **target}, {"name": "b", "objectives": "never", **target}]
    workloads = {"short": {"prompt_tokens": 16, "output_tokens": 4}}
    file.write_text(yaml.safe_dump({"objectives": objectives, "workloads": workloads, "targets": targets}))
    return file


def test_the_mock_server_prints_its_address_and_ends_cleanly(tmp_path: Path) -> None:
    process = start_kneewatch("sim", "--port", "0", "--profile", "tiny", log=tmp_path / "sim.log")
    said = "mock server tiny serves mock-model on http://127.0.0.1:"
    eventually(lambda: process.tail().startswith(said), within_s=30, what="the line that says where")
    assert process.terminate() == 0
    assert len(process.tail().splitlines()) == 1


def test_check_of_an_address_alone(tiny: Sim) -> None:
    done = measured("check", "--base-url", tiny.base_url)
    assert done.status == 0, done.err + done.out
    assert f"{tiny.base_url.removeprefix('http://')} (mock-model): ok" in done.out
    assert "256 + 128 tokens" in done.out
    done = measured("check", "--base-url", tiny.base_url, "--prompt-tokens", "32", "--output-tokens", "8")
    assert "32 + 8 tokens" in done.out


def test_check_as_json_is_a_list_also_for_one_server(tiny: Sim) -> None:
    done = measured("check", "--base-url", f"{tiny.base_url}/v1/", "--api", "chat", "--json")
    assert done.status == 0, done.err
    (answer,) = json.loads(done.out)
    assert (answer["target"], answer["model"], answer["outcome"]) == ("target", "mock-model", "ok")
    assert answer["met"]["all"] is True
    assert answer["output_tokens"] == 128
    assert 0 < answer["ttft_s"] < 0.5


def test_check_judges_whole_answers_and_the_longest_gap(tiny: Sim, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    objectives = {"chat": {"e2e": {"ratio": 0.95, "within": "1ms"}, "itl": {"ratio": 0.95, "within": "10s"}}}
    targets = [{"name": "a", "base_url": tiny.base_url, "objectives": "chat"}]
    file.write_text(yaml.safe_dump({"objectives": objectives, "targets": targets}))
    done = measured("check", "-c", file, "--json")
    (answer,) = json.loads(done.out)
    assert answer["met"] == {"availability": True, "e2e": False, "itl": True, "all": False}
    assert done.status == 1


def test_check_as_json_lists_the_targets_that_could_not_be_measured_too(tiny: Sim, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    dead = "http://127.0.0.1:9"
    targets = [{"name": "up", "base_url": tiny.base_url}, {"name": "down", "base_url": dead}]
    file.write_text(yaml.safe_dump({"targets": targets}))
    done = measured("check", "-c", file, "--json")
    assert done.status == 2
    (error,) = done.err.splitlines()
    assert error.startswith(f"kneewatch: down: {dead}")
    up, down = json.loads(done.out)
    assert (up["target"], up["outcome"], down["target"], down["outcome"]) == ("up", "ok", "down", "unreachable")
    assert down.keys() == up.keys()
    assert (down["met"], down["model"]) == ({}, None)
    assert dead in down["detail"]
    alone = kneewatch("check", "-c", file, "--target", "down", "--json")
    assert alone.status == 2
    assert [answer["outcome"] for answer in json.loads(alone.out)] == ["unreachable"]
    assert alone.err.startswith(f"kneewatch: {dead}")


def test_check_sends_one_canary_of_each_kind(tiny: Sim, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    kinds = [{}, {"workload": "short"}, {"model": "gone"}]
    target = {"name": "a", "base_url": tiny.base_url, "canaries": kinds}
    workloads = {"short": {"prompt_tokens": 8, "output_tokens": 4}}
    file.write_text(yaml.safe_dump({"workloads": workloads, "targets": [target]}))
    done = measured("check", "-c", file, "--json")
    assert done.status == 2
    answers = json.loads(done.out)
    assert [(one["workload"], one["model"], one["outcome"]) for one in answers] == [
        ("default", "mock-model", "ok"),
        ("short", "mock-model", "ok"),
        ("default", None, "not_found"),
    ]
    (error,) = done.err.splitlines()
    assert error.startswith("kneewatch: a: ")
    assert "'gone' is not served" in error
    said = measured("check", "-c", file)
    first, second = said.out.splitlines()
    assert first.startswith("a, default (mock-model): ok")
    assert second.startswith("a, short (mock-model): ok")


def test_check_of_a_configuration_asks_every_target_and_ends_with_1_when_one_missed(config: Path) -> None:
    done = measured("check", "-c", config, "--json")
    assert done.status == 1, done.err
    answers = json.loads(done.out)
    assert [(a["target"], a["met"]["all"]) for a in answers] == [("a", True), ("b", False)]
    only = measured("check", "-c", config, "--target", "b")
    assert only.status == 1
    assert "missed ttft" in only.out


def test_ramp_prints_the_table_and_writes_the_result(tiny: Sim, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = measured(
        *("ramp", "--base-url", tiny.base_url, "--concurrency", "1,2", "--requests-per-step", "25", "--ttft", "5s"),
        *("--confirm-seconds", "0"),
        *("--prompt-tokens", "8", "--output-tokens", "3", "--tpot", "5s", "-o", file),
    )
    assert done.status == 0, done.err
    assert done.err == ""
    assert "Knee:        no knee up to 2 requests in flight" in done.out
    rows = [words for line in done.out.splitlines() if (words := line.split()) and words[0] in {"1", "2"}]
    assert len(rows) == 2
    assert all(row[-1] == "passed" for row in rows)
    result = json.loads(file.read_text())
    assert result["schema"] == "kneewatch.result/1"
    jsonschema.validate(result, file_schema("result"))
    assert [step["plan"]["concurrency"] for step in result["steps"]] == [1, 2]
    assert result["capacity"]["upper"] is None
    assert result["capacity"]["knee_concurrency"] is None
    assert "closed loop" in result["capacity"]["reason"]
    assert result["cost"]["requests"] == 51


@pytest.mark.long
def test_a_ramp_that_finds_no_knee_ends_with_1_and_still_writes(tiny: Sim, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = measured(
        *("ramp", "--base-url", tiny.base_url, "--concurrency", "4", "--requests-per-step", "25", "--ttft", "1ms"),
        *("--prompt-tokens", "8", "--output-tokens", "3", "--tpot", "5s", "-o", file),
    )
    assert done.status == 1, done.err
    assert "No knee:" in done.out
    assert json.loads(file.read_text())["capacity"]["requests_per_second"] is None


def test_a_ramp_keeps_to_its_budget_of_seconds(tiny: Sim) -> None:
    steps = ("--concurrency", "1", "--step-seconds", "20")
    done = kneewatch("ramp", "--base-url", tiny.base_url, *steps, "--max-seconds", "1")
    assert done.status == 1
    assert "Ended by:    budget (seconds)" in done.out


def test_a_ramp_takes_rates_and_writes_an_open_loop(tiny: Sim, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = measured(
        *("ramp", "--base-url", tiny.base_url, "--rates", "20,40", "--requests-per-step", "25", "--ttft", "5s"),
        *("--confirm-seconds", "0"),
        *("--prompt-tokens", "8", "--output-tokens", "3", "--tpot", "5s", "--json", file),
    )
    assert done.status == 0, done.err
    assert done.err == ""
    rows = [words for line in done.out.splitlines() if (words := line.split()) and words[0] in {"20", "40"}]
    assert [row[-1] for row in rows] == ["passed", "passed"]
    result = json.loads(file.read_text())
    assert [step["plan"]["arrivals"]["rate_rps"] for step in result["steps"]] == [20.0, 40.0]
    assert {step["plan"]["loop"] for step in result["steps"]} == {"open"}
    assert result["capacity"]["knee_concurrency"] is None
    assert result["capacity"]["requests_per_second"] > 20.0
    rate = result["capacity"]["requests_per_second"]
    assert f"Knee:        no knee up to {rate:.3g} requests/s" in done.out
    assert result["users"]["requests_per_second"] == 0.0, "every request that the server counted was ours"


def test_json_and_a_dash_print_the_result_alone(tiny: Sim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("--prompt-tokens", "32", "--output-tokens", "8")
    levels = ("--concurrency", "1", "--requests-per-step", "20", "--ttft", "5s", *short)
    ramp = ("ramp", "--base-url", tiny.base_url, *levels)
    for printed in (["--json"], ["-o", "-"]):
        done = kneewatch(*ramp, "--confirm-seconds", "0", *printed)
        assert json.loads(done.out)["steps"], done.err
        assert "Capacity:" in done.err
    assert not list(tmp_path.iterdir())
    both = kneewatch(*ramp, "--json", "--html", "-")
    assert (both.status, both.out) == (2, "")
    expected = "JSON and --html -: standard output takes one of them; write the other one to a file"
    assert both.err == f"kneewatch: {expected}\n"
