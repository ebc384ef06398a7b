"""promtool's unit tests of the rules: each `*.test.yml` beside this file.

They list every alert that fires: a missing alert fails a test, and so does an unexpected one. The label `group`, which
follows from an alert's target or discovery, is filled in (`_with_groups`), and so are the series of the targets'
objectives, from a configuration (`_with_objectives`), and where an alert's page is, from its target, unless the case
says so (`_with_pages`). promtool evaluates all rules of a case at every step, whatever
their group's interval. So a case names the groups that its series can concern, each in a file of its own, and leaves
out the recording rules of canaries, or of users, where it has no series of them (`_can_matter`). Cases over hours begin
with recorded minutes (`...:increase1m`), and need no step a minute: availability.test.yml and users.test.yml have the
rules that record them.
"""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts import build
from alerts.output_options import chosen_thresholds
from exporters import names
from exporters.names import Series
from probe.config.config import Config
from probe.config.config_file import load_config
from probe.core import objectives as slo
from probe.core.objectives import Objectives

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.test.yml"))

# How the names of the series that the rules on canaries, and on users, begin with.
_SERIES = {"canary": ("kneewatch_requests_total", ":kneewatch_canary_"), "users": ("kneewatch_users_",)}
Group = Mapping[str, Any]

pytestmark = pytest.mark.prometheus


def _name(case: Path) -> str:
    return case.name.removesuffix(".test.yml")


def _config(case: Path) -> Path:
    """Return the configuration of the case's targets."""
    own = HERE / f"config-{_name(case)}.yml"
    return own if own.exists() else HERE / "config.yml"


@cache
def _groups(written: str) -> Sequence[Group]:
    """Return the groups of rules, with these thresholds."""
    text = build.render(thresholds=chosen_thresholds(written.split()))[build.FILE]
    found: Sequence[Group] = yaml.load(text, yaml.CSafeLoader)["groups"]
    return found


def _thresholds_of(case: str) -> str:
    """Return those that the first line of a case sets."""
    found = re.match(r"# --set (.*)", case)
    return found[1] if found else ""


def _write_rules(folder: Path, groups: Iterable[Group], case: str) -> None:
    """Write `GROUP.yml` for each group that the case names, with the rules that its series can concern."""
    for group in groups:
        if f"{group['name']}.yml" in case:
            rules = [rule for rule in group["rules"] if _can_matter(rule, case)]
            text = json.dumps({"groups": [{**group, "rules": rules}]})  # JSON is YAML, written in no time
            (folder / f"{group['name']}.yml").write_text(text)


def _can_matter(rule: Mapping[str, str], case: str) -> bool:
    """Report whether the rule can have a result: one that records canaries or users needs a series of them.

    A case may have the records themselves, which no rule then adds to.
    """
    if "record" in rule and f"series: '{rule['record']}{{" in case:
        return False
    recorded = re.match(r"\w+:kneewatch_(canary|users)_(?:availability|ttft|tpot|e2e|itl)_", rule.get("record", ""))
    return recorded is None or any(series in case for series in _SERIES[recorded[1]])


def _with_objectives(text: str, config: Config) -> str:
    """Return a case in which each target of the configuration has the series of its objectives, in each cluster."""
    objectives = {target.known_as.removesuffix("/*"): config.objectives_of(target) for target in config.targets}
    head, *tests = re.split(r"(?m)^(?=  - name: )", text)
    return head + "".join(_with_series(test, objectives) for test in tests)


def _with_series(test: str, objectives: Mapping[str, Objectives]) -> str:
    found = set()
    for labels in re.findall(r"series: '[\w:]+\{(.*)\}'", test):
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found.add(tuple((key, pairs[key]) for key in ("target", "cluster", "namespace") if key in pairs))
    lines = []
    for labels in sorted(found):
        mine = objectives.get(dict(labels).get("target", "").partition("/")[0])
        if mine is not None and "kneewatch_objective_" not in test:
            lines += [
                f"      - {{series: '{one}', values: '{value:g}x5000'}}\n" for one, value in _series(labels, mine)
            ]
    return test.replace("    input_series:\n", "    input_series:\n" + "".join(lines), 1)


def _series(labels: Iterable[tuple[str, str]], objectives: Objectives) -> Iterator[tuple[str, float]]:
    def named(series: Series, **more: str) -> str:
        pairs = ",".join(f'{key}="{value}"' for key, value in [*labels, *more.items()])
        return f"{series.name}{{{pairs}}}"

    yield named(names.OBJECTIVE_WINDOW, slo=objectives.name), objectives.window_s
    for objective, ratio in slo.promised(objectives).items():
        yield named(names.OBJECTIVE_RATIO, objective=objective), ratio
    for objective, latency in objectives.latencies().items():
        yield named(names.OBJECTIVE_SECONDS, objective=objective), latency.within_s


def _with_groups(text: str) -> str:
    """Return a case in which each expected alert has its group: the target's name up to the slash, or the discovery."""

    def grouped(found: re.Match[str]) -> str:
        about = re.search(r"(?:target|discovery): ([^/,}]+)", found[1])
        return f"exp_labels: {{{found[1]}, group: {about[1]}}}" if about else found[0]

    return re.sub(r"exp_labels: \{(.*)\}", grouped, text)


def _with_pages(text: str) -> str:
    """Return a case in which each expected alert whose links are paths has that of its page, too."""

    def paths(found: re.Match[str]) -> str:
        about = re.search(r"\btarget: ([^,}]+)", found[1])
        return f"{found[0]}\n              page_url: /{f'targets/{about[1]}' if about else ''}"

    return re.sub(r"exp_labels: \{(.*)\}\n(?:.*\n){3,4}? +dashboard_url: /.*", paths, text)


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_alerts_fire_when_they_must_and_only_then(case: Path, tmp_path: Path, promtool: str) -> None:
    text = _with_objectives(_with_groups(_with_pages(case.read_text())), load_config(_config(case)))
    (tmp_path / case.name).write_text(text)
    _write_rules(tmp_path, _groups(_thresholds_of(text)), text)
    run = subprocess.run(
        [promtool, "test", "rules", case.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_prometheus_accepts_the_rules(tmp_path: Path, promtool: str) -> None:
    command = [promtool, "check", "rules", *build.write(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "duplicate" not in run.stdout + run.stderr
