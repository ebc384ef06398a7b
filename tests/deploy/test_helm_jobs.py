"""The chart's two Jobs, a capacity run and vLLM's own benchmark: beside a monitor and alone."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import checks
import helm_python
import pytest
import yaml
from chart_values import FOUND, LEASE, LOCAL, SHAPES, WEB, Values, complete, rendered

from probe import __version__

Manifests = Callable[[str], list[checks.Manifest]]

pytestmark = pytest.mark.long

BENCH: Values = SHAPES["bench"]["bench"]
JOBS = ["ramp", "bench"]
SERVED = {"name": "llama-8b", "base_url": "http://llama-8b:8000"}


def job(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = checks.of(manifests, "Job")
    return found


def arguments(manifests: list[dict[str, Any]]) -> list[str]:
    found: list[str] = job(manifests)["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def bench(**more: object) -> Values:
    return {"bench": {**BENCH, **more}}


@pytest.mark.parametrize("shape", [*JOBS, "ramp alone", "bench alone"])
def test_both_leave_their_results_on_a_volume_that_stays(shaped: Manifests, shape: str) -> None:
    found = shaped(shape)
    claim = checks.named(found, "PersistentVolumeClaim", "kneewatch-results")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    volumes = job(found)["spec"]["template"]["spec"]["volumes"]
    assert {"name": "results", "persistentVolumeClaim": {"claimName": "kneewatch-results"}} in volumes


def test_the_reader_of_results_is_confined_and_mounts_their_volume(deploy: Path) -> None:
    reader = yaml.safe_load((deploy / "helm/reader.yaml").read_text())
    checks.check(reader)
    assert checks.loose(reader["spec"]) == []
    (claim,) = (volume["persistentVolumeClaim"]["claimName"] for volume in reader["spec"]["volumes"])
    assert claim == "kneewatch-results"
    assert reader["spec"]["containers"][0]["image"] == f"kneewatch:{__version__}"


@pytest.mark.parametrize("shape", JOBS)
def test_without_a_monitor_there_is_the_job_and_what_it_needs(chart: helm_python.Chart, shape: str) -> None:
    alone, beside = rendered(chart, SHAPES[f"{shape} alone"]), rendered(chart, {shape: SHAPES[f"{shape} alone"][shape]})
    policies = ["NetworkPolicy"] if shape == "ramp" else []
    assert sorted(m["kind"] for m in alone) == ["ConfigMap", "Job", *policies, "PersistentVolumeClaim"]
    assert [m for m in beside if m in alone] == alone
    leased = rendered(chart, {**SHAPES[f"{shape} alone"], "config": {"lease": LEASE, "targets": [FOUND, SERVED]}})
    wanted = {("monitoring", "leases"): {"get", "list", "create", "update", "delete"}} if shape == "ramp" else {}
    assert checks.rights(leased) == wanted


def test_a_run_is_asked_for_once_and_ends_before_its_deadline(chart: helm_python.Chart, tmp_path: Path) -> None:
    found = rendered(chart, SHAPES["ramp alone"])
    run = job(found)["spec"]
    (target,) = checks.configuration(found, tmp_path).targets
    asked = checks.accepted(run["template"]["spec"]["containers"][0]["args"])
    assert (asked["command"], asked["target"], str(asked["out"])) == ("ramp", target.name, "/results/result.json")
    assert str(asked["html_file"]) == "/results/report.html"
    assert run["backoffLimit"] == 0
    assert run["template"]["spec"]["restartPolicy"] == "Never"
    assert run["activeDeadlineSeconds"] > target.capacity.budget.seconds + 60


@pytest.mark.parametrize("shape", JOBS)
def test_a_jobs_pod_is_no_part_of_the_monitors_service_and_policy(shaped: Manifests, shape: str) -> None:
    found = shaped(shape)
    labels = job(found)["spec"]["template"]["metadata"]["labels"]
    (service,) = checks.of(found, "Service")
    assert not checks.selects(service["spec"]["selector"], labels)
    policies = {
        p["metadata"]["name"]: p["spec"]["podSelector"]["matchLabels"] for p in checks.of(found, "NetworkPolicy")
    }
    chosen = {name for name, selector in policies.items() if checks.selects(selector, labels)}
    assert chosen == ({"kneewatch-ramp"} if shape == "ramp" else set())


def test_a_run_has_what_the_monitors_configuration_asks_for(chart: helm_python.Chart) -> None:
    """The Lease's rights and the way to the API server, and every file that the configuration names."""
    shared = {
        "extraEnv": SHAPES["placed"]["extraEnv"],
        "extraVolumes": SHAPES["placed"]["extraVolumes"],
        "extraVolumeMounts": SHAPES["placed"]["extraVolumeMounts"],
        "keys": {"secretName": "keys"},
        "web": {"secretName": "web"},
    }
    values: Values = {**SHAPES["ramp"], **shared, "config": {"lease": LEASE, "web_config_file": WEB}}
    found = rendered(chart, values)
    for manifest in found:
        checks.check(manifest)
    run, (monitor,) = job(found)["spec"]["template"]["spec"], checks.of(found, "Deployment")
    watch = monitor["spec"]["template"]["spec"]
    assert checks.loose(run) == []
    assert run["serviceAccountName"] == watch["serviceAccountName"]
    assert run["automountServiceAccountToken"] is True
    assert run["containers"][0]["env"] == watch["containers"][0]["env"]
    ours, theirs = ({m["mountPath"] for m in pod["containers"][0]["volumeMounts"]} for pod in (run, watch))
    assert ours == theirs | {"/results"}
    assert {m["name"] for m in run["containers"][0]["volumeMounts"]} == {v["name"] for v in run["volumes"]}
    policies = {p["metadata"]["name"]: p["spec"]["egress"] for p in checks.of(found, "NetworkPolicy")}
    (beside,) = (rule for rule in policies["kneewatch"] if {"port": 6443, "protocol": "TCP"} in rule["ports"])
    assert beside in policies["kneewatch-ramp"]


def test_a_run_without_a_lease_asks_the_api_server_for_nothing(chart: helm_python.Chart) -> None:
    for config in ({}, {"targets": [FOUND, SERVED]}):
        found = rendered(chart, {**SHAPES["ramp"], "config": config})
        run = job(found)["spec"]["template"]["spec"]
        assert run["automountServiceAccountToken"] is False
        assert "serviceAccountName" not in run
        policies = {p["metadata"]["name"]: p["spec"]["egress"] for p in checks.of(found, "NetworkPolicy")}
        ports = [port for rule in policies["kneewatch-ramp"] for port in rule["ports"]]
        assert {"port": 6443, "protocol": "TCP"} not in ports


def test_a_run_takes_more_arguments(chart: helm_python.Chart) -> None:
    given = arguments(rendered(chart, SHAPES["ramp"]))
    assert given[-2:] == ["--concurrency", "1,2"]
    assert checks.accepted(given)["concurrency"] == "1,2"


def test_each_revision_has_a_job_of_its_own(chart: helm_python.Chart) -> None:
    files = chart.render(
        complete(SHAPES["bench"]), name="kneewatch", namespace="monitoring", revision=7, is_upgrade=True
    )
    made = yaml.safe_load(files["kneewatch/templates/bench.yaml"])
    assert made["metadata"]["name"] == "kneewatch-bench-7"
    assert "job/kneewatch-bench-7" in files["kneewatch/templates/NOTES.txt"]


def test_the_benchmark_sends_what_the_targets_capacity_runs_send(chart: helm_python.Chart, tmp_path: Path) -> None:
    target = {"name": "a", "base_url": "https://a.example/v1/", "model": "m", "canary": {"workload": "long"}}
    workloads = {"long": {"prompt_tokens": 4000, "output_tokens": 1_000, "api": "chat"}}
    values: Values = {**bench(target="a", model=""), "config": {"targets": [target], "workloads": workloads}}
    found = rendered(chart, values)
    given = dict(a.removeprefix("--").split("=", 1) for a in arguments(found) if "=" in a)
    (config_map,) = checks.of(found, "ConfigMap")
    config = checks.load(config_map["data"]["kneewatch.yml"], tmp_path)
    assert given["base-url"] == config.servers[0].base_url
    assert (given["model"], given["random-input-len"], given["random-output-len"]) == ("m", "4000", "1000")
    assert (given["backend"], given["endpoint"]) == ("openai-chat", "/v1/chat/completions")


def test_the_default_workload_is_kneewatchs(chart: helm_python.Chart, tmp_path: Path) -> None:
    values = {**bench(target="a"), "config": {"targets": [{"name": "a", "base_url": "http://a:8000"}]}}
    found = rendered(chart, values)
    (config_map,) = checks.of(found, "ConfigMap")
    workload = checks.load(config_map["data"]["kneewatch.yml"], tmp_path).workload("default")
    assert f"--random-input-len={workload.prompt_tokens}" in arguments(found)
    assert f"--random-output-len={workload.output_tokens}" in arguments(found)


def test_explicit_values_take_precedence_over_the_configuration(chart: helm_python.Chart) -> None:
    written = {"baseUrl": "http://gateway:4000/v1", "promptTokens": 10, "outputTokens": 20, "extraArgs": ["--seed=1"]}
    for values in (bench(**written), {**bench(**written), "existingConfigMap": "mine"}):
        given = arguments(rendered(chart, values))
        assert {"--base-url=http://gateway:4000", "--random-input-len=10", "--random-output-len=20"} <= set(given)
        assert given[-1] == "--seed=1"


def test_a_key_of_the_server_comes_from_a_secret(chart: helm_python.Chart) -> None:
    key = {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "llama-8b"}}}
    found = rendered(chart, bench(extraEnv=[key], tokenSecretName=""))
    environment = job(found)["spec"]["template"]["spec"]["containers"][0]["env"]
    assert key in environment
    assert "HF_TOKEN" not in {variable["name"] for variable in environment}
    for manifest in found:
        checks.check(manifest)


LENGTHS = {"prompt_tokens": {"lognormal": {"median": 256, "sigma": 1, "max": 900}}}
PREFIX = {"prefix": {"shared_tokens": 100}}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"ramp": {"enabled": True}}, "ramp.target: not set"),
        ({"ramp": {"enabled": True, "target": "llama"}}, "ramp.target: no target of config with a base_url"),
        ({"ramp": {"enabled": True, "target": "vllm"}, "config": {"targets": [FOUND]}}, "ramp.target: no target"),
        (
            {"ramp": {"enabled": True, "target": "llama-8b"}, "config": {"targets": [LOCAL]}},
            "a Job in its own pod cannot reach",
        ),
        ({**bench(), "ramp": {"enabled": True, "target": "llama-8b"}}, "cannot both be true"),
        (bench(target=""), "bench.target: address or request lengths unknown"),
        (bench(target="llama"), "bench.target: no target"),
        ({**bench(), "config": {"targets": [LOCAL]}}, "a Job in its own pod cannot reach"),
        ({**bench(), "existingConfigMap": "mine"}, "bench.target: address or request lengths unknown"),
        (bench(model=""), "bench.model"),
        (bench(tokenizer=""), "bench.tokenizer"),
        (
            {**bench(), "config": {"workloads": {"short-chat": LENGTHS}}},
            "workload .*short-chat.* has varying lengths or a shared prefix",
        ),
        (
            {**bench(), "config": {"workloads": {"short-chat": PREFIX}}},
            "workload .*short-chat.* has varying lengths or a shared prefix",
        ),
    ],
)
def test_the_chart_refuses_values_that_cannot_work(chart: helm_python.Chart, values: Values, says: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=says):
        rendered(chart, deepcopy(values))
