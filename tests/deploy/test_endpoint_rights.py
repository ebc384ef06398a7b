"""Targets with `endpoints`: EndpointSlices may be read, and pods only where a selector asks for them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checks
import helm_python
import pytest
import yaml
from chart_values import FOUND, rendered

SLICES = {
    "name": "outside",
    "discover": {"kubernetes": {"namespace": "serving", "endpoints": "qwen", "port": "http"}},
}
ASKED = {"list", "watch"}
LEASES = {("monitoring", "leases"): {"get", "list", "create", "update", "delete"}}


def test_the_chart_gives_each_namespace_what_its_targets_ask_for(chart: helm_python.Chart) -> None:
    here = {"name": "here", "discover": {"kubernetes": {"endpoints": "llama", "port": 8000}}}
    pods = {"namespace": "other", "selector": "app=qwen", "port": 8000}
    elsewhere = {"name": "elsewhere", "discover": {"kubernetes": pods}}
    values = {"config": {"targets": [SLICES, here, elsewhere], "lease": {}}}
    assert checks.rights(rendered(chart, values)) == LEASES | {
        ("serving", "endpointslices"): ASKED,
        ("monitoring", "endpointslices"): ASKED,
        ("other", "pods"): ASKED,
    }
    both = rendered(chart, {"config": {"targets": [FOUND, SLICES], "lease": {}}})
    assert checks.rights(both) == LEASES | {("serving", "pods"): ASKED, ("serving", "endpointslices"): ASKED}
    for manifest in both:
        checks.check(manifest)


def test_the_chart_lets_it_find_the_replicas_behind_an_address(chart: helm_python.Chart) -> None:
    router = {"name": "router", "base_url": "http://router", "metrics_discovery": SLICES["discover"]}
    assert checks.rights(rendered(chart, {"config": {"targets": [router]}})) == {("serving", "endpointslices"): ASKED}


@pytest.mark.kubectl
def test_the_component_gives_the_same_rights_as_the_chart(
    deploy: Path, tmp_path: Path, chart: helm_python.Chart, manifests: Callable[[str], list[dict[str, Any]]]
) -> None:
    kustomize = Path(os.path.relpath(deploy / "kustomize", tmp_path))
    names = {
        "resources": [kustomize / "base"],
        "components": [kustomize / "components/discovery", kustomize / "components/discovery-endpoints"],
    }
    ours = {key: [str(path) for path in paths] for key, paths in names.items()}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(ours))
    found = manifests(str(tmp_path))
    (role,) = (role for role in checks.of(found, "Role") if role["metadata"]["name"] == "kneewatch-discovery")
    checks.check(role)
    with_chart = rendered(chart, {"config": {"targets": [SLICES], "lease": {}}})
    assert checks.rights(found) == checks.rights(with_chart) == LEASES | {("serving", "endpointslices"): ASKED}
