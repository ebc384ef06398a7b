"""promtool's unit tests of the generated rules: each `*.test.yml` beside this file.

They ask which alerts fire, all of them: an expected alert that stays away fails a test, and so does
one that comes uninvited.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from alerts import build
from probe.config import load_config

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.test.yml"))

pytestmark = pytest.mark.prometheus


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = build.write(load_config(HERE / "config.yml"), tmp_path_factory.mktemp("rules"))
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name.removesuffix(".test.yml"))
def test_alerts_fire_when_they_must_and_only_then(case: Path, rules: Path, promtool: str) -> None:
    shutil.copy(case, rules.parent)
    run = subprocess.run(
        [promtool, "test", "rules", case.name],
        cwd=rules.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_prometheus_accepts_the_rules(rules: Path, promtool: str) -> None:
    run = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "duplicate" not in run.stdout + run.stderr


def test_every_alert_has_a_firing_and_a_quiet_case(rules: Path) -> None:
    alerts = {
        rule["alert"] for g in yaml.safe_load(rules.read_text())["groups"] for rule in g["rules"] if "alert" in rule
    }
    fires: set[str] = set()
    for case in CASES:
        fires.update(re.findall(r'labels: .*alertname="(\w+)"', case.read_text()))
    assert alerts == fires
