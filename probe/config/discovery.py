"""The `discover` section of a target, and its checks.

An entry with `discover` has no `base_url`: it is a template for one target per discovered server.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    field_serializer,
)

from probe.config.path_checks import authorities_problem, file_problem
from probe.config.schema import either
from probe.config.types import ConfigSection, Interval, NotASwitch, Url, default_duration

_KEY = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_SET = rf"\s+(in|notin)\s*\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\)"
_REQUIREMENT = rf"\s*(!\s*{_KEY}|{_KEY}(\s*(=|==|!=)\s*{_VALUE}|{_SET})?)\s*"
_SELECTOR = re.compile(f"{_REQUIREMENT}(,{_REQUIREMENT})*")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_HOST = re.compile(r"(?=.{1,253}\.?$)[A-Za-z0-9_]([-A-Za-z0-9_]{0,62})(\.[A-Za-z0-9_][-A-Za-z0-9_]{0,62})*\.?")
_MAX_PORT = 65535
_URL: TypeAdapter[str] = TypeAdapter(Url)
_FILES = (".yml", ".yaml", ".json")


def _object_name(text: str) -> str:
    if not _OBJECT.fullmatch(text):
        raise ValueError("expected a Kubernetes object name: at most 63 of a-z, 0-9 and '-'")
    return text


def _selector(text: str) -> str:
    """Check a label selector. It must not be empty, because that selects every pod of the namespace."""
    if not _SELECTOR.fullmatch(text):
        raise ValueError("expected a label selector such as 'app=qwen' or 'app in (qwen, llama), !canary'")
    return text


def _port(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_PORT:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and 0 < int(value) <= _MAX_PORT:
        return int(value)
    if isinstance(value, str) and _PORT_NAME.fullmatch(value):
        return value
    raise ValueError("expected a port number, or a port name of the container or the Service")


def _service(text: str) -> str:
    name, colon, port = text.partition(":")
    numbered = port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT
    if not _OBJECT.fullmatch(name) or (bool(colon) and not numbered):
        raise ValueError("expected a Service name, or NAME:PORT if its port differs from the pods'")
    return text


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("expected a DNS name such as qwen.serving.svc.cluster.local")
    return text


def _registry_url(text: str) -> str:
    """Check an address that may have a query."""
    address, question, query = text.partition("?")
    try:
        _URL.validate_python(address)
    except ValidationError:
        raise ValueError("expected an address such as http://registry/sd, without credentials") from None
    if "#" in query or not query.isprintable():
        raise ValueError("expected an address such as http://registry/sd?team=chat")
    return f"{address}{question}{query}"


def _files(text: str) -> str:
    path = PurePath(text)
    if path.suffix not in _FILES or "*" in str(path.parent):
        raise ValueError(f"expected files that end in {', '.join(_FILES)}, with '*' only in the last part of the path")
    return text


def _is_path(text: str) -> bool:
    return text.startswith("/") and urlsplit(text).path == text and text.isprintable() and " " not in text


def _path(text: str) -> str:
    """Check a path, without a trailing /v1, as in base_url."""
    if text and not _is_path(text):
        raise ValueError("expected a path such as /qwen")
    return text.rstrip("/").removesuffix("/v1")


def _metrics_path(text: str) -> str:
    if not _is_path(text):
        raise ValueError("expected a path such as /metrics")
    return text


ObjectName = Annotated[str, AfterValidator(_object_name), Field(title="Kubernetes name")]
Selector = Annotated[str, AfterValidator(_selector), Field(title="label selector")]
ServiceAddress = Annotated[str, AfterValidator(_service), Field(title="NAME or NAME:PORT")]
HostName = Annotated[str, AfterValidator(_host), Field(title="DNS name")]
FilePattern = Annotated[str, AfterValidator(_files), Field(title="path")]
RegistryUrl = Annotated[str, AfterValidator(_registry_url), Field(title="address")]
UrlPath = Annotated[str, AfterValidator(_path), Field(title="URL path")]
MetricsPath = Annotated[str, AfterValidator(_metrics_path), Field(title="URL path")]
PortNumber = Annotated[int, Field(ge=1, le=_MAX_PORT), NotASwitch, Field(title="port")]
Port = Annotated[
    int | str,
    BeforeValidator(_port),
    WithJsonSchema(
        {
            "title": "port number or name",
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": _MAX_PORT}, {"type": "string"}],
            "examples": [8000, "http"],
        }
    ),
]


class KubernetesDiscovery(ConfigSection):
    """Pods of a namespace by their labels, or the endpoints of a Service."""

    namespace: ObjectName | None = None
    """Namespace of the pods or of the Service. Default: the pod's own, or the namespace of the kubeconfig context."""
    selector: Selector | None = None
    """Pod labels, in the syntax of `kubectl get pods -l`. This or `endpoints`."""
    endpoints: ObjectName | None = None
    """A Service; its EndpointSlices list the servers. This or `selector`."""
    port: Port
    """Port of the servers: a number, or a port name, of the container or with `endpoints` of the Service."""
    service: ServiceAddress | None = None
    """The Service in front of the pods, monitored as one more target; `NAME:PORT` if its port differs."""


class DnsDiscovery(ConfigSection):
    """The addresses of a DNS name. SRV records have their own ports."""

    name: HostName
    """DNS name with one address per server."""
    type: Literal["A", "AAAA", "SRV"] = "A"
    """Record type."""
    port: PortNumber | None = None
    """Port of the servers; SRV records have their own."""
    every: Interval = default_duration("30s")
    """Query interval; at least `1s`."""


class FileDiscovery(ConfigSection):
    """Target groups from files, in the format of Prometheus' file_sd."""

    files: Annotated[tuple[FilePattern, ...], Field(min_length=1)]
    """Target lists in the format of Prometheus' `file_sd`: paths that end in `.yml`, `.yaml` or `.json`, with `*` in
    the last part if wanted.
    """
    every: Interval = default_duration("15s")
    """How often the files are checked; at least `1s`."""


class HttpDiscovery(ConfigSection):
    """Target groups over HTTP, in the format of Prometheus' http_sd."""

    url: RegistryUrl
    """Address of a target list in the format of Prometheus' `http_sd`."""
    token_file: Path | None = None
    """File with the bearer token; read again for every request. Must be readable at startup."""
    ca_file: Path | None = None
    """CA certificates to trust, as PEM. Must be readable at startup."""
    every: Interval = default_duration("60s")
    """Request interval; at least `1s`."""

    @field_serializer("url")
    def _without_query(self, url: str) -> str:
        """Hide the query where the configuration is shown: it may contain a token."""
        address, question, _ = url.partition("?")
        return f"{address}?(hidden)" if question else address


KINDS = ("kubernetes", "dns", "file", "http")


class DiscoverConfig(ConfigSection):
    """One kind of discovery, how to form a server's address, and how many servers there must be."""

    kubernetes: KubernetesDiscovery | None = None
    """Pods by their labels, or the endpoints of a Service."""
    dns: DnsDiscovery | None = None
    """The addresses of a DNS name."""
    file: FileDiscovery | None = None
    """Target lists in files."""
    http: HttpDiscovery | None = None
    """Target lists over HTTP."""
    scheme: Literal["http", "https"] = "http"
    """Scheme of the discovered servers."""
    path: UrlPath = ""
    """Path that is appended to each server's address, such as `/qwen`."""
    metrics_path: MetricsPath | None = None
    """Path of the metrics, if it is not `path` + `/metrics` (or, with `engine`, that engine's path). A complete path;
    `path` is not put in front.
    """
    min_targets: Annotated[int, Field(ge=0), NotASwitch] = 1
    """The alert [KneewatchNothingFound](runbooks/KneewatchNothingFound.md) fires if fewer servers than this are found
    for ten minutes, after there were enough; `0` if the service may scale to zero.
    """

    @property
    def kinds(self) -> list[str]:
        """Return the kinds that are set; exactly one in a valid configuration."""
        return [kind for kind in KINDS if getattr(self, kind) is not None]


def discover_problems(at: str, discover: DiscoverConfig, written: Callable[[str], str]) -> Iterator[str]:
    """Yield problems, each with the key's path below the target; `at` is the section's.

    `written` returns a key's value as in the file.
    """
    if not discover.kinds:
        yield f"{at}: no source is set; add {either(KINDS)}"
    elif len(discover.kinds) > 1:
        yield f"{at}: {' and '.join(discover.kinds)} are all set; keep one, and use another target for each other"
    for problems in (_pod_problems, _dns_problems, _http_problems):
        yield from (f"{at}.{line}" for line in problems(discover, lambda keys: written(f"{at}.{keys}")))


def replica_problems(discover: DiscoverConfig) -> Iterator[str]:
    """Yield problems of a section that finds the replicas behind one address."""
    if discover.kubernetes is not None and discover.kubernetes.service is not None:
        yield "metrics_discovery.kubernetes.service: would be read as one more replica; remove it"


def _pod_problems(discover: DiscoverConfig, written: Callable[[str], str]) -> Iterator[str]:
    if (pods := discover.kubernetes) is None:
        return
    if importlib.util.find_spec("lightkube") is None:
        yield "kubernetes: the package lightkube is not installed; pip install 'kneewatch[k8s]'"
    if pods.selector is None and pods.endpoints is None:
        yield "kubernetes: no selection is set; add selector (pod labels) or endpoints (a Service name)"
    elif pods.selector is not None and pods.endpoints is not None:
        yield "kubernetes: selector and endpoints are both set; keep one, and add another target for the other"
    if pods.service is not None and isinstance(pods.port, str) and ":" not in pods.service:
        yield (
            f"kubernetes.service: {written('kubernetes.service')} has no port, and the pods' port is a name;"
            f" write the Service's port, such as {pods.service}:80"
        )


def _dns_problems(discover: DiscoverConfig, _: Callable[[str], str]) -> Iterator[str]:
    if (dns := discover.dns) is None:
        return
    if dns.type == "SRV" and dns.port is not None:
        yield "dns.port: SRV records have their own ports; remove it"
    elif dns.type != "SRV" and dns.port is None:
        yield f"dns.port: is missing, and {dns.type} records have no port; add it"


def _http_problems(discover: DiscoverConfig, written: Callable[[str], str]) -> Iterator[str]:
    if (http := discover.http) is None:
        return
    if http.token_file and (words := file_problem(http.token_file)):
        yield f"http.token_file: {written('http.token_file')} {words}"
    if http.ca_file and (words := authorities_problem(http.ca_file)):
        yield f"http.ca_file: {written('http.ca_file')} {words}"
