"""The command line where all is well: what it prints, what it writes, how it ends."""

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import structlog.testing
import yaml
from example_records import result, step
from typer.main import get_command
from typer.testing import CliRunner

from alerts.build import FILE, MANIFEST_FILE
from alerts.links import FLEET, RUNBOOKS
from probe import __version__
from probe.cli.main import app, main
from probe.mock_server.profiles import PROFILES
from probe.report.result_json import dumps

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = ["run", "check", "ramp", "compare", "table", "plan", "dashboards", "alerts", "sim", "demo", "config"]


@dataclass(frozen=True, slots=True)
class Finished:
    status: str | int
    out: str
    err: str


def _kneewatch(*arguments: str | Path) -> Finished:
    """Run the command in this process, with its errors and exit status: a new process takes a third of a second."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return Finished(ended.value.code or 0, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("cli") / "kneewatch.yml"
    target = {"name": "a", "base_url": "http://127.0.0.1:9", "objectives": "chat", "api_key": "sk-secret"}
    promised = {"availability": 0.999, "ttft": {"ratio": 0.95, "within": "500ms"}}
    file.write_text(
        yaml.safe_dump(
            {
                "objectives": {"chat": promised},
                "targets": [target, {**target, "name": "b", "base_url": "http://127.0.0.1:10"}],
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


@pytest.mark.slow
def test_help_is_quick_because_it_imports_little() -> None:
    code = (
        "import sys; from probe.cli.main import app; app(['--help'], standalone_mode=False);"
        "print(sorted({'apscheduler', 'grafanalib', 'uvicorn', 'httpx', 'numpy', 'pydantic', 'yaml'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_version_from_the_module() -> None:
    command = [sys.executable, "-m", "probe", "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.fullmatch(
        rf"kneewatch {re.escape(__version__)}( \([0-9a-f]{{7,40}}(-dirty)?\))?\nsimulator: (compiled|interpreted)\n",
        done.stdout,
    )
    assert done.stderr == ""
    if (ROOT / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True)
        assert head.returncode != 0 or f"({head.stdout[:12]}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["check", "--nope"], "kneewatch check: No such option: --nope"),
        (["alerts"], "kneewatch alerts: Missing option '-o' / '--out'"),
        (["ramp", "--seed", "x"], "kneewatch ramp: Invalid value for '--seed'"),
        (["compare", "one.json"], "kneewatch compare: Missing argument 'NEW'"),
        (["nope"], "kneewatch: No such command 'nope'"),
        (["config"], "kneewatch config: Missing command"),
    ],
)
@pytest.mark.fault("CO27")
def test_a_wrong_command_line_is_one_line_that_leads_to_the_help(arguments: list[str], line: str) -> None:
    done = _kneewatch(*arguments)
    assert (done.status, done.out) == (2, "")
    (said,) = done.err.splitlines()
    assert said.startswith(line)
    assert said.endswith(f"; see {line.partition(':')[0]} --help")


def test_help_fits_a_terminal_of_80_columns_and_has_a_short_option() -> None:
    for command in ([], ["check"], ["ramp"], ["alerts"], ["config", "check"]):
        # click leaves two columns of a terminal free.
        short, long = (CliRunner().invoke(app, [*command, option], terminal_width=78) for option in ("-h", "--help"))
        assert short.stdout == long.stdout
        assert max(map(len, short.stdout.splitlines())) <= 78
        assert "<list[" not in short.stdout
        assert "...\n" not in short.stdout.partition("\n")[2], "each command's line is whole"


def test_the_help_lists_commands_in_groups() -> None:
    listed = CliRunner().invoke(app, ["--help"]).stdout
    groups = ["Watch:", "Measure:", "Results:", "Set up:", "Try:", "Options:"]
    assert [line for line in listed.splitlines() if line in groups] == groups
    assert re.search(r"Watch:\n  run .*\n  check (.*\n)+  doctor (.*\n)+Measure:\n  ramp ", listed)


def _commands(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from _commands(found, (*names, name))
        else:
            yield (*names, name), found


def test_each_command_names_its_values_and_has_an_example_that_its_options_take() -> None:
    for names, found in _commands(get_command(app)):
        shown = CliRunner().invoke(app, [*names, "--help"], terminal_width=78).stdout
        usage, _, examples = shown.partition("Example")
        assert not re.search(r"^ *(-. ?, )?--\S+ <|^Usage.*[{]", usage, re.MULTILINE), names
        assert not re.search(r"^ *--(slow|\S+-after) (?!DURATION)", usage, re.MULTILINE), names
        lines = [line.strip() for line in examples.splitlines()[1:]]
        assert lines, names
        for line in lines:
            words = shlex.split(line.partition(" > ")[0])
            assert words[: len(names) + 1] == ["kneewatch", *names]
            # Without a command to run: options that do not exist and values of a wrong form end it.
            found.make_context(names[-1], words[len(names) + 1 :]).close()


@pytest.mark.parametrize(("written", "seconds"), [("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("1m30s", 90.0)])
def test_a_duration_has_a_unit_or_is_in_seconds(written: str, seconds: float) -> None:
    ramp = get_command(app).commands["ramp"]  # type: ignore[attr-defined]
    found = ramp.make_context("ramp", ["--step-seconds", written, "--max-seconds", written])
    assert (found.params["step_seconds"], found.params["max_seconds"]) == (seconds, seconds)


@pytest.mark.parametrize("written", ["0.5s", "2h", "5 m", "nan", "inf", ""])
def test_a_duration_out_of_its_limits_is_one_line(written: str) -> None:
    done = _kneewatch("ramp", "--step-seconds", written)
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert line.startswith("kneewatch ramp: Invalid value for '--step-seconds': expected a duration")


def _help(command: str) -> str:
    """Return a command's help on one line, whatever the width of the terminal."""
    done = CliRunner().invoke(app, [command, "--help"], terminal_width=400)
    return " ".join(done.stdout.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check", "Default: all targets with an address."),
        ("ramp", "required if there are several"),
        ("ramp", "Works for targets without scheduled load too."),
        ("ramp", "stops the load at once"),
        ("ramp", "Kneewatch searches for the knee"),
        ("ramp", "runs to its end. Default: the configuration's, or 15s."),
        ("sim", "Server to simulate; --list shows the choices."),
        ("dashboards", f"{FLEET}.json"),
        ("dashboards", RUNBOOKS),
        ("alerts", FILE),
        ("alerts", RUNBOOKS),
        ("alerts", MANIFEST_FILE),
        ("alerts", "For tests only"),
    ],
)
def test_the_help_says(command: str, words: str) -> None:
    assert words in _help(command)


@pytest.mark.parametrize(
    "option",
    [
        "--model",
        "--api-key-file",
        "--ttft",
        "--tpot",
        "--ratio",
        "--prompt-tokens",
        "--api",
        "--engine",
        "--metrics-url",
        "--header",
        "--ca-file",
    ],
)
def test_the_help_says_what_goes_with_an_address_only(option: str) -> None:
    ramp = get_command(app).commands["ramp"]  # type: ignore[attr-defined]
    (group,) = [parameter.rich_help_panel for parameter in ramp.params if option in parameter.opts]
    assert "without a configuration" in group


@pytest.mark.parametrize("command", ["check", "doctor", "forecast", "ramp"])
def test_commands_that_ask_a_server_take_the_same_options_about_it(command: str) -> None:
    found = get_command(app).commands[command]  # type: ignore[attr-defined]
    about = {"--model", "--api-key-file", "--api", "--engine", "--metrics-url", "--header", "--ca-file"}
    assert about <= {option for parameter in found.params for option in parameter.opts}


@pytest.mark.slow
def test_alerts_lead_to_the_runbooks_of_a_mirror(config: Path, tmp_path: Path) -> None:
    done = _kneewatch("alerts", "-c", config, "-o", tmp_path, "--runbooks", "https://wiki.example/kneewatch")
    assert done.status == 0, done.err
    groups = yaml.safe_load((tmp_path / FILE).read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"https://wiki.example/kneewatch/{alert['alert']}.md"


@pytest.mark.slow
def test_alerts_for_the_operator_are_objects_for_its_prometheus(config: Path, tmp_path: Path) -> None:
    asked = ["--namespace", "monitoring", "--label", "release=a", "--label", "team=b", "--window-scale", "0.5"]
    done = _kneewatch("alerts", "-c", config, "-o", tmp_path, "--format", "operator", *asked)
    assert done.status == 0, done.err
    text = (tmp_path / MANIFEST_FILE).read_text()
    assert [path.name for path in tmp_path.glob("kneewatch.*")] == [MANIFEST_FILE]
    assert [rule["metadata"] for rule in yaml.safe_load_all(text)] == [
        {"name": name, "namespace": "monitoring", "labels": {"release": "a", "team": "b"}}
        for name in ("kneewatch", "kneewatch-2", "kneewatch-3")
    ]
    assert "REHEARSAL" in text
    assert "ratio_rate30m" in text


@pytest.mark.slow
def test_alerts_have_a_sites_severities_and_labels(config: Path, tmp_path: Path) -> None:
    asked = ["--severity", "page=critical", "--alert-label", "team=ml"]
    done = _kneewatch("alerts", "-c", config, "-o", tmp_path, *asked)
    assert done.status == 0, done.err
    groups = yaml.safe_load((tmp_path / FILE).read_text())["groups"]
    labels = [rule["labels"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert {each["severity"] for each in labels} == {"critical", "ticket", "none"}
    assert {each["team"] for each in labels} == {"ml"}


@pytest.mark.slow
def test_alerts_lead_to_the_dashboards_of_a_grafana(config: Path, tmp_path: Path) -> None:
    done = _kneewatch("alerts", "-c", config, "-o", tmp_path, "--grafana", "https://g.example", "--uid-prefix", "a-")
    assert done.status == 0, done.err
    assert "dashboard_url: https://g.example/d/a-kneewatch-target{{ with " in (tmp_path / FILE).read_text()


@pytest.mark.slow
def test_alerts_lead_to_the_monitors_pages_at_the_address_in_the_file_or_in_what_the_monitor_exports(
    config: Path, tmp_path: Path
) -> None:
    def pages() -> set[str]:
        groups = yaml.safe_load((tmp_path / FILE).read_text())["groups"]
        return {rule["annotations"]["page_url"] for group in groups for rule in group["rules"] if "alert" in rule}

    done = _kneewatch("alerts", "-c", config, "-o", tmp_path)
    (link,) = pages()
    assert "kneewatch_links_info" in link
    (line,) = done.err.splitlines()
    assert "set grafana_url for links to dashboards (or give --grafana https://grafana.example.org)" in line
    assert "web_external_url for links to the monitor's pages (or give -c FILE with it)" in line
    external = tmp_path / "kneewatch.yml"
    own = "web_external_url: https://k.example/vllm/\ngrafana_url: https://g.example\n"
    external.write_text(f"{own}{config.read_text()}")
    done = _kneewatch("alerts", "-c", external, "-o", tmp_path)
    assert (done.status, done.err) == (0, "")
    assert "dashboard_url: https://g.example/d/kneewatch-target{{ with " in (tmp_path / FILE).read_text()
    assert pages() == {"https://k.example/vllm/{{ with $labels.target }}targets/{{ . }}{{ end }}"}


def test_config_check_names_what_no_alert_covers(tmp_path: Path) -> None:
    lax = "objectives: {lax: {window: 90d, availability: 0.5}}\n"
    file = tmp_path / "lax.yml"
    file.write_text(f"{lax}targets: [{{name: a, base_url: 'http://a:1', objectives: lax}}]\n")
    done = _kneewatch("config", "check", "-c", file)
    assert done.status == 0, "the configuration is valid"
    assert done.err.startswith("kneewatch: alerts: objectives.lax.availability: 0.5 over 90d can never be")


def test_run_logs_what_no_alert_covers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a daemon does to its process: its logs, its limits, its loop."""
    monkeypatch.setattr("probe.runtime.logs.configure_logs", lambda: None)
    monkeypatch.setattr("probe.runtime.process.raise_descriptor_limit", lambda: None)
    monkeypatch.setattr("probe.runtime.event_loop.run", lambda serving: serving.close())
    file = tmp_path / "rare.yml"
    rare = {"mode": "verify", "schedule": {"cron": "0 3 1 * *"}}
    file.write_text(yaml.safe_dump({"targets": [{"name": "a", "base_url": "http://127.0.0.1:9", "capacity": rare}]}))
    with structlog.testing.capture_logs() as logged:
        done = _kneewatch("run", "-c", file)
    assert done.status == 0, done.err
    (line,) = logged
    assert (line["log_level"], line["event"]) == ("warning", "limit of the alerts")
    assert line["what"].startswith("targets[0].capacity.schedule.cron: '0 3 1 * *' has more than")


def test_config_check_names_the_targets(config: Path) -> None:
    done = _kneewatch("config", "check", "-c", config)
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"{config}: valid; 2 target(s): a, b"


@pytest.mark.fault("TI36")
def test_config_check_says_which_runs_may_be_late_and_how_many_a_discovery_has_room_for(tmp_path: Path) -> None:
    file, verify = tmp_path / "kneewatch.yml", {"mode": "verify"}
    targets: list[dict[str, object]] = [
        {"name": f"t{i}", "base_url": f"http://t{i}:1", "capacity": verify} for i in range(8)
    ]
    found = {"kubernetes": {"selector": "a=b", "port": 8000, "namespace": "serving"}}
    targets.append({"name": "qwen", "discover": found, "capacity": verify})
    file.write_text(yaml.safe_dump({"targets": targets}))
    done = _kneewatch("config", "check", "-c", file)
    assert done.status == 0
    assert "qwen/*: each scheduled time has room for 30 run(s)" in done.out.splitlines()
    assert "kneewatch: capacity: t7: runs could not begin within schedule.grace of their time" in done.err


def test_config_check_says_where_each_startup_flag_and_the_gpus_are_from(tmp_path: Path) -> None:
    known = "{server: {max_num_seqs: 64, flags: {tensor_parallel_size: '4'}}}"
    file = tmp_path / "kneewatch.yml"
    file.write_text(
        f"targets: [{{name: a, base_url: 'http://a:1', capacity: {known}}}, {{name: b, base_url: 'http://b:1'}},"
        " {name: c, base_url: 'http://c:1', capacity: {mode: 'off'}, gpu: {dcgm_urls: ['http://n:9400/metrics'],"
        " labels: {gpu: '1'}}}, {name: d, discover: {kubernetes: {selector: app=d, port: 80}}, capacity: {mode: 'off'},"
        " gpu: {dcgm: {kubernetes: {namespace: gpus, selector: app=dcgm}}}}]\n"
    )
    _, *lines, following = _kneewatch("config", "check", "-c", file).out.splitlines()
    assert following == f"next: kneewatch check -c {file}"
    assert lines == [
        "a: startup flags of the server: tensor_parallel_size=4 (configuration), max_num_seqs=64 (configuration)",
        "b: startup flags of the server: none known here; read from /server_info and the pod while it is watched",
        "c: GPUs: http://n:9400/metrics, with gpu=1",
        "d/*: GPUs: those of each pod, by the dcgm-exporter on its node (app=dcgm in gpus, port 9400/metrics)",
    ]


def test_config_check_says_once_what_is_so_of_several_targets(tmp_path: Path) -> None:
    file, rare = tmp_path / "kneewatch.yml", {"mode": "verify", "schedule": {"cron": "0 0 1 1 *"}}
    targets = [{"name": f"t{i}", "base_url": f"http://t{i}:1", "capacity": rare} for i in range(6)]
    file.write_text(yaml.safe_dump({"targets": targets}))
    done = _kneewatch("config", "check", "-c", file)
    (flags,) = [line for line in done.out.splitlines() if "startup flags" in line]
    assert flags.startswith("6 targets: startup flags of the server: none known here")
    assert "targets[0].capacity.schedule.cron: " in done.err
    assert "(and 5 other targets alike)" in done.err
    assert "targets[1]" not in done.err


@pytest.mark.slow
def test_config_show_is_a_configuration_again_without_its_secrets(config: Path, tmp_path: Path) -> None:
    done = _kneewatch("config", "show", "-c", config)
    assert done.status == 0
    assert "sk-secret" not in done.out
    shown = tmp_path / "shown.yml"
    shown.write_text(done.out)
    assert _kneewatch("config", "check", "-c", shown).status == 0


@pytest.mark.slow
def test_config_schema_is_a_schema_that_takes_a_valid_file(config: Path) -> None:
    done = CliRunner().invoke(app, ["config", "schema"])
    assert done.exit_code == 0
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(config.read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"targets": [{"name": "a", "base_url": "http://a", "nope": 1}]}, schema)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "ends"), [("dashboards", ".json"), ("alerts", ".yml")])
def test_generated_files_are_written_where_asked_and_named(
    config: Path, tmp_path: Path, command: str, ends: str
) -> None:
    out = tmp_path / "new" / "folder"
    done = _kneewatch(command, "-c", config, "-o", out)
    assert done.status == 0, done.err
    files = sorted(out.iterdir())
    assert files
    assert all(file.name.endswith(ends) for file in files)
    assert sorted(done.out.splitlines()) == [f"wrote {file}" for file in files]


def test_sim_lists_what_it_can_imitate() -> None:
    done = CliRunner().invoke(app, ["sim", "--list"])
    assert done.exit_code == 0
    for profile in PROFILES.values():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(profile.name + " ")]
        assert line.endswith(profile.description)


def test_an_unknown_profile_is_one_line_with_a_hint() -> None:
    done = _kneewatch("sim", "--profile", "8b-h10")
    assert done.status == 2
    (said,) = done.err.splitlines()
    assert "--profile 8b-h10: unknown (did you mean '8b-h100'?); expected one that" in said
    assert "sim --list" in said


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--concurrency", "1", "--rates", "1"), "--concurrency, --rates: both are set"),
        (("--rates", "2,1"), "--rates 2,1: expected rising numbers above 0"),
        (("--step-seconds", "5"), "--step-seconds: requires --concurrency or --rates"),
        (("--rates", "1", "--observe", "5"), "--observe: works with a search only"),
    ],
)
def test_steps_that_make_no_sense_are_one_line_and_no_load(options: tuple[str, ...], line: str) -> None:
    done = _kneewatch("ramp", "--base-url", "http://127.0.0.1:9", *options)
    assert (done.status, done.out) == (2, "")
    (said,) = done.err.splitlines()
    assert said.startswith(f"kneewatch: {line}")


def _result_file(folder: Path, name: str, rps: float = 10.0, prompt_tokens: int = 8) -> Path:
    one = result(steps=[step(4, rps=rps)])
    context = replace(one.context, workload={"name": "short", "prompt_tokens": prompt_tokens})
    file = folder / name
    file.write_text(dumps(replace(one, context=context)))
    return file


@pytest.mark.slow
def test_a_comparison_begins_with_what_it_found_and_shows_changes_alone(tmp_path: Path) -> None:
    base, lower = _result_file(tmp_path, "base.json"), _result_file(tmp_path, "lower.json", rps=9.0)
    same = _kneewatch("compare", base, base)
    assert (same.status, same.err) == (0, "")
    (verdict,) = same.out.splitlines()
    assert verdict.startswith("Nothing is worse: 0 worse, 0 better, ")
    worse = _kneewatch("compare", base, lower)
    assert (worse.status, worse.err) == (1, "")
    assert "-10.0%" in worse.out
    assert worse.out.startswith("WORSE: 3 worse")
    assert "same" not in worse.out
    assert "same" in _kneewatch("compare", base, lower, "--all").out
    assert _kneewatch("compare", base, lower, "--tolerance", "20%").status == 0
    assert _kneewatch("compare", lower, base).status == 0


def test_a_comparison_as_json_is_json_and_nothing_else(tmp_path: Path) -> None:
    base, lower = _result_file(tmp_path, "base.json"), _result_file(tmp_path, "lower.json", rps=9.0)
    done = _kneewatch("compare", base, lower, "--json")
    assert done.status == 1
    written = json.loads(done.out)
    assert (written["base"], written["regressed"], written["tolerance"]) == (str(base), True, 0.05)


def test_results_are_printed_as_one_table_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = [_result_file(tmp_path, f"{rps}.json", rps=rps) for rps in (10.0, 9.0)]
    done = _kneewatch("table", *files)
    assert (done.status, done.err) == (0, "")
    assert [line.startswith("| ") for line in done.out.splitlines()] == [True] * 4
    levels = _kneewatch("table", "--steps", "--csv", *files).out.splitlines()
    assert [row["requests_per_second"] for row in csv.DictReader(levels)] == ["10.0", "9.0"]
    files[0].write_text("{}")
    assert (broken := _kneewatch("table", *files)).status == 2
    assert "10.0.json: not a result; expected the file of `kneewatch ramp --json`" in broken.err


def test_results_that_are_not_comparable_are_refused_with_the_reason_unless_forced(tmp_path: Path) -> None:
    base, longer = _result_file(tmp_path, "base.json"), _result_file(tmp_path, "longer.json", prompt_tokens=9)
    done = _kneewatch("compare", base, longer)
    assert (done.status, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith(f"kneewatch: not comparable: workload.prompt_tokens is 8 in {base} and 9 in {longer}")
    assert line.endswith("--force")
    forced = _kneewatch("compare", base, longer, "--force")
    assert forced.status == 0
    assert "Not comparable: workload.prompt_tokens" in forced.out


def test_where_nothing_is_in_both_force_has_nothing_to_compare(tmp_path: Path) -> None:
    bench = Path(__file__).parents[2] / "golden/vllm-0.32/bench-serve.json"
    done = _kneewatch("compare", _result_file(tmp_path, "base.json"), bench, "--force")
    assert (done.status, done.out) == (2, "")
    assert "no step was judged in both" in done.err
    assert _kneewatch("compare", bench, bench).status == 0


def test_folders_are_compared_file_by_file(tmp_path: Path) -> None:
    base, new = tmp_path / "base", tmp_path / "new"
    for folder, rps in ((base, 10.0), (new, 9.0)):
        folder.mkdir()
        _result_file(folder, "chat.json", rps=10.0)
        _result_file(folder, "long.json", rps=rps)
    _result_file(new, "more.json")
    done = _kneewatch("compare", base, new, "--json")
    assert [each["regressed"] for each in json.loads(done.out)] == [False, True]
    assert done.status == 1
    assert done.err == f"{new}/more.json: not compared, since the other folder has no file of this name\n"
    _result_file(new, "long.json", prompt_tokens=9)
    done = _kneewatch("compare", base, new)
    assert done.status == 2
    assert "not comparable: workload.prompt_tokens" in done.err
    assert "18 equal" in done.out


def test_results_are_added_to_a_file_or_written_for_other_tools(tmp_path: Path) -> None:
    results, kept = tmp_path / "results", tmp_path / "benchmarks.md"
    results.mkdir()
    for name in ("a.json", "b.json"):
        _result_file(results, name)
    for _ in range(2):
        assert _kneewatch("table", results, "--append", kept, "--gpu-hour-price", "2.5") == Finished(0, "", "")
    assert kept.read_text().count("## 2026-") == 4
    assert kept.read_text().count("per million accepted tokens") == 4
    lines = _kneewatch("table", results, "--bench-json").out.splitlines()
    assert [json.loads(line)["request_throughput"] for line in lines] == [10.0, 10.0]
    refused = _kneewatch("table", results, "--csv", "--bench-json")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "no effect without --gpu-hour-price" in _kneewatch("table", results, "--gpus", "2").err


def test_a_file_that_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    done = _kneewatch("compare", _result_file(tmp_path, "base.json"), tmp_path / "missing.json")
    assert (done.status, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith(f"kneewatch: {tmp_path}/missing.json: cannot be read")
