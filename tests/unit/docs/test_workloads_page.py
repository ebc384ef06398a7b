"""The configurations of docs/workloads.md are valid. Its commands: tests/integration/test_workload_commands.py."""

import re
from pathlib import Path

import yaml

from probe.config.config_file import config_from

PAGE = (Path(__file__).resolve().parents[3] / "docs/workloads.md").read_text()
_TARGET = {"name": "a", "base_url": "http://a:8000"}


def test_its_configurations_are_valid() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) > 2
    for text in blocks:
        assert config_from({"targets": [_TARGET]} | yaml.safe_load(text), "workloads.md").targets
