"""The patch for probes that docs/operations.md gives to copy."""

import re
import subprocess
from pathlib import Path
from typing import Any

import checks
import pytest
import yaml

PAGE = Path(__file__).resolve().parents[2] / "docs/operations.md"


@pytest.fixture(scope="module")
def blocks() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)]


@pytest.mark.kubectl
def test_the_patch_for_probes_is_one_that_kubernetes_accepts(
    kubectl: str, deploy: Path, tmp_path: Path, blocks: list[dict[str, Any]]
) -> None:
    (patch,) = (block for block in blocks if block.get("kind") == "Deployment")
    base = tmp_path / "base"
    base.mkdir()
    for file in (deploy / "kustomize/base").iterdir():
        (base / file.name).write_text(file.read_text())
    # As text: a null that YAML has read and written again is the same, but it is the page's lines that are copied.
    (text,) = (t for t in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL) if "tcpSocket" in t)
    (base / "probes.yaml").write_text(text)
    kustomization = base / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text() + "\npatches:\n  - path: probes.yaml\n")
    done = subprocess.run([kubectl, "kustomize", str(base)], capture_output=True, text=True, timeout=60, check=True)
    (deployment,) = checks.of(list(yaml.safe_load_all(done.stdout)), patch["kind"])
    checks.check(deployment)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["tcpSocket"] == {"port": "http"}
        assert "httpGet" not in container[probe]
        assert container[probe]["periodSeconds"]
