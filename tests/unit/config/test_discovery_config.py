"""The `discover` and `lease` sections: what they take, and the one line for what they do not."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from probe.config.config_file import config_from
from probe.config.discovery import DiscoverConfig, discover_problems
from probe.config.messages import value_problems
from probe.discovery.dns_sd import DnsSource
from probe.discovery.file_sd import FileSource
from probe.discovery.http_sd import HttpSource
from probe.discovery.kubernetes_sd import KubernetesSource
from probe.discovery.manager import source
from probe.discovery.types import Discovery

PODS = {"selector": "app=qwen", "port": 8000}
SLICES = {"endpoints": "qwen", "port": "http"}
FILES = {"files": ["/etc/kneewatch/targets/*.yml"]}


def problems(**section: Any) -> list[str]:
    """Return the problems as `config check` reports them."""
    try:
        config = DiscoverConfig.model_validate(section)
    except ValidationError as error:
        return [str(problem) for problem in value_problems(error, section, DiscoverConfig)]
    return list(discover_problems("discover", config, lambda key: f"<{key}>"))


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ({"kubernetes": PODS | {"namespace": "serving", "service": "qwen"}}, KubernetesSource),
        (
            {"kubernetes": PODS | {"port": "http", "service": "qwen:80"}, "scheme": "https", "path": "/qwen"},
            KubernetesSource,
        ),
        ({"kubernetes": SLICES | {"service": "qwen:80"}, "metrics_path": "/metrics"}, KubernetesSource),
        ({"dns": {"name": "qwen.serving.svc.cluster.local", "port": 8000}}, DnsSource),
        ({"dns": {"name": "_http._tcp.qwen.serving.svc.cluster.local.", "type": "SRV"}}, DnsSource),
        ({"file": FILES}, FileSource),
        ({"http": {"url": "https://registry:8443/sd?team=chat", "every": "5m"}}, HttpSource),
    ],
)
def test_every_kind_is_one_source(section: dict[str, Any], kind: type[Discovery]) -> None:
    assert problems(**section) == []
    assert isinstance(source(DiscoverConfig.model_validate(section), print), kind)


@pytest.mark.parametrize(
    "selector",
    [
        "app=qwen",
        "app==qwen,tier!=canary",
        "app in (qwen, llama), !canary",
        "a.b/c notin (d)",
        "exists",
        "x=",
        " app = q ",
    ],
)
def test_selectors_as_kubectl_takes_them(selector: str) -> None:
    assert problems(kubernetes=PODS | {"selector": selector}) == []


@pytest.mark.parametrize("selector", ["", " ", "app=qwen,", "app in qwen", "app=a b", "-app=x", "app=x&limit=1", "a>1"])
def test_an_invalid_selector_is_refused(selector: str) -> None:
    (line,) = problems(kubernetes=PODS | {"selector": selector})
    assert line.startswith("kubernetes.selector: expected a label selector such as 'app=qwen'")


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({}, "discover: no source is set; add kubernetes, dns, file or http"),
        (
            {"file": FILES, "kubernetes": PODS},
            "discover: kubernetes and file are all set; keep one, and use another target for each other",
        ),
        (
            {"kubernetes": {"port": 8000}},
            "discover.kubernetes: no selection is set; add selector (pod labels) or endpoints (a Service name)",
        ),
        (
            {"kubernetes": PODS | SLICES},
            "discover.kubernetes: selector and endpoints are both set; keep one, and add another target for the",
        ),
        ({"kubernetes": SLICES | {"endpoints": ""}}, "kubernetes.endpoints: expected a Kubernetes object name"),
        ({"kubernetes": SLICES | {"endpoints": "a=b"}}, "kubernetes.endpoints: expected a Kubernetes object name"),
        (
            {"kubernetes": SLICES | {"service": "qwen"}},
            "discover.kubernetes.service: <discover.kubernetes.service> has no port, and the pods' port is a name",
        ),
        (
            {"kubernetes": PODS | {"labels": "x"}},
            "kubernetes.labels: unknown key; expected one of endpoints, namespace",
        ),
        ({"kubernetes": PODS | {"port": 0}}, "kubernetes.port: expected a port number, or a port name"),
        ({"kubernetes": PODS | {"port": True}}, "kubernetes.port: expected a port number, or a port name"),
        ({"kubernetes": PODS | {"port": "HTTP"}}, "kubernetes.port: expected a port number, or a port name"),
        ({"kubernetes": PODS | {"namespace": "a/b"}}, "kubernetes.namespace: expected a Kubernetes object name"),
        (
            {"kubernetes": PODS | {"service": "qwen:http"}},
            "kubernetes.service: expected a Service name, or NAME:PORT",
        ),
        (
            {"kubernetes": PODS | {"port": "http", "service": "qwen"}},
            "discover.kubernetes.service: <discover.kubernetes.service> has no port, and the pods' port is a name",
        ),
        ({"dns": {"name": "qwen"}}, "discover.dns.port: is missing, and A records have no port; add it"),
        (
            {"dns": {"name": "qwen", "type": "SRV", "port": 1}},
            "discover.dns.port: SRV records have their own ports; remove it",
        ),
        ({"dns": {"name": "http://qwen", "port": 1}}, "dns.name: expected a DNS name such as"),
        ({"dns": {"name": "qwen", "port": 1, "every": "100ms"}}, "dns.every: expected at least 1s, got '100ms'"),
        ({"file": {"files": []}}, "file.files: expected at least one entry"),
        ({"file": {"files": ["/etc/targets.txt"]}}, "file.files[0]: expected files that end in .yml, .yaml, .json"),
        ({"file": {"files": ["/etc/*/a.yml"]}}, "file.files[0]: expected files that end in .yml, .yaml, .json"),
        ({"http": {"url": "registry/sd"}}, "http.url: expected an address such as http://registry/sd"),
        ({"http": {"url": "http://me:secret@registry/sd"}}, "http.url: expected an address such as http://registry/sd"),
        (
            {"http": {"url": "http://registry/sd", "token_file": "/nowhere/token"}},
            "discover.http.token_file: <discover.http.token_file> cannot be read; create it, or fix the path",
        ),
        (
            {"http": {"url": "http://registry/sd", "ca_file": "/nowhere/ca"}},
            "discover.http.ca_file: <discover.http.ca_file> cannot be read; create it, or fix the path",
        ),
        ({"file": FILES, "path": "qwen"}, "path: expected a path such as /qwen, got 'qwen'"),
        ({"file": FILES, "path": "/qwen?x"}, "path: expected a path such as /qwen"),
        ({"file": FILES, "metrics_path": "metrics"}, "metrics_path: expected a path such as /metrics, got 'metrics'"),
        ({"file": FILES, "metrics_path": ""}, "metrics_path: expected a path such as /metrics, got ''"),
        ({"file": FILES, "metrics_path": "/metrics?x=y"}, "metrics_path: expected a path such as /metrics"),
        ({"file": FILES, "metrics_path": "//elsewhere/metrics"}, "metrics_path: expected a path such as /metrics"),
        ({"file": FILES, "scheme": "ftp"}, "scheme: expected 'http' or 'https', got 'ftp'"),
    ],
)
def test_a_discovery_error_is_one_line_with_its_fix(section: dict[str, Any], line: str) -> None:
    (found,) = problems(**section)
    assert found.startswith(line)
    assert "secret" not in found


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (line,) = problems(kubernetes=PODS)
    assert line == "discover.kubernetes: the package lightkube is not installed; pip install 'kneewatch[k8s]'"
    assert problems(file=FILES) == []


def test_a_path_is_as_in_base_url() -> None:
    assert DiscoverConfig.model_validate({"path": "/qwen/v1/"}).path == "/qwen"
    assert DiscoverConfig.model_validate({"path": "/"}).path == ""


@pytest.mark.parametrize(
    ("base_url", "metrics_url"),
    [
        ("http://10.0.0.1:8080/openai", "http://10.0.0.1:8080/metrics"),
        ("https://[fd00::1]:8080", "https://[fd00::1]:8080/metrics"),
    ],
)
def test_a_metrics_path_is_the_whole_path_on_the_server_that_was_found(base_url: str, metrics_url: str) -> None:
    discover = {"dns": {"name": "qwen", "port": 8080}, "metrics_path": "/metrics"}
    (template,) = config_from({"targets": [{"name": "qwen", "discover": discover}]}, "test").templates
    assert template.target("a", base_url).metrics_url == metrics_url
    discover.pop("metrics_path")
    (template,) = config_from({"targets": [{"name": "qwen", "discover": discover}]}, "test").templates
    assert template.target("a", base_url).metrics_url is None


@pytest.mark.slow
def test_nothing_of_an_extra_is_imported_before_it_is_needed() -> None:
    """A monitor without discovery starts without what discovery needs."""
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    code = (
        "import sys, probe.discovery.manager, probe.capacity.run.lease_lock;"
        "print(sorted({'lightkube', 'httpx2', 'dns'} & {name.partition('.')[0] for name in sys.modules}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(r"\[\]\s*", said.stdout)
