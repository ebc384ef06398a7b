"""Where the deployment files are, and what reads them."""

import subprocess
from collections.abc import Callable
from copy import deepcopy
from functools import cache
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

    @cache
    def once(folder: str) -> dict[str, dict[str, Any]]:
        command = [kubectl, "kustomize", str(deploy / "kustomize" / folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, f"kustomize warns: {done.stderr}"
        resources = list(yaml.safe_load_all(done.stdout))
        by_kind = {resource["kind"]: resource for resource in resources}
        assert len(by_kind) == len(resources)
        return by_kind

    return lambda folder: deepcopy(once(folder))
