"""The shipped configurations: each loads, and each shows what it is there for."""

from pathlib import Path

import deployed
import pytest

from probe.config import load_config

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(set((ROOT / "deploy/examples").glob("*")) - {ROOT / "deploy/examples/alertmanager.yml"})
SHIPPED = [
    *EXAMPLES,
    *sorted((ROOT / "deploy/kustomize").rglob("kneewatch.yml")),
    ROOT / "deploy/compose/kneewatch.yml",
]


def test_the_examples_are_there() -> None:
    assert {"kneewatch.yml", "multi.yml", "sidecar.yml"} <= {file.name for file in EXAMPLES}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_shipped_configuration_loads_and_schedules_step_up_load(file: Path, tmp_path: Path) -> None:
    config = deployed.load(file.read_text(), tmp_path)  # with the files of its keys, which a Secret brings
    assert any(target.capacity.mode == "verify" for target in config.targets)


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
