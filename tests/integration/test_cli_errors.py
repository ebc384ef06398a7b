"""Bad input: exit status 2 and one line that names the place, what was expected and the mend; no traceback."""

from pathlib import Path

import pytest
import yaml
from kneewatch_command import Finished, kneewatch
from monitor import Sim
from stub_server import stub_server

from probe.runtime.kept_program import free_port

COMMANDS = ("check", "ramp")
UNAUTHORIZED = {"error": {"message": "Unauthorized", "type": "authentication_error", "code": 401}}


def _config(**target: object) -> dict[str, object]:
    return {"targets": [{"name": "a", "base_url": "http://127.0.0.1:9", **target}]}


BAD_CONFIGS = {
    "unknown key": (
        {**_config(), "targets": [{"name": "a", "base_url": "http://127.0.0.1:9", "canary": {"evry": "15s"}}]},
        ("targets[0].canary.evry", "unknown key", "'every'"),
    ),
    "number without unit": (_config(canary={"every": 15}), ("targets[0].canary.every", "15s", "got 15")),
    "wrong unit": (_config(canary={"every": "15 minutes"}), ("targets[0].canary.every", "expected", "15 minutes")),
    "name that points nowhere": (
        _config(objectives="chta"),
        ("targets[0].objectives", "chta", "add it under objectives"),
    ),
    "secret file that is not there": (
        _config(api_key_file="/nonexistent/key"),
        ("targets[0].api_key_file", "/nonexistent/key"),
    ),
    "no target": ({"targets": []}, ("targets", "at least one")),
}


@pytest.mark.parametrize(("config", "words"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_a_bad_configuration(tmp_path: Path, config: dict[str, object], words: tuple[str, ...]) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(config))
    _refused(_run("check", "-c", file), str(file), *words)


@pytest.mark.parametrize("command", [*COMMANDS, "run"])
def test_a_missing_configuration(tmp_path: Path, command: str) -> None:
    file = tmp_path / "missing.yml"
    _refused(_run(command, "-c", file), str(file), "-c")


@pytest.mark.fault("CO1")
def test_every_problem_of_a_file_is_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(_config(canary={"evry": "15s"}, scrape=5)))
    done = kneewatch("config", "check", "-c", file)
    assert done.status == 2
    assert len(done.err.splitlines()) == 2
    assert all(line.startswith(str(file)) or str(file) in line for line in done.err.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unreachable_address(command: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    _refused(_run(command, "--base-url", url), url)


@pytest.mark.parametrize("status", [200, 404])
def test_an_address_that_is_no_openai_server(status: int) -> None:
    with stub_server(status, "<html>It works!</html>") as url:
        _refused(_run("check", "--base-url", url), url, "/v1/models")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_wants_a_key(command: str) -> None:
    with stub_server(401, UNAUTHORIZED) as url:
        _refused(_run(command, "--base-url", url), url, "401", "key")


def test_a_model_that_is_not_served(sim: Sim) -> None:
    _refused(_run("ramp", "--base-url", sim.base_url, "--model", "nope"), sim.base_url, "nope", "expected")


def test_a_configured_server_that_is_unreachable(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(_config(base_url=url)))
    _refused(_run("ramp", "-c", file), url)


def test_a_target_that_is_not_in_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(_config()))
    _refused(kneewatch("ramp", "-c", file, "--target", "b"), "--target", "b", "expected one of a")


@pytest.mark.parametrize(("option", "value"), [("--concurrency", "1,x"), ("--requests-per-step", "0")])
@pytest.mark.fault(
    "CO27",
    "A command line with a mistake",
    area="Configuration",
    users_see="one line, exit 2",
    stays="no load",
)
def test_a_bad_option(sim: Sim, option: str, value: str) -> None:
    done = kneewatch("ramp", "--base-url", sim.base_url, option, value)
    assert done.status == 2
    assert option in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("option", "value"), [("--ratio", "2"), ("--ttft", "500"), ("--base-url", "x")])
def test_a_bad_value_is_one_line_that_names_its_option(option: str, value: str) -> None:
    address = () if option == "--base-url" else ("--base-url", "http://127.0.0.1:9")
    _refused(kneewatch("ramp", *address, option, value), f"{option} {value}: expected")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_a_configuration_would_ignore(tmp_path: Path, command: str) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(_config()))
    _refused(_run(command, "-c", file, "--model", "m"), "--model: requires --base-url")


def test_a_ramp_does_not_choose_among_several_targets(tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    two = [{"name": name, "base_url": "http://127.0.0.1:9"} for name in ("a", "b")]
    file.write_text(yaml.safe_dump({"targets": two}))
    _refused(kneewatch("ramp", "-c", file), "--target", "expected one of a, b")


@pytest.mark.parametrize("command", ["alerts", "dashboards"])
@pytest.mark.fault(
    "DI16",
    "The output folder cannot be created",
    area="Disk",
    users_see="one line before any load",
    stays="-",
)
def test_a_folder_that_cannot_be_made(tmp_path: Path, command: str) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(_config()))
    for out in ("/proc/x", str(file)):
        _refused(kneewatch(command, "-c", file, "-o", out), f"-o {out}: cannot be written", "use a directory")


@pytest.mark.fault("SO2")
def test_an_address_that_is_not_this_machines() -> None:
    _refused(kneewatch("sim", "--host", "192.0.2.1", "--port", "8123"), "192.0.2.1", "8123", "cannot listen")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_does_not_exist(command: str) -> None:
    _refused(kneewatch(command, "--nope"), f"kneewatch {command}: No such option: --nope", "--help")


def _run(command: str, *arguments: str | Path) -> Finished:
    target = ("--target", "a") if command == "ramp" and "-c" in arguments else ()
    return kneewatch(command, *arguments, *target, within_s=60)


def _refused(done: Finished, *words: str) -> None:
    assert done.status == 2, f"status {done.status}\n{done.out}\n{done.err}"
    assert "Traceback" not in done.err
    (line,) = done.err.splitlines()
    for word in words:
        assert word in line
