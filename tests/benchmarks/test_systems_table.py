"""The table of docs/systems.md is that of the newest record, and each system of it is in the example configuration."""

import json
from pathlib import Path

from probe.config.config_file import load_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/systems.md").read_text()
RECORD = json.loads(max((ROOT / "benchmarks/results").glob("systems-*.json")).read_text())


def test_the_table_has_a_row_for_each_system_of_the_record() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and line.count(" | ") == 6]
    table = [[cell.strip("| ") for cell in row] for row in rows[1:]]
    parts = ("check", "load", "forecast", "users")
    assert table == [
        [each["system"], each["version"], each["date"]]
        + [each[part]["words"] if each[part]["works"] else f"no: {each[part]['words']}" for part in parts]
        for each in RECORD["rows"]
    ]


def test_the_example_is_a_configuration_with_a_target_for_each_system() -> None:
    names = {target.name for target in load_config(ROOT / "deploy/examples/systems.yml").targets}
    assert names == {
        "litellm",
        "router",
        "vllm-router",
        "production-stack",
        "envoy",
        "gateway",
        "behind-the-gateway",
        "kserve",
        "ray-serve",
        "llama-cpp",
        "dynamo",
        "transformers",
    }
    for title in (
        "LiteLLM",
        "vllm-router",
        "Envoy",
        "KServe",
        "Ray Serve",
        "llama.cpp",
        "Dynamo",
        "transformers serve",
    ):
        assert f"\n## {title}" in PAGE or any(title in line for line in PAGE.splitlines() if line.startswith("## "))
