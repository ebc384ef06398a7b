"""The command line where all is well: what it prints, what it writes, how it ends."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from typer.testing import CliRunner

from probe.cli import app

COMMANDS = ["run", "check", "ramp", "dashboards", "alerts", "sim", "demo", "config"]


def _kneewatch(*arguments: str | Path, within_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "probe", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=within_s)


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    """The address of `kneewatch sim`."""
    command = [sys.executable, "-m", "probe", "sim", "--port", "0", "--profile", "tiny", "--model", "stand-in"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("stand-in tiny serves stand-in on http://127.0.0.1:")
            yield line.split()[-1]
        finally:
            process.terminate()
            assert process.wait(10) == 0


@pytest.fixture(scope="module")
def config(sim: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("cli") / "kneewatch.yml"
    strict = {"availability": 0.999, "ttft": {"ratio": 0.95, "within": "500ms"}}
    targets = [
        {"name": "a", "base_url": sim, "objectives": "chat", "canary": {"workload": "short"}, "api_key": "sk-secret"},
        {"name": "b", "base_url": sim, "objectives": "never", "canary": {"workload": "short"}},
    ]
    file.write_text(
        yaml.safe_dump(
            {
                "objectives": {"chat": strict, "never": {"ttft": {"ratio": 0.95, "within": "1ms"}}},
                "workloads": {"short": {"prompt_tokens": 16, "output_tokens": 4}},
                "targets": targets,
            }
        )
    )
    return file


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.stdout


def test_the_command_alone_lists_every_command() -> None:
    done = CliRunner().invoke(app, [])
    for command in COMMANDS:
        assert command in done.output


def test_help_is_quick_because_it_imports_little() -> None:
    code = (
        "import sys; from probe.cli import app; app(['--help'], standalone_mode=False);"
        "print(sorted({'apscheduler', 'grafanalib', 'uvicorn', 'httpx', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_config_check_names_the_targets(config: Path) -> None:
    done = _kneewatch("config", "check", "-c", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{config}: valid; 2 target(s): a, b\n"


def test_config_show_is_a_configuration_again_without_its_secrets(config: Path, tmp_path: Path) -> None:
    done = _kneewatch("config", "show", "-c", config)
    assert done.returncode == 0
    assert "sk-secret" not in done.stdout
    shown = tmp_path / "shown.yml"
    shown.write_text(done.stdout)
    assert _kneewatch("config", "check", "-c", shown).returncode == 0


def test_config_schema_is_a_schema_that_takes_a_valid_file(config: Path) -> None:
    done = CliRunner().invoke(app, ["config", "schema"])
    assert done.exit_code == 0
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(config.read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"targets": [{"name": "a", "base_url": "http://a", "nope": 1}]}, schema)


@pytest.mark.parametrize(("command", "ends"), [("dashboards", ".json"), ("alerts", ".yml")])
def test_generated_files_are_written_where_asked_and_named(
    config: Path, tmp_path: Path, command: str, ends: str
) -> None:
    out = tmp_path / "new" / "folder"
    done = _kneewatch(command, "-c", config, "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    files = sorted(out.iterdir())
    assert files
    assert all(file.name.endswith(ends) for file in files)
    assert sorted(done.stdout.splitlines()) == [f"wrote {file}" for file in files]


def test_check_of_an_address_alone(sim: str) -> None:
    done = _kneewatch("check", "--base-url", sim)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "target (stand-in): ok" in done.stdout
    assert "256 + 128 tokens" in done.stdout


def test_check_as_json_is_one_object_for_one_server(sim: str) -> None:
    done = _kneewatch("check", "--base-url", f"{sim}/v1/", "--api", "chat", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["target"], answer["model"], answer["outcome"]) == ("target", "stand-in", "ok")
    assert answer["met"]["all"] is True
    assert answer["output_tokens"] == 128
    assert 0 < answer["ttft_s"] < 0.5


def test_check_of_a_configuration_asks_every_target_and_ends_with_1_when_one_missed(config: Path) -> None:
    done = _kneewatch("check", "-c", config, "--json")
    assert done.returncode == 1, done.stderr
    answers = json.loads(done.stdout)
    assert [(a["target"], a["met"]["all"]) for a in answers] == [("a", True), ("b", False)]
    only = _kneewatch("check", "-c", config, "--target", "b")
    assert only.returncode == 1
    assert "missed ttft" in only.stdout


def test_ramp_prints_the_table_and_writes_the_result(sim: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = _kneewatch(
        *("ramp", "--base-url", sim, "--concurrency", "1,2", "--requests-per-step", "25", "--ttft", "5s"),
        *("--prompt-tokens", "8", "--output-tokens", "3", "--tpot", "5s", "--json", file),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Knee at 2 requests in flight" in done.stdout
    rows = [words for line in done.stdout.splitlines() if (words := line.split()) and words[0] in {"1", "2"}]
    assert len(rows) == 2
    assert all(row[-1] == "held" for row in rows)
    result = json.loads(file.read_text())
    assert result["schema"] == "kneewatch.result/1"
    assert [step["plan"]["concurrency"] for step in result["steps"]] == [1, 2]
    assert result["capacity"]["knee_concurrency"] == 2
    assert result["cost"]["requests"] == 51


def test_a_ramp_that_finds_no_knee_ends_with_1_and_still_writes(sim: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = _kneewatch(
        *("ramp", "--base-url", sim, "--concurrency", "4", "--requests-per-step", "25", "--ttft", "1ms"),
        *("--prompt-tokens", "8", "--output-tokens", "3", "--tpot", "5s", "--json", file),
    )
    assert done.returncode == 1, done.stderr
    assert "No knee:" in done.stdout
    assert json.loads(file.read_text())["capacity"]["requests_per_second"] is None


def test_a_ramp_keeps_to_its_budget_of_seconds(sim: str) -> None:
    done = _kneewatch(*("ramp", "--base-url", sim, "--concurrency", "1", "--step-seconds", "20", "--max-seconds", "1"))
    assert done.returncode == 1
    assert "Ended by budget (1 seconds)" in done.stdout
