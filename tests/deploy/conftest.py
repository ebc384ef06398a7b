"""Where the deployment files are, and what reads them."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import pytest
from chart_values import SHAPES, kustomized, rendered

ROOT = Path(__file__).resolve().parents[2]
Manifests = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def deploy() -> Path:
    return ROOT / "deploy"


@pytest.fixture(scope="session")
def manifests(kubectl: str, deploy: Path) -> Manifests:
    """Return what `kubectl apply -k` would send for a folder of deploy/kustomize."""
    once = cache(lambda folder: kustomized(kubectl, deploy / "kustomize" / folder))
    return lambda folder: deepcopy(once(folder))


@pytest.fixture(scope="session")
def chart_folder(deploy: Path) -> Path:
    return deploy / "helm/kneewatch"


@pytest.fixture(scope="session")
def chart(chart_folder: Path) -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(chart_folder) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def shaped(chart: helm_python.Chart) -> Manifests:
    """Return what the chart renders in a shape."""
    once = cache(lambda shape: rendered(chart, SHAPES[shape]))
    return lambda shape: deepcopy(once(shape))
