"""Types of values in the `discover` section: names of Kubernetes and DNS, paths, ports. See types.py."""

import re
from pathlib import PurePath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, WithJsonSchema

from probe.config.addresses import Url
from probe.config.types import Duration, NotASwitch

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
Interval = Annotated[Duration, AfterValidator(_a_second_at_least)]
