"""The shipped configurations: each loads, and each shows what it is there for."""

import re
from pathlib import Path

import checks
import pytest
import yaml

from benchmarks.alerts.rules import seconds_of
from dashboards.layout import SCRAPE_S
from probe.config.config_file import load_config

ROOT = Path(__file__).resolve().parents[2]
FOR_ALERTMANAGER = {"alertmanager.yml", "kube-prometheus-stack.yml"}
EXAMPLES = sorted(file for file in (ROOT / "deploy/examples").glob("*") if file.name not in FOR_ALERTMANAGER)
SHIPPED = [
    *EXAMPLES,
    *sorted((ROOT / "deploy/kustomize").rglob("kneewatch.yml")),
    ROOT / "deploy/compose/kneewatch.yml",
]


def test_the_examples_are_there() -> None:
    assert {"kneewatch.yml", "multi.yml", "sidecar.yml"} <= {file.name for file in EXAMPLES}


# What a cluster gets as it is. The examples show step-up load, the Job is one run of it, and compose has a mock server.
APPLIED = [
    *(file for file in sorted((ROOT / "deploy/kustomize").rglob("kneewatch.yml")) if file.parent.name != "job"),
    ROOT / "deploy/helm/kneewatch/values.yaml",
]
# Systems whose metrics, if they have any, do not show what a forecast needs (docs/systems.md).
NO_FORECAST = {"llama-cpp", "ray-serve", "transformers"}


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


def configuration(file: Path, text: str) -> str:
    """Return the kneewatch.yml in a file, which may be the chart's values."""
    return text if file.name != "values.yaml" else yaml.safe_dump(yaml.safe_load(text)["config"])


@pytest.mark.parametrize("file", SHIPPED, ids=named)
def test_a_shipped_configuration_loads(file: Path, tmp_path: Path) -> None:
    assert checks.load(file.read_text(), tmp_path).targets  # with the files of its keys, which a Secret brings


@pytest.mark.parametrize("file", APPLIED, ids=named)
def test_no_example_adds_load_in_the_first_night(file: Path, tmp_path: Path) -> None:
    config = checks.load(configuration(file, file.read_text()), tmp_path)
    modes = {target.capacity.mode for target in config.targets}
    assert modes <= {"forecast", "off"}
    assert ("forecast" in modes) is (file.parent.name not in NO_FORECAST)


@pytest.mark.parametrize("file", APPLIED, ids=named)
def test_the_second_step_in_the_comment_is_one_with_prometheus_and_windows(file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    for pattern, to in (
        (r'^( *)mode: (forecast|"off") .*\n', ""),
        (r"^( *)# (mode: verify|schedule: )", r"\1\2"),
        (r"^( *)# (prometheus: )", r"\1\2"),
    ):
        text, changed = re.subn(pattern, to, text, flags=re.MULTILINE)
        assert changed
    config = checks.load(configuration(file, text), tmp_path)
    assert config.prometheus is not None
    (target,) = (target for target in config.targets if target.capacity.mode == "verify")
    assert target.capacity.schedule.windows


def test_the_alternatives_of_kserve_are_configurations(deploy: Path, tmp_path: Path) -> None:
    text = (deploy / "kustomize/overlays/kserve/kneewatch.yml").read_text()
    hugging, changed = re.subn(r"^      # ((metrics_)?path: )", r"      \1", text, flags=re.MULTILINE)
    assert changed == 2
    (template,) = checks.load(hugging, tmp_path).templates
    found = template.target("llama-8b-predictor-0", "http://10.0.0.1:8080" + template.discover.path)
    assert (found.base_url, found.metrics_url) == ("http://10.0.0.1:8080/openai", "http://10.0.0.1:8080/metrics")

    before, after = text.index("    discover:\n"), text.index("    # An LLMInferenceService")
    end = text.index("    objectives: chat")
    llm = re.sub(r"^    # ", "    ", text[text.index("    # discover:") : end], flags=re.MULTILINE)
    assert before < after < end
    (template,) = checks.load(text[:before] + llm + text[end:], tmp_path).templates
    assert (template.discover.scheme, template.tls.verify) == ("https", False)


def test_the_sidecars_example_is_the_one_it_is_deployed_with(deploy: Path) -> None:
    sidecar = deploy / "kustomize/overlays/sidecar/kneewatch.yml"
    assert (deploy / "examples/sidecar.yml").read_text() == sidecar.read_text()
    assert load_config(sidecar).servers[0].base_url.startswith("http://127.0.0.1:")


def test_several_servers_step_up_at_different_times(deploy: Path) -> None:
    config = load_config(deploy / "examples/multi.yml")
    assert len(config.targets) >= 3
    assert len(config.workloads) >= 2
    assert {target.objectives for target in config.targets} == set(config.objectives)
    times = [target.capacity.schedule.cron for target in config.targets if target.capacity.mode == "verify"]
    assert len(times) == len(set(times))


def test_the_key_in_the_comment_is_a_key_of_the_configuration(deploy: Path, tmp_path: Path) -> None:
    secret = tmp_path / "qwen"
    secret.write_text("x\n")
    text = (deploy / "examples/multi.yml").read_text()
    assert "# api_key_file: /run/secrets/qwen" in text
    file = tmp_path / "multi.yml"
    file.write_text(text.replace("# api_key_file: /run/secrets/qwen", f"api_key_file: {secret}"))
    assert load_config(file).target("qwen-rag").secret() == "x"


@pytest.mark.parametrize("file", sorted((ROOT / "deploy/kustomize").rglob("podmonitor.yaml")), ids=named)
def test_the_operators_prometheus_scrapes_as_often_as_rules_and_dashboards_need(file: Path) -> None:
    """Without an interval it takes the Prometheus' own, which may be longer than a minute."""
    (endpoint,) = yaml.safe_load(file.read_text())["spec"]["podMetricsEndpoints"]
    assert 0 < seconds_of(endpoint["interval"]) <= SCRAPE_S
