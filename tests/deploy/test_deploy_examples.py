"""The shipped configurations: each loads, and each shows what it is there for."""

import json
import re
from pathlib import Path

import checks
import helm_python
import pytest
import yaml
from chart_values import rendered

from probe.config.config_file import load_config
from probe.config.targets import TemplateConfig

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


# What a cluster gets as it is. The examples show step-up load, and compose has a mock server.
APPLIED = sorted((ROOT / "deploy/kustomize").rglob("kneewatch.yml"))
SYSTEMS = ROOT / "deploy/examples/systems.yml"


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", SHIPPED, ids=named)
def test_a_shipped_configuration_loads(file: Path, tmp_path: Path) -> None:
    assert checks.load(file.read_text(), tmp_path).targets  # with the files of its keys, which a Secret brings


@pytest.mark.parametrize("file", APPLIED, ids=named)
def test_no_example_adds_load_in_the_first_night(file: Path, tmp_path: Path) -> None:
    assert {target.capacity.mode for target in checks.load(file.read_text(), tmp_path).targets} == {"forecast"}


@pytest.mark.parametrize("file", APPLIED, ids=named)
def test_the_second_step_in_the_comment_is_one_with_prometheus_and_windows(file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    for pattern, to in (
        (r"^( *)mode: forecast .*\n", ""),
        (r"^( *)# (mode: verify|schedule: )", r"\1\2"),
        (r"^( *)# (prometheus: )", r"\1\2"),
    ):
        text, changed = re.subn(pattern, to, text, flags=re.MULTILINE)
        assert changed
    config = checks.load(text, tmp_path)
    assert config.prometheus is not None
    (target,) = (target for target in config.targets if target.capacity.mode == "verify")
    assert target.capacity.schedule.windows


def test_the_alternatives_of_kserve_are_configurations(tmp_path: Path) -> None:
    text = SYSTEMS.read_text()
    hugging, changed = re.subn(r"^      # ((metrics_)?path: )", r"      \1", text, flags=re.MULTILINE)
    assert changed == 2
    template = kserve(hugging, tmp_path)
    found = template.target("llama-8b-predictor-0", "http://10.0.0.1:8080" + template.discover.path)
    assert (found.base_url, found.metrics_url) == ("http://10.0.0.1:8080/openai", "http://10.0.0.1:8080/metrics")

    start = text.index("    discover:\n", text.index("  - name: kserve\n"))
    end = text.index("    objectives: chat", start)
    llm = re.sub(r"^    # ", "    ", text[text.index("    # discover:") : end], flags=re.MULTILINE)
    template = kserve(text[:start] + llm + text[end:], tmp_path)
    assert (template.discover.scheme, template.tls.verify) == ("https", False)


def kserve(text: str, folder: Path) -> TemplateConfig:
    (template,) = (one for one in checks.load(text, folder).templates if one.name == "kserve")
    return template


@pytest.mark.parametrize(
    ("name", "labels", "port"),
    [
        # helm/templates/deployment-vllm-multi.yaml of vllm-project/production-stack
        ("production-stack", {"model": "llama-8b", "helm-release-name": "vllm", "environment": "test"}, 8000),
        # pkg/constants/constants.go of kserve/kserve
        ("kserve", {"serving.kserve.io/inferenceservice": "llama-8b", "component": "predictor"}, 8080),
        # The example server of deploy/kustomize/sidecar
        ("gateway", {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "llama-8b"}, 8000),
        ("behind-the-gateway", {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "llama-8b"}, 8000),
        # docs/environment/kubernetes.md of vllm-project/router
        ("vllm-router", {"app": "vllm-worker", "role": "inference"}, 8000),
        # ray-operator/controllers/ray/utils/constant.go of ray-project/kuberay
        (
            "ray-serve",
            {"ray.io/cluster": "llama-8b-x1", "ray.io/node-type": "worker", "ray.io/group": "llama-8b"},
            8080,
        ),
    ],
)
def test_the_selectors_mean_pods_as_those_projects_make_them(name: str, labels: dict[str, str], port: int) -> None:
    (target,) = (one for one in yaml.safe_load(SYSTEMS.read_text())["targets"] if one["name"] == name)
    found = (target.get("discover") or target["metrics_discovery"])["kubernetes"]
    asked = dict(requirement.split("=") for requirement in found["selector"].split(","))
    assert checks.selects(asked, labels)
    assert (found["namespace"], found["port"]) == ("serving", port)


def test_the_chart_gives_the_rights_that_the_systems_need(chart: helm_python.Chart) -> None:
    found = rendered(chart, {"config": yaml.safe_load(SYSTEMS.read_text())})
    assert checks.rights(found) == {("serving", "pods"): {"list", "watch"}}


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("gateway", "Envoy (two servers, both pages)"),
        ("llama-cpp", "llama.cpp"),
        ("production-stack", "production stack's router (two servers, both pages)"),
        ("ray-serve", "Ray Serve"),
        ("transformers", "Hugging Face `transformers serve`"),
        ("vllm-router", "vllm-router (two servers, both pages)"),
    ],
)
def test_a_target_asks_of_a_system_what_works_with_it(name: str, system: str) -> None:
    record = json.loads(max((ROOT / "benchmarks/results").glob("systems-*.json")).read_text())
    (row,) = (row for row in record["rows"] if row["system"] == system)
    target = load_config(SYSTEMS).target(name)
    assert (target.capacity.mode == "forecast") is row["forecast"]["works"]
    assert (target.capacity.guard == "stream") is (row["load"]["words"] == "by the stream alone")


def test_no_load_goes_through_a_gateway_by_schedule() -> None:
    assert {target.capacity.mode for target in load_config(SYSTEMS).targets} == {"forecast", "off"}


def test_the_sidecars_example_is_the_one_it_is_deployed_with(deploy: Path) -> None:
    sidecar = deploy / "kustomize/sidecar/kneewatch.yml"
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
