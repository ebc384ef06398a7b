"""The command line that a result keeps: whole enough to repeat the run, and without secrets."""

from typing import Any

import pytest

from probe.cli.command_line import command_line, facts_of, variables_of
from probe.cli.main import command
from probe.core.errors import ConfigError


def _line(*arguments: str, **environment: str) -> str:
    return command_line("kneewatch", arguments, environment, variables_of(_ramp()))


def _ramp() -> Any:
    group: Any = command()
    return group.commands["ramp"]


def test_it_is_the_command_as_a_shell_takes_it() -> None:
    assert _line("ramp", "--base-url", "http://vllm:8000", "--seed", "3", "--note", "image=a b") == (
        "kneewatch ramp --base-url http://vllm:8000 --seed 3 --note 'image=a b'"
    )


def test_variables_that_set_options_are_in_front() -> None:
    found = _line("ramp", KNEEWATCH_RAMP_SEED="3", KNEEWATCH_RAMP_BASE_URL="http://u:secret@vllm", HOME="/root")
    assert found == "KNEEWATCH_RAMP_BASE_URL='http://(hidden)@vllm' KNEEWATCH_RAMP_SEED=3 kneewatch ramp"


def test_variables_that_set_no_option_are_left_out() -> None:
    others = {"KNEEWATCH_RAMP_HEADER": "Authorization: Bearer secret", "KNEEWATCH_RAMP_TOKEN": "secret"}
    assert _line("ramp", KNEEWATCH_RAMP_NOTE="a=secret", **others) == "kneewatch ramp"


def test_a_header_in_a_variable_is_hidden() -> None:
    found = command_line("kneewatch", ["ramp"], {"X_HEADER": "a: @/run/key b: secret"}, ["X_HEADER"])
    assert found == "X_HEADER='(hidden)' kneewatch ramp"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--header", "Authorization: Bearer secret"),
        ("--header=api-key: secret",),
        ("--header", "secret"),
        ("--base-url", "https://user:secret@host/v1"),
        ("--base-url=https://secret@host",),
        ("--metrics-url", "http://host/metrics?token=secret"),
        ("--metrics-url", "http://host/metrics#secret"),
    ],
)
def test_secrets_are_hidden(arguments: tuple[str, ...]) -> None:
    assert "secret" not in _line("ramp", *arguments)
    assert "(hidden)" in _line("ramp", *arguments)


def test_a_file_with_a_secret_is_named() -> None:
    found = _line("ramp", "--header", "api-key: @/run/key", "--api-key-file", "/run/other")
    assert found == "kneewatch ramp --header 'api-key: @/run/key' --api-key-file /run/other"


def test_facts_are_names_with_values() -> None:
    assert facts_of(["image=vllm:v0.32", "commit=a=b"]) == {"image": "vllm:v0.32", "commit": "a=b"}
    for wrong in ("image", "=x", "Image=x", "image=", "image=a\nb", "image=" + "x" * 301):
        with pytest.raises(ConfigError, match="expected NAME=VALUE"):
            facts_of([wrong])
    with pytest.raises(ConfigError, match="at most 32"):
        facts_of([f"n{i}=x" for i in range(33)])


@pytest.mark.parametrize(
    "start",
    [
        "vllm serve m --api-key secret --port {port}",
        "vllm serve m --api-key=secret",
        "vllm serve m --api-key secret-1 secret-2 --seed 1",
        "env HF_TOKEN=secret vllm serve m",
        "docker run -e 'HF_TOKEN=secret' image",
        "helm upgrade x y --set vllm.apiKey=secret",
        "curl -X POST https://user:secret@host/x",
        "vllm serve 'not closed secret",
    ],
)
def test_secrets_in_the_command_of_a_server_are_hidden(start: str) -> None:
    for line in (_line("tune", "--start", start), _line("tune", f"--apply={start}"), _line("tune", "--apply", start)):
        assert "secret" not in line
        assert "(hidden)" in line
    assert "secret" not in command_line(
        "kneewatch", ["tune"], {"KNEEWATCH_TUNE_START": start}, ["KNEEWATCH_TUNE_START"]
    )


def test_what_is_no_secret_in_the_command_of_a_server_stays() -> None:
    start = "vllm serve m --max-num-batched-tokens 2048 --ssl-keyfile /k --tokenizer t"
    assert _line("tune", "--start", start, "--seed", "3") == f"kneewatch tune --start '{start}' --seed 3"
