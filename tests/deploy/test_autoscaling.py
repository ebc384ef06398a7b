"""What scales on headroom: the rule does what it says, and the autoscalers ask for it."""

import importlib
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import checks
import pytest
import yaml

from exporters import names

RECORD = "discovery:kneewatch_replicas:in_use"


@pytest.fixture(scope="module")
def folder(deploy: Path) -> Path:
    return deploy / "autoscaling"


def read(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded


def series(name: str, target: str, value: float | str, **labels: str) -> dict[str, str]:
    pairs = ",".join(f'{key}="{text}"' for key, text in {"target": target, **labels}.items())
    return {"series": f"{name}{{{pairs}}}", "values": f"{value}x20"}


def headroom(
    target: str, value: float, mode: str = "verified", instance: str = "a", workload: str = "w"
) -> dict[str, str]:
    return series(names.HEADROOM.name, target, value, mode=mode, model="m", workload=workload, instance=instance)


def for_users(target: str, value: float) -> dict[str, str]:
    return headroom(target, value, "forecast", workload="users")


def up(target: str, value: int = 1, instance: str = "a") -> dict[str, str]:
    return series(names.TARGET_UP.name, target, value, instance=instance)


BUSY = [up(f"q/{i}") for i in range(4)] + [headroom(f"q/{i}", 0.1) for i in range(4)]


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("given", "in_use"),
    [
        pytest.param(BUSY, {"q": 3.6}, id="four pods, each nine tenths full"),
        pytest.param([*BUSY, up("q/4"), up("q/5")], {"q": 5.4}, id="two new ones, of which nothing is known"),
        pytest.param([*BUSY[1:], up("q/0", 0)], {"q": 2.7}, id="one is down, and its load is with the others"),
        pytest.param(
            [up("q/0"), headroom("q/0", 0.4), headroom("q/0", 0.2, "forecast")], {"q": 0.6}, id="measured first"
        ),
        pytest.param(
            [up("q/0"), headroom("q/0", 0.5, "forecast")], {"q": 0.5}, id="a forecast where there is nothing else"
        ),
        pytest.param(
            [up("q/0"), headroom("q/0", 0.5, "forecast"), for_users("q/0", 0.6)],
            {"q": 0.4},
            id="of two forecasts the one for users",
        ),
        pytest.param(
            [up("q/0"), headroom("q/0", 0.4), for_users("q/0", 0.2)], {"q": 0.6}, id="and measured before both"
        ),
        pytest.param(
            [up("q/0"), up("q/0", instance="b"), headroom("q/0", 0.4), headroom("q/0", 0.5, instance="b")],
            {"q": 0.6},
            id="two Kneewatches on one pod: the busier view",
        ),
        pytest.param([up("q/0"), headroom("q/0", -0.2)], {"q": 1.2}, id="beyond capacity"),
        pytest.param([*BUSY, up("p/0"), headroom("p/0", 0.8)], {"q": 3.6, "p": 0.2}, id="two discoveries"),
        pytest.param(
            [up("alone"), headroom("alone", 0.1)], {}, id="a target that nobody discovers is nobody's replica"
        ),
        pytest.param([up("q/0")], {}, id="nothing known: no answer, and not zero"),
    ],
)
def test_replicas_in_use(
    promtool: str, folder: Path, tmp_path: Path, given: list[dict[str, str]], in_use: dict[str, float]
) -> None:
    samples = [{"labels": f'{{discovery="{name}"}}', "value": value} for name, value in in_use.items()]
    case = {
        "interval": "30s",
        "input_series": given,
        # Rounded: 1 - 0.1 is not 0.9 exactly.
        "promql_expr_test": [
            {
                "expr": f"round({RECORD}, 0.001)",
                "eval_time": "5m",
                "exp_samples": samples,
            }
        ],
    }
    test = {"rule_files": [str(folder / "rules.yml")], "evaluation_interval": "30s", "tests": [case]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_promtool_takes_the_rules(promtool: str, folder: Path) -> None:
    command = [promtool, "check", "rules", str(folder / "rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rule_is_of_series_that_there_are(folder: Path) -> None:
    (group,) = read(folder / "rules.yml")["groups"]
    (rule,) = group["rules"]
    assert rule["record"] == RECORD
    assert set(re.findall(r"\bkneewatch_\w+", rule["expr"])) == {names.HEADROOM.name, names.TARGET_UP.name}


def test_kubernetes_accepts_the_hpa(folder: Path) -> None:
    checks.check(read(folder / "hpa.yaml"))


def test_keda_accepts_the_scaled_object(folder: Path) -> None:
    """Its own types drop what they do not know, so what comes back tells whether there was such a thing."""
    scaled = read(folder / "keda.yaml")
    model = importlib.import_module("cloudcoil.models.keda.v1alpha1").ScaledObject
    dump = model.model_validate(scaled).model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True)
    assert json.loads(dump) == scaled


def test_both_ask_for_the_rule_and_scale_alike(folder: Path) -> None:
    keda, hpa = read(folder / "keda.yaml")["spec"], read(folder / "hpa.yaml")["spec"]
    (adapter,) = read(folder / "prometheus-adapter.yml")["rules"]["external"]
    (trigger,), (metric,) = keda["triggers"], hpa["metrics"]
    (discovery,) = metric["external"]["metric"]["selector"]["matchLabels"].items()
    assert trigger["metadata"]["query"] == f'{RECORD}{{{discovery[0]}="{discovery[1]}"}}'
    assert adapter["seriesQuery"] == f'{{__name__="{RECORD}"}}'
    assert adapter["metricsQuery"].startswith(f"max({RECORD}{{")
    assert adapter["name"]["as"] == metric["external"]["metric"]["name"]
    assert metric["external"]["target"] == {"type": trigger["metricType"], "averageValue": "700m"}
    assert math.isclose(float(trigger["metadata"]["threshold"]), 0.7)
    assert hpa["behavior"] == keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (keda["minReplicaCount"], keda["maxReplicaCount"])
    assert hpa["scaleTargetRef"]["name"] == keda["scaleTargetRef"]["name"]


def test_no_answer_takes_no_replica_away(folder: Path) -> None:
    keda = read(folder / "keda.yaml")["spec"]
    assert keda["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
    assert keda["fallback"]["replicas"] > keda["minReplicaCount"] > 0
