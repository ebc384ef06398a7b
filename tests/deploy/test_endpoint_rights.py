"""Targets with `endpoints`: EndpointSlices may be read, and pods only where a selector asks for them."""

import checks
import helm_python
from chart_values import FOUND, SLICES, rendered

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


def test_the_chart_lets_it_find_the_exporters_of_the_gpus(chart: helm_python.Chart) -> None:
    exporters = {"kubernetes": {"namespace": "gpu-operator", "selector": "app=nvidia-dcgm-exporter"}}
    target = {**SLICES, "gpu": {"dcgm": exporters}}
    assert checks.rights(rendered(chart, {"config": {"targets": [target]}})) == {
        ("serving", "endpointslices"): ASKED,
        ("gpu-operator", "pods"): ASKED,
    }
    here = {**SLICES, "gpu": {"dcgm": {"kubernetes": {"selector": "app=nvidia-dcgm-exporter"}}}}
    assert checks.rights(rendered(chart, {"config": {"targets": [here]}}))["monitoring", "pods"] == ASKED


def test_the_chart_lets_it_find_the_replicas_behind_an_address(chart: helm_python.Chart) -> None:
    router = {"name": "router", "base_url": "http://router", "metrics_discovery": SLICES["discover"]}
    assert checks.rights(rendered(chart, {"config": {"targets": [router]}})) == {("serving", "endpointslices"): ASKED}
