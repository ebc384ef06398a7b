"""Values as people write them, with quotes, braces and names like numbers, come out of the chart as they went in."""

from typing import Any

import checks
import helm_python
import pytest
import yaml
from chart_values import SHAPES, Values, complete, rendered
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.long

HOSTILE = [
    'a "quoted" name',
    "it's",
    "two\nlines\n",
    "\n  indented\n\n",
    "{{ .Release.Name }}",
    "{{",
    "}}",
    "- item",
    "key: value",
    "# no comment",
    "&anchor *alias !tag",
    "yes",
    "null",
    "~",
    "1e3",
    "0x10",
    "12:30",
    "2026-11-22",
    "",
    " leading and trailing ",
    "tab\tand \\ backslash",
    "---",
    "ünïcode 模型 🙂",
    "\u2028\ufeff",
    "%s %v",
    "$(POD_NAME)",
]


def config_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    (config_map,) = checks.of(found, "ConfigMap")
    config: dict[str, Any] = yaml.safe_load(config_map["data"]["kneewatch.yml"])
    return config


def with_targets(names: list[str], **more: Any) -> Values:
    return {"config": {"targets": [{"name": name, "base_url": "http://a:8000"} for name in names]}, **more}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_targets_name_and_a_runs_arguments_are_what_was_written(chart: helm_python.Chart, text: str) -> None:
    target = text or "a"
    ramp = {"enabled": True, "target": target, "extraArgs": [text]}
    found = rendered(chart, with_targets([target], ramp=ramp))
    assert config_of(found)["targets"][0]["name"] == target
    (job,) = checks.of(found, "Job")
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--target") + 1] == target
    assert arguments[-1] == text


# Control characters are no part of a name: Kneewatch refuses them, and YAML's versions differ in what they are.
LEGIBLE = st.characters(exclude_categories=["Cc", "Cn", "Co", "Cs"], include_characters="\n\t")
# Helm writes a single equals sign without quotes, which PyYAML does not read: and that one is refused.
TEXT = st.text(LEGIBLE, max_size=40).filter(lambda text: text != "=")


@settings(max_examples=25, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=8))
def test_any_text_in_the_configuration_is_the_same_text(chart: helm_python.Chart, texts: list[str]) -> None:
    assert [target["name"] for target in config_of(rendered(chart, with_targets(texts)))["targets"]] == texts


def test_annotations_and_labels_keep_their_text_and_go_before_the_charts(chart: helm_python.Chart) -> None:
    annotations = {f"example.com/{number}": text for number, text in enumerate(HOSTILE)}
    values: Values = {
        "podAnnotations": {**annotations, "prometheus.io/port": "1"},
        "podLabels": {"team": "1e3", "app.kubernetes.io/version": "mine", "app.kubernetes.io/name": "other"},
        "prometheusRule": {"enabled": True, "labels": {"release": "yes", "helm.sh/chart": "mine"}},
        "serviceAccount": {"annotations": annotations},
    }
    found = rendered(chart, values)
    ((workload, _),) = checks.pods(found)
    metadata = workload["spec"]["template"]["metadata"]
    assert metadata["annotations"].items() >= values["podAnnotations"].items()
    assert metadata["annotations"]["prometheus.io/scrape"] == "true"
    assert (metadata["labels"]["team"], metadata["labels"]["app.kubernetes.io/version"]) == ("1e3", "mine")
    # But for the two that a Service, a policy and the Deployment itself know it by.
    assert checks.selects(workload["spec"]["selector"]["matchLabels"], metadata["labels"])
    for rule in checks.of(found, "PrometheusRule"):
        assert rule["metadata"]["labels"].items() >= values["prometheusRule"]["labels"].items()
    (account,) = checks.of(found, "ServiceAccount")
    assert account["metadata"]["annotations"] == annotations
    for manifest in found:
        checks.check(manifest)


def test_no_key_stands_twice(chart: helm_python.Chart) -> None:
    """YAML's parsers take the last of two, and Helm's own refuses: what was meant is not to be guessed."""
    labels = {"app.kubernetes.io/name": "a", "app.kubernetes.io/instance": "b", "helm.sh/chart": "c"}
    values: Values = {
        "podLabels": labels,
        "podAnnotations": {"prometheus.io/scrape": "false"},
        "podMonitor": {"enabled": True, "labels": labels},
        "prometheusRule": {"enabled": True, "labels": labels, "rules": "groups: []"},
        "dashboards": {"enabled": True, "labels": labels},
    }

    class Once(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's
            keys = [key.value for key, _ in node.value]
            assert len(set(keys)) == len(keys), keys
            return super().construct_mapping(node, deep=deep)

    for path, text in chart.render(complete(values), name="kneewatch", namespace="monitoring").items():
        if not path.endswith("NOTES.txt"):
            list(yaml.load_all(text, Loader=Once))


@pytest.mark.parametrize("shape", ["default", "fleet", "ramp", "bench", "sidecar", "secrets", "operator"])
def test_names_like_numbers_stay_names(chart: helm_python.Chart, shape: str) -> None:
    """A namespace and a release may be called 2026; so may Secrets and classes."""
    named: Values = {
        "keys": {"secretName": "1e3"},
        "serviceAccount": {"name": "0"},
        "priorityClassName": "7",
        "persistence": {"storageClass": "5", "size": "1"},
    }
    values = {
        **SHAPES[shape],
        **{key: {**SHAPES[shape].get(key, {}), **v} if isinstance(v, dict) else v for key, v in named.items()},
    }
    found = [
        manifest
        for path, text in chart.render(complete(values), name="2026", namespace="1234").items()
        if not path.endswith("NOTES.txt")
        for manifest in yaml.safe_load_all(text)
        if manifest and manifest["kind"] not in {"Role", "RoleBinding"}
    ]
    for manifest in found:
        checks.check(manifest)
        assert manifest["metadata"]["namespace"] in ("1234", "prometheus")  # "secrets" names one for its monitor
