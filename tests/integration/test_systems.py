"""Gateways and servers of others, the real programs of `make systems`: what docs/systems.md says of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import systems
import yaml
from harmony_server import harmony_server
from kneewatch_command import kneewatch, measured
from monitor import Sim
from system_setups import SETUPS

pytestmark = [pytest.mark.long, pytest.mark.alone]

ROOT = Path(__file__).parents[2]
Needs = Callable[[str], None]
_LEVELS = ("--concurrency", "2,4", "--requests-per-step", "24", "--confirm-seconds", "0")
_LENIENT = {kind: {"ratio": 0.95, "within": "5s"} for kind in ("ttft", "tpot")}


@pytest.fixture
def needs(skip_without: Callable[[str], str]) -> Needs:
    """Return a function that skips a test where a system is not installed."""

    def check(name: str) -> None:
        if systems.version_of(name) is None:
            skip_without(name)

    return check


def _config(folder: Path, target: dict[str, Any]) -> Path:
    config = {
        "objectives": {"default": _LENIENT},
        "workloads": {"short": {"prompt_tokens": 64, "output_tokens": 32}},
        "targets": [{"name": "a", "canary": {"workload": "short", "timeout": "10s"}, **target}],
    }
    file = folder / "kneewatch.yml"
    file.write_text(yaml.safe_dump(config))
    return file


def _shipped(name: str) -> dict[str, Any]:
    """Return a target of deploy/examples/systems.yml."""
    targets = yaml.safe_load((ROOT / "deploy/examples/systems.yml").read_text())["targets"]
    (found,) = (target for target in targets if target["name"] == name)
    return dict(found)


def _ramp(file: Path) -> dict[str, Any]:
    result = file.with_name("result.json")
    done = measured("ramp", "-c", file, *_LEVELS, "--out", result, within_s=600)
    assert done.status == 0, done.out + done.err
    return json.loads(result.read_text())  # type: ignore[no-any-return]


def _is_no_more_than_measured(result: dict[str, Any]) -> bool:
    rates = [step["throughput_rps"] for step in result["steps"]]
    return bool(result["capacity"]["requests_per_second"] <= max(rates))


@pytest.mark.parametrize("name", SETUPS)
def test_each_system_is_checked_and_measured(needs: Needs, name: str, tmp_path: Path) -> None:
    program, setup = SETUPS[name]
    needs(program)
    with setup(tmp_path / "system") as placed:
        file = _config(tmp_path, {"base_url": placed.url, **placed.target})
        kneewatch("check", "-c", file)  # a cold gateway's first answer may take seconds
        checked = kneewatch("check", "-c", file)
        assert checked.status == 0, checked.out + checked.err
        result = _ramp(file)
    assert result["stopped"] == {"by": "done", "reason": None}
    assert _is_no_more_than_measured(result)
    assert str(result["capacity"]["reason"]).startswith("guarded by") == placed.is_by_stream


def test_the_canary_of_the_shipped_example_passes_litellm(needs: Needs, tmp_path: Path) -> None:
    needs("litellm")
    shipped = {key: value for key, value in _shipped("litellm").items() if key != "metrics_url"} | {"engine": "litellm"}
    (tmp_path / "key").write_text(systems.KEY)
    with Sim(tmp_path / "sim", "tiny") as sim, systems.litellm(tmp_path / "gateway", sim.base_url) as url:
        place = {"base_url": url, "model": "llama", "api_key_file": str(tmp_path / "key")}
        file = _config(tmp_path, {**shipped, **place, "objectives": "default", "canary": {"workload": "short"}})
        kneewatch("check", "-c", file)
        done = kneewatch("check", "-c", file)
        ids = _config(tmp_path, {**place, "canary": {"workload": "short"}})
        refused = kneewatch("check", "-c", ids)
    assert done.status == 0, done.out + done.err
    assert refused.status == 1
    assert "set request.prompt: text" in refused.out


def test_gpt_oss_behind_litellm_names_the_key_that_it_needs(needs: Needs, tmp_path: Path) -> None:
    needs("litellm")
    with harmony_server() as server, systems.litellm(tmp_path / "gateway", server) as url:
        (tmp_path / "key").write_text(systems.KEY)
        place = {"base_url": url, "model": "llama", "api_key_file": str(tmp_path / "key")}
        file = _config(tmp_path, {**place, "canary": {"workload": "short", "timeout": "10s"}})
        file.write_text(file.read_text().replace("output_tokens: 32", "output_tokens: 32\n    api: chat"))
        refused = kneewatch("check", "-c", file)
        file.write_text(file.read_text().replace("  model: llama", "  model: llama\n  request: {omit: [ignore_eos]}"))
        done = kneewatch("check", "-c", file)
    assert refused.status == 1
    assert "Unexpected token 200002" in refused.out
    assert "set request.omit: [ignore_eos], since gpt-oss" in refused.out
    assert done.status == 0, done.out + done.err
    assert "70 + 11 tokens" in done.out


def test_without_the_pages_of_two_servers_a_router_is_named(needs: Needs, tmp_path: Path) -> None:
    needs("vllm-router")
    with (
        Sim(tmp_path / "a", "tiny") as one,
        Sim(tmp_path / "b", "tiny") as other,
        systems.vllm_router(tmp_path / "gateway", one.base_url, other.base_url) as url,
    ):
        done = kneewatch("ramp", "-c", _config(tmp_path, {"base_url": url}), *_LEVELS)
    assert done.status == 1
    assert "several_servers" in done.out


def test_the_page_of_the_production_stacks_router_is_no_servers(needs: Needs, tmp_path: Path) -> None:
    needs("production-stack")
    with (
        Sim(tmp_path / "a", "tiny") as one,
        Sim(tmp_path / "b", "tiny") as other,
        systems.production_stack(tmp_path / "gateway", one.base_url, other.base_url) as url,
    ):
        done = kneewatch("ramp", "-c", _config(tmp_path, {"base_url": url}), *_LEVELS)
    assert done.status == 2
    assert "no load was sent" in done.err
    assert "the server does not report its queue" in done.err


def test_the_canary_of_the_shipped_example_passes_transformers(needs: Needs, tmp_path: Path) -> None:
    needs("transformers")
    target = _shipped("transformers")
    with SETUPS["Hugging Face `transformers serve`"][1](tmp_path / "system") as placed:
        place = {"base_url": placed.url, "model": placed.target["model"]}
        asked = {"objectives": "default", "canary": {"workload": "short", "timeout": "30s"}}
        done = kneewatch("check", "-c", _config(tmp_path, {**target, **place, **asked}))
        fields = {key: value for key, value in target["request"].items() if key != "omit"}
        refused = kneewatch("check", "-c", _config(tmp_path, {**target, **place, **asked, "request": fields}))
    assert done.status == 0, done.out + done.err
    assert refused.status == 2
    assert "HTTP 422" in refused.err
    assert "set request.omit: [ignore_eos]" in refused.err


def test_envoys_default_timeout_is_a_broken_stream(needs: Needs, tmp_path: Path) -> None:
    needs("envoy")
    gateway = tmp_path / "gateway"
    with Sim(tmp_path / "sim", "tiny") as sim, systems.envoy(gateway, sim.base_url, timeout="1s") as url:  # not 15 s
        file = _config(tmp_path, {"base_url": url})
        file.write_text(file.read_text().replace("output_tokens: 32", "output_tokens: 512"))
        done = kneewatch("check", "-c", file)
    assert done.status == 1
    assert "broken_stream" in done.out


def test_dynamos_flags_are_those_of_its_worker(needs: Needs, tmp_path: Path) -> None:
    needs("dynamo")
    with SETUPS["NVIDIA Dynamo (frontend and mocker)"][1](tmp_path / "system") as placed:
        found = kneewatch("doctor", "--base-url", placed.url)
    assert "max_num_seqs" in found.out, found.out + found.err
