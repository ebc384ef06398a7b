"""README is short, and its configuration is valid. Its commands: tests/deploy/test_deploy_docs.py."""

import re
from pathlib import Path

import yaml

from probe.config.config_file import config_from

README = (Path(__file__).resolve().parents[3] / "README.md").read_text()


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_it_names_the_command_that_runs_the_tests() -> None:
    assert "`make test`" in README


def test_its_configuration_is_valid() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    assert [target.name for target in config_from(yaml.safe_load(text), "README.md").targets] == ["llama-8b"]
