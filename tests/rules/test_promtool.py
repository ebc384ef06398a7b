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

from alerts import build, burn_texts, sli
from alerts.output_options import chosen_thresholds
from exporters import names
from exporters.names import Series
from probe.config.config import Config
from probe.config.config_file import load_config
from probe.core import objectives as slo
from probe.core.objectives import Objectives

HERE = Path(__file__).parent
_COMMANDS = {alert.name: alert.command for alert in build.alerts()}
# An alert that never fires: promtool prints what fires in its place, with the texts.
_ASKED = "its texts are asked for"
_FAILURE = re.compile(r"\n    (?:name: .*\n    )?(?=alertname: |expr: )")
_TEXT = re.compile(r'(summary|description)="((?:[^"\\]|\\.)*)"')
# What a template leaves where it lacks a value, and numbers as nobody says them: 1.397k, 8.374s, 0.0499999.
_LONGEST = 170  # of a summary: two lines of a telephone
_UNREADABLE = re.compile(
    r"<no value>|NaN(?! in their logits)|"
    r"Inf\b|%!|<<|\{\{|\b0 of 0\b|unknown of|\d[kMG]\b|\d\.\d{3}|  |\( |\d e[-+]|times as often"
)
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


def _with_texts_asked(text: str) -> tuple[str, int]:
    """Return a case that fails where alerts fire that a query names, so that promtool prints their texts; how often."""
    case = yaml.load(text, yaml.CSafeLoader)
    count = 0
    for test in case["tests"]:
        for command, annotations in (each for asked in test.get("alert_rule_test", ()) for each in _annotated(asked)):
            annotations["command"] = command
        found = {
            (name, query["eval_time"])
            for query in test.get("promql_expr_test", ())
            if "ALERTS{" in query["expr"] and "over_time" not in query["expr"]
            for sample in query["exp_samples"]
            for name in re.findall(r'alertname="(\w+)"', sample.get("labels", ""))
        }
        found |= {(one["alertname"], one["eval_time"]) for one in test.get("alert_rule_test", ()) if one["exp_alerts"]}
        never = [{"exp_labels": {"severity": _ASKED}}]
        asked = [{"alertname": name, "eval_time": at, "exp_alerts": never} for name, at in sorted(found)]
        test["alert_rule_test"] = [*test.get("alert_rule_test", ()), *asked]
        count += len(asked)
    return json.dumps(case), count


def _annotated(asked: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the command of each expected alert with annotations, filled in by its labels, and the annotations."""
    for one in asked["exp_alerts"] or ():
        if "exp_annotations" in one:
            labels = one["exp_labels"]
            words = _COMMANDS[asked["alertname"]].replace("TARGET", labels.get("target", ""))
            words = words.replace("DISCOVERY", labels.get("discovery", ""))
            place = f" -n {labels['namespace']}" if "namespace" in labels else ""
            if words.startswith("kubectl"):
                words = words.replace("kubectl", f"kubectl{place}", 1)
            elif place:
                words = f"kubectl{place} exec deploy/kneewatch -- {words}"
            yield words, one["exp_annotations"]


def _with_pages(text: str) -> str:
    """Return a case in which each expected alert whose links are paths has that of its page, too."""

    def paths(found: re.Match[str]) -> str:
        about = re.search(r"\btarget: ([^,}]+)", found[1])
        return f"{found[0]}\n              page_url: /{f'targets/{about[1]}' if about else ''}"

    return re.sub(r"exp_labels: \{(.*)\}\n(?:.*\n){3,4}? +dashboard_url: /.*", paths, text)


# Hours of several targets.
_SLOW = {"incidents"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=_name(case), marks=[pytest.mark.slow] * (_name(case) in _SLOW)) for case in CASES]
)
def test_alerts_fire_when_they_must_and_only_then(case: Path, tmp_path: Path, promtool: str) -> None:
    text = _with_objectives(_with_groups(_with_pages(case.read_text())), load_config(_config(case)))
    asking, count = _with_texts_asked(text)
    (tmp_path / case.name).write_text(asking)
    _write_rules(tmp_path, _groups(_thresholds_of(text)), text)
    run = subprocess.run(
        [promtool, "test", "rules", case.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    _, *failures = _FAILURE.split(run.stdout + run.stderr)
    assert [failure for failure in failures if _ASKED not in failure] == []
    assert len(failures) == count, run.stdout + run.stderr
    texts = [(kind, text) for failure in failures for kind, text in _TEXT.findall(failure)]
    assert len(texts) >= 2 * count
    assert [text for _, text in texts if _UNREADABLE.search(text)] == []
    assert [text for kind, text in texts if kind == "summary" and not 20 <= len(text) <= _LONGEST] == []


_REQUESTS, _FAILED = (f"{{}}:kneewatch_{{}}_availability_{what}:increase1m" for what in ("requests", "errors"))
# What was sent and what failed in each minute of six hours, and what the summary of a page says then.
_SUMMARIES = {
    "over": (
        "4x360", "0x300 4x30 0x30", "", "",
        "over recovered: 0 of 24 canaries failed in 5 min, 124 of 1444 in 6 h",
    ),
    "down": ("4x360", "0x300 4x60", "", "", "down is DOWN: 24 of 24 canaries failed in 5 min"),
    "some": ("4x360", "0x300 2x60", "", "", "some fails: 12 of 24 canaries failed in 5 min"),
    # Users who get answers: the server is up.
    "part": ("4x360", "0x300 4x60", "9x360", "0x360", "part fails: 24 of 24 canaries failed in 5 min; users: 0 of 54"),
    "both": ("4x360", "4x360", "9x360", "9x360", "both is DOWN: 24 of 24 canaries failed in 5 min; users: 54 of 54"),
    # Of users who failed and went away, nothing is known.
    "gone": (
        "4x360", "0x360", "9x300 0x60", "0x290 9x10 0x60",
        "gone had failures: 0 of 24 canaries failed in 5 min, 0 of 1444 in 6 h; users: no requests, 99 in 6 h",
    ),
    "rare": (
        "1 0x29 1 0x29 1 0x299 0", "1 0x29 1 0x29 1 0x299 0", "", "",
        "rare had failures: no canary was sent in 5 min, 3 of 3 in 6 h",
    ),
    "users": ("", "", "9x360", "0x300 9x60", "users fails for users: 54 of 54 requests failed in 5 min"),
}  # fmt: skip


def test_a_page_says_who_fails_and_that_it_is_over(tmp_path: Path, promtool: str) -> None:
    """The summary alone, on an alert of no condition: the conditions are tested above."""
    text = burn_texts.summary((sli.AVAILABILITY, sli.USERS_AVAILABILITY), "page", 1.0)
    rule = {"alert": "A", "expr": "max by (target) (kneewatch_target_up)", "annotations": {"summary": text}}
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "g", "rules": [rule]}]}))
    series, expected = [], []
    for target, (sent, failed, asked, theirs, words) in _SUMMARIES.items():
        values = {"kneewatch_target_up": "1x360"}
        for record, level, who, counts in (
            (_REQUESTS, "target_workload", "canary", sent),
            (_FAILED, "target_workload", "canary", failed),
            (_REQUESTS, "target", "users", asked),
            (_FAILED, "target", "users", theirs),
        ):
            values[record.format(level, who)] = counts
        series += [{"series": f'{name}{{target="{target}"}}', "values": each} for name, each in values.items() if each]
        expected.append({"exp_labels": {"target": target}, "exp_annotations": {"summary": words}})
    asked = [{"alertname": "A", "eval_time": "6h", "exp_alerts": expected}]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": asked}
    case = {"rule_files": ["rules.yml"], "evaluation_interval": "6h", "tests": [test]}
    (tmp_path / "case.yml").write_text(json.dumps(case))
    run = subprocess.run(
        [promtool, "test", "rules", "case.yml"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_prometheus_accepts_the_rules(tmp_path: Path, promtool: str) -> None:
    command = [promtool, "check", "rules", *build.write(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "duplicate" not in run.stdout + run.stderr
