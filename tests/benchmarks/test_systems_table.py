"""Each system of docs/systems.md is in the example configuration."""

from pathlib import Path

from probe.config.config_file import load_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/systems.md").read_text()


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
