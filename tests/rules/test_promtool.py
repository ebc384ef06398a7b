"""promtool's unit tests of the generated rules: each `*.test.yml` beside this file.

They list every alert that fires: a missing alert fails a test, and so does an unexpected one. The label `group`, which
follows from an alert's target or discovery, is filled in (`_with_groups`). A case names the groups
of rules that its series can concern, each in a file of its own: promtool evaluates all rules of a file at every step.
"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from alerts import build
from probe.config.config_file import load_config

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.test.yml"))

pytestmark = pytest.mark.prometheus


def _name(case: Path) -> str:
    return case.name.removesuffix(".test.yml")


def _config(case: Path) -> Path:
    """Return the configuration of the case's rules."""
    own = HERE / f"config-{_name(case)}.yml"
    return own if own.exists() else HERE / "config.yml"


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Return the file of rules of each configuration. Beside it, `GROUP.yml` has those of one group."""
    configs = {_config(case) for case in CASES}
    written = {file: build.write(load_config(file), tmp_path_factory.mktemp("rules"))[0] for file in sorted(configs)}
    for file in written.values():
        for group in yaml.safe_load(file.read_text())["groups"]:
            (file.parent / f"{group['name']}.yml").write_text(yaml.safe_dump({"groups": [group]}, sort_keys=False))
    return written


def _with_groups(text: str) -> str:
    """Return a case in which each expected alert has its group: the target's name up to the slash, or the discovery."""

    def grouped(found: re.Match[str]) -> str:
        about = re.search(r"(?:target|discovery): ([^/,}]+)", found[1])
        return f"exp_labels: {{{found[1]}, group: {about[1]}}}" if about else found[0]

    return re.sub(r"exp_labels: \{(.*)\}", grouped, text)


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_alerts_fire_when_they_must_and_only_then(case: Path, rules: dict[Path, Path], promtool: str) -> None:
    folder = rules[_config(case)].parent
    (folder / case.name).write_text(_with_groups(case.read_text()))
    run = subprocess.run(
        [promtool, "test", "rules", case.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_prometheus_accepts_the_rules(rules: dict[Path, Path], promtool: str) -> None:
    command = [promtool, "check", "rules", *rules.values()]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "duplicate" not in run.stdout + run.stderr


def test_every_alert_has_a_firing_and_a_quiet_case(rules: dict[Path, Path]) -> None:
    groups = [group for path in rules.values() for group in yaml.safe_load(path.read_text())["groups"]]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    fires: set[str] = set()
    for case in CASES:
        fires.update(re.findall(r'labels: .*alertname="(\w+)"', case.read_text()))
    assert alerts == fires
