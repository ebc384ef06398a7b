"""The command line where all is well: what it prints, what it writes, how it ends."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from example_records import result, step
from typer.main import get_command
from typer.testing import CliRunner

from alerts.build import FILE
from alerts.rules import RUNBOOKS
from dashboards.target import UID
from probe import __version__
from probe.cli import app
from probe.report.result_json import dumps
from probe.sim.profiles import PROFILES

COMMANDS = ["run", "check", "ramp", "compare", "dashboards", "alerts", "sim", "demo", "config"]


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


def test_the_version() -> None:
    done = _kneewatch("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"kneewatch {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["check", "--nope"], "kneewatch check: No such option: --nope"),
        (["alerts", "-o", "x"], "kneewatch alerts: Missing option '-c' / '--config'"),
        (["ramp", "--seed", "x"], "kneewatch ramp: Invalid value for '--seed'"),
        (["compare", "one.json"], "kneewatch compare: Missing argument 'new'"),
        (["nope"], "kneewatch: No such command 'nope'"),
        (["config"], "kneewatch config: Missing command"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_leads_to_the_help(arguments: list[str], line: str) -> None:
    done = _kneewatch(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith(line)
    assert said.endswith(f"; see {line.partition(':')[0]} --help")


def _help(command: str) -> str:
    """The help of a command on one line, whatever the width of the terminal."""
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "400"})
    return " ".join(done.stdout.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check", "all of them if left out"),
        ("ramp", "needed where it has several"),
        ("ramp", "also for a target without scheduled load"),
        ("ramp", "Ctrl-C stops the load at once"),
        ("ramp", "the knee is searched"),
        ("ramp", "up to three times as long where fewer than 20 requests were sent; 15 unless"),
        ("sim", "Which server to imitate; --list shows them."),
        ("dashboards", f"{UID}.json"),
        ("alerts", FILE),
        ("alerts", RUNBOOKS),
    ],
)
def test_the_help_says(command: str, words: str) -> None:
    assert words in _help(command)


@pytest.mark.parametrize("option", ["--model", "--api-key-file", "--ttft", "--tpot", "--ratio", "--prompt-tokens"])
def test_the_help_says_what_goes_with_an_address_only(option: str) -> None:
    ramp = get_command(app).commands["ramp"]  # type: ignore[attr-defined]
    (help_text,) = [parameter.help for parameter in ramp.params if option in parameter.opts]
    assert "with --base-url" in help_text


def test_alerts_lead_to_the_runbooks_of_a_mirror(config: Path, tmp_path: Path) -> None:
    done = _kneewatch("alerts", "-c", config, "-o", tmp_path, "--runbooks", "https://wiki.example/kneewatch")
    assert done.returncode == 0, done.stderr
    groups = yaml.safe_load((tmp_path / FILE).read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"https://wiki.example/kneewatch/{alert['alert']}.md"


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


def test_sim_lists_what_it_can_imitate() -> None:
    done = CliRunner().invoke(app, ["sim", "--list"])
    assert done.exit_code == 0
    for profile in PROFILES.values():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(profile.name + " ")]
        assert line.endswith(profile.description)


def test_an_unknown_profile_is_one_line_with_a_hint() -> None:
    done = _kneewatch("sim", "--profile", "8b-h10")
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert "--profile 8b-h10: unknown (did you mean '8b-h100'?); expected one of those that" in said
    assert "sim --list" in said


def test_check_of_an_address_alone(sim: str) -> None:
    done = _kneewatch("check", "--base-url", sim)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "target (stand-in): ok" in done.stdout
    assert "256 + 128 tokens" in done.stdout


def test_check_as_json_is_a_list_also_for_one_server(sim: str) -> None:
    done = _kneewatch("check", "--base-url", f"{sim}/v1/", "--api", "chat", "--json")
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    assert (answer["target"], answer["model"], answer["outcome"]) == ("target", "stand-in", "ok")
    assert answer["met"]["all"] is True
    assert answer["output_tokens"] == 128
    assert 0 < answer["ttft_s"] < 0.5


def test_check_as_json_lists_the_targets_that_could_not_be_measured_too(sim: str, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    dead = "http://127.0.0.1:9"
    targets = [{"name": "up", "base_url": sim}, {"name": "down", "base_url": dead}]
    file.write_text(yaml.safe_dump({"targets": targets}))
    done = _kneewatch("check", "-c", file, "--json")
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    assert error.startswith(f"kneewatch: down: {dead}")
    up, down = json.loads(done.stdout)
    assert (up["target"], up["outcome"], down["target"], down["outcome"]) == ("up", "ok", "down", "unreachable")
    assert down.keys() == up.keys()
    assert (down["met"], down["model"]) == ({}, None)
    assert dead in down["detail"]
    alone = _kneewatch("check", "-c", file, "--target", "down", "--json")
    assert alone.returncode == 2
    assert [answer["outcome"] for answer in json.loads(alone.stdout)] == ["unreachable"]
    assert alone.stderr.startswith(f"kneewatch: {dead}")


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
    assert "Knee:        2 requests in flight" in done.stdout
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
    assert "Ended by:    budget (seconds)" in done.stdout


def test_a_ramp_takes_rates_and_writes_an_open_loop(sim: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = _kneewatch(
        *("ramp", "--base-url", sim, "--rates", "20,40", "--requests-per-step", "25", "--ttft", "5s"),
        *("--prompt-tokens", "8", "--output-tokens", "3", "--tpot", "5s", "--json", file),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows = [words for line in done.stdout.splitlines() if (words := line.split()) and words[0] in {"20", "40"}]
    assert [row[-1] for row in rows] == ["held", "held"]
    result = json.loads(file.read_text())
    assert [step["plan"]["arrivals"]["rate_rps"] for step in result["steps"]] == [20.0, 40.0]
    assert {step["plan"]["loop"] for step in result["steps"]} == {"open"}
    assert result["capacity"]["knee_concurrency"] is None
    assert result["capacity"]["requests_per_second"] > 20.0
    assert f"Knee:        {result['capacity']['requests_per_second']:.3g} requests/s" in done.stdout
    assert result["users"]["requests_per_second"] == 0.0, "every request that the server counted was ours"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--concurrency", "1", "--rates", "1"), "--concurrency, --rates: steps are of one kind or of the other"),
        (("--rates", "2,1"), "--rates 2,1: expected rising numbers above 0"),
        (("--step-seconds", "5"), "--step-seconds: goes with --concurrency or --rates"),
        (("--rates", "1", "--observe", "5"), "--observe: goes with the search only"),
    ],
)
def test_steps_that_make_no_sense_are_one_line_and_no_load(options: tuple[str, ...], line: str) -> None:
    done = _kneewatch("ramp", "--base-url", "http://127.0.0.1:9", *options)
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"kneewatch: {line}")


def _result_file(folder: Path, name: str, rps: float = 10.0, prompt_tokens: int = 8) -> Path:
    one = result(steps=[step(4, rps=rps)])
    context = replace(one.context, workload={"name": "short", "prompt_tokens": prompt_tokens})
    file = folder / name
    file.write_text(dumps(replace(one, context=context)))
    return file


def test_a_comparison_ends_with_what_it_found(tmp_path: Path) -> None:
    base, lower = _result_file(tmp_path, "base.json"), _result_file(tmp_path, "lower.json", rps=9.0)
    same = _kneewatch("compare", base, base)
    assert (same.returncode, same.stderr) == (0, "")
    worse = _kneewatch("compare", base, lower)
    assert (worse.returncode, worse.stderr) == (1, "")
    assert "-10.0%" in worse.stdout
    assert "3 worse" in worse.stdout
    assert _kneewatch("compare", base, lower, "--tolerance", "20%").returncode == 0
    assert _kneewatch("compare", lower, base).returncode == 0


def test_a_comparison_as_json_is_json_and_nothing_else(tmp_path: Path) -> None:
    base, lower = _result_file(tmp_path, "base.json"), _result_file(tmp_path, "lower.json", rps=9.0)
    done = _kneewatch("compare", base, lower, "--json")
    assert done.returncode == 1
    written = json.loads(done.stdout)
    assert (written["base"], written["regressed"], written["tolerance"]) == (str(base), True, 0.05)


def test_what_is_not_comparable_is_refused_with_its_reason_unless_forced(tmp_path: Path) -> None:
    base, longer = _result_file(tmp_path, "base.json"), _result_file(tmp_path, "longer.json", prompt_tokens=9)
    done = _kneewatch("compare", base, longer)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kneewatch: not comparable: workload.prompt_tokens is 8 in {base} and 9 in {longer}")
    assert line.endswith("--force")
    forced = _kneewatch("compare", base, longer, "--force")
    assert forced.returncode == 0
    assert "Not comparable: workload.prompt_tokens" in forced.stdout


def test_where_nothing_is_in_both_force_has_nothing_to_compare(tmp_path: Path) -> None:
    bench = Path(__file__).parents[2] / "golden/vllm-0.32/bench-serve.json"
    done = _kneewatch("compare", _result_file(tmp_path, "base.json"), bench, "--force")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing is in both" in done.stderr
    assert _kneewatch("compare", bench, bench).returncode == 0


def test_a_file_that_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    done = _kneewatch("compare", _result_file(tmp_path, "base.json"), tmp_path / "missing.json")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kneewatch: {tmp_path}/missing.json: cannot be read")
