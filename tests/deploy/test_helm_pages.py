"""How the chart makes the pages reachable from outside, and the Service known to the Prometheus Operator."""

from pathlib import Path
from typing import Any

import checks
import helm_python
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from chart_values import LOCAL, SHAPES, Values, complete, rendered

URL = "https://kneewatch.example.org"
GATEWAY: Values = {"enabled": True, "parentRefs": [{"name": "public"}]}


def only(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (manifest,) = checks.of(found, kind)
    return manifest


def test_nothing_is_reachable_from_outside_unless_asked_for(chart: helm_python.Chart) -> None:
    kinds = {manifest["kind"] for manifest in rendered(chart, {"externalUrl": URL})}
    assert kinds & {"Ingress", "HTTPRoute", "ServiceMonitor", "PodMonitor"} == set()


def test_an_ingress_leads_to_the_service(chart: helm_python.Chart) -> None:
    found = rendered(chart, SHAPES["ingress"])
    ingress = only(found, "Ingress")
    assert ingress["spec"] == {
        "ingressClassName": "nginx",
        "tls": [{"hosts": ["kneewatch.example.org"], "secretName": "kneewatch-tls"}],
        "rules": [
            {
                "host": "kneewatch.example.org",
                "http": {
                    "paths": [
                        {
                            "path": "/",
                            "pathType": "Prefix",
                            "backend": {"service": {"name": "kneewatch", "port": {"name": "http"}}},
                        }
                    ]
                },
            }
        ],
    }
    assert ingress["metadata"]["annotations"] == {"cert-manager.io/cluster-issuer": "letsencrypt"}
    assert only(found, "Service")["metadata"]["name"] == "kneewatch"


def test_a_route_leads_to_the_port_of_the_service(chart: helm_python.Chart) -> None:
    found = rendered(chart, SHAPES["gateway"])
    route = only(found, "HTTPRoute")
    assert route["spec"] == {
        "parentRefs": [{"name": "public", "namespace": "gateways"}],
        "hostnames": ["kneewatch.example.org"],
        "rules": [{"backendRefs": [{"name": "kneewatch", "port": 80}]}],
    }
    (service,) = (s for s in checks.of(found, "Service") if s["metadata"]["name"] == "kneewatch")
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]


def test_an_unknown_field_of_a_route_is_found(chart: helm_python.Chart) -> None:
    route = only(rendered(chart, SHAPES["gateway"]), "HTTPRoute")
    route["spec"]["parentReferences"] = route["spec"].pop("parentRefs")
    with pytest.raises(jsonschema.ValidationError, match="parentReferences"):
        checks.check(route)


@pytest.mark.parametrize("written", [{}, {"web_external_url": URL}])
def test_browsers_and_alerts_know_the_address(chart: helm_python.Chart, written: Values, tmp_path: Path) -> None:
    config = checks.configuration(rendered(chart, {"externalUrl": URL, "config": written}), tmp_path)
    assert config.web_external_url == URL
    assert "kneewatch.example.org" in config.page_hosts


def test_without_an_address_the_configuration_has_none(chart: helm_python.Chart) -> None:
    text = only(rendered(chart, {}), "ConfigMap")["data"]["kneewatch.yml"]
    assert "web_external_url" not in yaml.safe_load(text)


@pytest.mark.parametrize("shape", ["ingress", "gateway"])
def test_a_service_monitor_selects_each_pod_once(chart: helm_python.Chart, shape: str) -> None:
    found = rendered(chart, SHAPES[shape])
    spec = only(found, "ServiceMonitor")["spec"]
    labels = spec["selector"]["matchLabels"]
    services = [s for s in checks.of(found, "Service") if checks.selects(labels, s["metadata"]["labels"])]
    assert [service["metadata"]["name"] for service in services] == ["kneewatch"]
    assert spec["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "30s"}]


def test_both_monitors_scrape_alike(chart: helm_python.Chart) -> None:
    monitor = {"enabled": True, "interval": "15s", "endpoint": {"scrapeTimeout": "10s"}}
    web = {"config": {"web_config_file": "/etc/kneewatch-web/web.yml"}, "web": {"secretName": "web", "tls": True}}
    by_pod = only(rendered(chart, {"podMonitor": monitor, **web}), "PodMonitor")
    by_service = only(rendered(chart, {"serviceMonitor": monitor, **web}), "ServiceMonitor")
    assert by_pod["spec"]["podMetricsEndpoints"] == by_service["spec"]["endpoints"]
    assert by_service["spec"]["endpoints"][0]["scheme"] == "https"
    plain = only(rendered(chart, {"podMonitor": {"enabled": True}}), "PodMonitor")
    assert [endpoint["interval"] for endpoint in plain["spec"]["podMetricsEndpoints"]] == ["30s"], (
        "at most a minute: docs/dashboards.md"
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"ingress": {"enabled": True}, "externalAuthentication": True}, "externalUrl: not set"),
        ({"httpRoute": GATEWAY, "externalAuthentication": True}, "externalUrl: not set"),
        ({"ingress": {"enabled": True}, "externalUrl": URL}, "without authentication"),
        ({"httpRoute": GATEWAY, "externalUrl": URL}, "without authentication"),
        ({"externalUrl": URL, "config": {"web_external_url": "https://other"}}, "differs from config.web_external_url"),
        ({"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}, "scrape each pod twice"),
        (
            {
                "config": {"targets": [LOCAL]},
                "sidecar": {"enabled": True, "podLabels": {"app": "vllm"}},
                "serviceMonitor": {"enabled": True},
            },
            "there is no Service",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(chart: helm_python.Chart, values: Values, says: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=says):
        rendered(chart, values)


@pytest.mark.parametrize(
    "values",
    [
        {"externalUrl": "kneewatch.example.org"},
        {"externalUrl": URL + "/kneewatch"},
        {"httpRoute": {"enabled": True, "parentRefs": []}},
        {"httpRoute": {"enabled": True, "parentRefs": [{"namespace": "gateways"}]}},
        {"ingress": {"enabled": True, "host": "a"}},
    ],
)
def test_the_schema_refuses(chart: helm_python.Chart, values: Values) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(values)


def notes(chart: helm_python.Chart, values: Values) -> str:
    files = chart.render(complete(values), name="kneewatch", namespace="monitoring")
    (text,) = (text for path, text in files.items() if path.endswith("NOTES.txt"))
    return text


def test_the_notes_have_the_address_and_what_is_left_to_do(chart: helm_python.Chart) -> None:
    assert URL in notes(chart, SHAPES["ingress"])
    assert "NetworkPolicy blocks" not in notes(chart, SHAPES["ingress"])
    assert "NetworkPolicy blocks" in notes(chart, SHAPES["gateway"])
    assert "status 421" in notes(chart, {"existingConfigMap": "mine", "externalUrl": URL})
    assert "status 421" not in notes(chart, SHAPES["gateway"])
