"""Where the deployment files are, and what reads them."""

import subprocess
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
Manifests = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def deploy() -> Path:
    return ROOT / "deploy"


@pytest.fixture(scope="session")
def manifests(kubectl: str, deploy: Path) -> Manifests:
    """Return what `kubectl apply -k` would send for a folder of deploy/kustomize."""

    @cache
    def once(folder: str) -> list[dict[str, Any]]:
        command = [kubectl, "kustomize", str(deploy / "kustomize" / folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, f"kustomize warns: {done.stderr}"
        return list(yaml.safe_load_all(done.stdout))

    return lambda folder: deepcopy(once(folder))


@pytest.fixture(scope="session")
def render(manifests: Manifests) -> Callable[[str], dict[str, dict[str, Any]]]:
    """Return the same by kind, for manifests with one object of each kind."""

    def by_kind(folder: str) -> dict[str, dict[str, Any]]:
        resources = manifests(folder)
        found = {resource["kind"]: resource for resource in resources}
        assert len(found) == len(resources)
        return found

    return by_kind


@pytest.fixture(scope="session")
def chart_folder(deploy: Path) -> Path:
    return deploy / "helm/kneewatch"


@pytest.fixture(scope="session")
def chart(chart_folder: Path) -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(chart_folder) as loaded:
        yield loaded
