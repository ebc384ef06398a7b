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

from probe.config.addresses import Url
from probe.config.path_checks import authorities_problem, file_problem
from probe.config.types import ConfigSection, Duration, NotASwitch, default_duration

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


def _a_second_at_least(seconds: float) -> float:
    if seconds < 1:
        raise ValueError("expected at least 1s")
    return seconds


ObjectName = Annotated[str, AfterValidator(_object_name)]
Selector = Annotated[str, AfterValidator(_selector)]
ServiceAddress = Annotated[str, AfterValidator(_service)]
HostName = Annotated[str, AfterValidator(_host)]
FilePattern = Annotated[str, AfterValidator(_files)]
RegistryUrl = Annotated[str, AfterValidator(_registry_url)]
UrlPath = Annotated[str, AfterValidator(_path)]
MetricsPath = Annotated[str, AfterValidator(_metrics_path)]
PortNumber = Annotated[int, Field(ge=1, le=_MAX_PORT), NotASwitch]
Port = Annotated[
    int | str,
    BeforeValidator(_port),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": _MAX_PORT}, {"type": "string"}],
            "examples": [8000, "http"],
        }
    ),
]
Interval = Annotated[Duration, AfterValidator(_a_second_at_least)]


class KubernetesDiscovery(ConfigSection):
    """Pods of a namespace by their labels, or the endpoints of a Service.

    `namespace` None: the pod's own, or that of the kubeconfig context. `service`: the Service in front of the pods, as
    one more target, NAME or NAME:PORT.
    """

    namespace: ObjectName | None = None
    selector: Selector | None = None
    endpoints: ObjectName | None = None
    port: Port
    service: ServiceAddress | None = None


class DnsDiscovery(ConfigSection):
    """The addresses of a DNS name. SRV records have their own ports."""

    name: HostName
    type: Literal["A", "AAAA", "SRV"] = "A"
    port: PortNumber | None = None
    every: Interval = default_duration("30s")


class FileDiscovery(ConfigSection):
    """Target groups from files, in the format of Prometheus' file_sd."""

    files: Annotated[tuple[FilePattern, ...], Field(min_length=1)]
    every: Interval = default_duration("15s")


class HttpDiscovery(ConfigSection):
    """Target groups over HTTP, in the format of Prometheus' http_sd."""

    url: RegistryUrl
    token_file: Path | None = None
    ca_file: Path | None = None
    every: Interval = default_duration("60s")

    @field_serializer("url")
    def _without_query(self, url: str) -> str:
        """Hide the query where the configuration is shown: it may contain a token."""
        address, question, _ = url.partition("?")
        return f"{address}?(hidden)" if question else address


class DiscoverConfig(ConfigSection):
    """One kind of discovery, how to form a server's address, and how many servers there must be.

    `min_targets`: with fewer, an alert fires; 0 if the service may scale to zero.
    """

    kubernetes: KubernetesDiscovery | None = None
    dns: DnsDiscovery | None = None
    file: FileDiscovery | None = None
    http: HttpDiscovery | None = None
    scheme: Literal["http", "https"] = "http"
    path: UrlPath = ""
    metrics_path: MetricsPath | None = None
    min_targets: Annotated[int, Field(ge=0)] = 1

    @property
    def kinds(self) -> list[str]:
        """The kinds that are set; exactly one in a valid configuration."""
        kinds = {"kubernetes": self.kubernetes, "dns": self.dns, "file": self.file, "http": self.http}
        return [kind for kind, section in kinds.items() if section is not None]


def discover_problems(discover: DiscoverConfig, written: Callable[[str], str]) -> Iterator[str]:
    """Yield problems, each with the key's path below the target. `written` returns a key's value as in the file."""
    if not discover.kinds:
        yield "discover: no source is set; add kubernetes, dns, file or http"
    elif len(discover.kinds) > 1:
        yield f"discover: {' and '.join(discover.kinds)} are all set; keep one, and add another target for the other"
    for problems in (_pod_problems, _dns_problems, _http_problems):
        yield from (f"discover.{line}" for line in problems(discover, written))


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
            f"kubernetes.service: {written('discover.kubernetes.service')} has no port, and the pods' port is a name;"
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
        yield f"http.token_file: {written('discover.http.token_file')} {words}"
    if http.ca_file and (words := authorities_problem(http.ca_file)):
        yield f"http.ca_file: {written('discover.http.ca_file')} {words}"
