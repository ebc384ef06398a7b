"""Types of configuration values: durations, names, numbers, schedules.

A validator raises ValueError("expected ..."); messages.py adds the key path and the value as written.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from probe.config.messages import did_you_mean
from probe.core.durations import DURATION_PATTERN, format_duration, parse_duration
from probe.core.load_windows import parse_window
from probe.core.provenance import facts_problem
from probe.core.redactor import SECRETS
from probe.core.server_address import server_key
from probe.core.snapshot import MAX_REPLICAS
from probe.gpu.peak_specs import NAMES, gpu

_MAX_PORT = 65535
_MAX_LABEL = 63
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"\.?{_LABEL}(\.{_LABEL})*", re.IGNORECASE | re.ASCII)
_LONGEST_HOST_NAME = 253
MAX_SOCKET_PATH = 107  # unix(7): sun_path, less the zero byte at its end


def _is_possible_host(host: str | None) -> bool:
    if not host or not host.isprintable() or " " in host:
        return False
    if ":" in host:  # urlsplit has checked the address between the brackets
        return True
    return all(0 < len(label) <= _MAX_LABEL for label in host.removesuffix(".").split("."))


def plain_url(text: str) -> str:
    """Return an http or https address without a slash at its end. Raises ValueError for any other."""
    if "@" in text:
        raise ValueError("expected an address without credentials; put them in api_key_file")
    expected = ValueError("expected an address such as http://llama-8b:8000")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise expected from None
    written = parts.netloc.rpartition("]")[2].partition(":")[2]
    if (
        parts.scheme not in ("http", "https")
        or parts.query
        or parts.fragment
        or not text.isprintable()
        or not _is_possible_host(parts.hostname)
        or (bool(written) and port is None)
        or port == 0
    ):
        raise expected
    return text.rstrip("/")


def _base_url(text: str) -> str:
    url = plain_url(text)
    return url.removesuffix("/v1") if urlsplit(url).path.endswith("/v1") else url


def _replicas(urls: tuple[str, ...]) -> tuple[str, ...]:
    if not 2 <= len(urls) <= MAX_REPLICAS:  # noqa: PLR2004 - a single page is metrics_url
        raise ValueError(f"expected the pages of 2 to {MAX_REPLICAS} replicas; use metrics_url for a single page")
    if len({server_key(url) for url in urls}) < len(urls):
        raise ValueError("expected the page of each replica once; remove the duplicate")
    return urls


def _proxy(text: str) -> str:
    if "@" in unquote(text):
        raise ValueError("expected a proxy address without credentials; put them in proxy_auth_file")
    expected = ValueError("expected an HTTP proxy such as http://proxy:3128")
    try:
        url = plain_url(text)
    except ValueError:
        raise expected from None
    if urlsplit(url).path:
        raise expected
    return url


def _external_url(text: str) -> str:
    # The address is in Prometheus' rules, where braces would be a template.
    if "@" not in text and "{" not in text:
        with suppress(ValueError):
            return plain_url(text)
    raise ValueError("expected an http or https address without credentials, such as https://kneewatch.example.org")


def _socket_path(path: Path) -> Path:
    if str(path) == "." or str(path).startswith("unix:") or "\0" in str(path):
        raise ValueError("expected a socket path such as /run/vllm.sock")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ValueError(f"expected a socket path of at most {MAX_SOCKET_PATH} bytes")
    return path


def _host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text) or len(text) > _LONGEST_HOST_NAME:
        raise ValueError("expected a host name without a port such as kneewatch.example, or .example for all below it")
    return text


def _listen(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        raise ValueError("expected HOST:PORT such as 127.0.0.1:9876")
    return text


Url = Annotated[str, AfterValidator(plain_url), Field(title="address")]
Replicas = Annotated[tuple[Url, ...], AfterValidator(_replicas)]
ExternalUrl = Annotated[str, AfterValidator(_external_url), Field(title="address")]
BaseUrl = Annotated[str, AfterValidator(_base_url), Field(title="address")]
Proxy = Annotated[str, AfterValidator(_proxy), Field(title="address")]
SocketPath = Annotated[Path, AfterValidator(_socket_path)]
HostName = Annotated[str, AfterValidator(_host_name), Field(title="host name")]
Listen = Annotated[str, AfterValidator(_listen), Field(title="HOST:PORT")]


_Step = TypeVar("_Step", int, float)
_SIZES = {"M": 1e6, "B": 1e9, "T": 1e12}
_MOST_PARAMETERS = 1e15
_MAKERS = re.compile(r"^((NVIDIA|AMD|Tesla|GeForce|Instinct)[ -])+", re.IGNORECASE)


def _remember(value: SecretStr) -> SecretStr:
    """Hide the value from now on in whatever Kneewatch says."""
    SECRETS.add(value.get_secret_value())
    return value


Secret = Annotated[SecretStr, AfterValidator(_remember)]


class ConfigSection(BaseModel):
    """A mapping in the file. Unknown keys are errors. The text below a key describes it, in the schema and the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)


# One or more of name="value", with any of PromQL's four operators, between commas.
_MATCHER = r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"\s*'
_MATCHERS = re.compile(f"{_MATCHER}(,{_MATCHER})*")


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("expected a duration above zero")
    return seconds


def _canary_interval(seconds: float) -> float:
    if seconds < 1:
        raise ValueError("expected at least 1s; for more load, use capacity")
    return seconds


def _a_second_at_least(seconds: float) -> float:
    if seconds < 1:
        raise ValueError("expected at least 1s")
    return seconds


def _a_minute_at_least(seconds: float) -> float:
    if seconds < 60:  # noqa: PLR2004
        raise ValueError("expected at least 1m")
    return seconds


def _matchers(text: str) -> str:
    if not _MATCHERS.fullmatch(text):
        raise ValueError('expected PromQL label matchers such as \'job="vllm",pod="llama-0"\'')
    return text


def _rising(steps: tuple[_Step, ...]) -> tuple[_Step, ...]:
    if list(steps) != sorted(set(steps)):
        raise ValueError("expected rising numbers")
    return steps


def _not_a_switch(value: object) -> object:
    """Refuse booleans: YAML's yes and true would pass as the number 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "expected a number")
    return value


def _name(text: str) -> str:
    if not _is_name(text):
        raise ValueError("expected a name of at most 63 letters, digits, '-', '_' or '.'")
    return text


def _server_name(text: str) -> str:
    group, slash, name = text.partition("/")
    if not (_is_name(group) and (not slash or _is_name(name))):
        raise ValueError("expected a name of at most 63 letters, digits, '-', '_' or '.', or GROUP/NAME")
    return text


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", text) is not None


def _cron(text: str) -> str:
    from probe.runtime.cron import cron_trigger  # noqa: PLC0415 - slow to import, and needed for a written schedule only

    try:
        cron_trigger(text)
    except ValueError as error:
        raise ValueError(
            "expected five cron fields (minute, hour, day, month, weekday) such as '0 4 * * *', or a nickname such as"
            f" @daily ({error})"
        ) from None
    return text


def _timezone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError("expected a time zone such as UTC or Europe/Berlin") from None
    return text


def _window(text: str) -> str:
    try:
        parse_window(text)
    except ValueError:
        raise ValueError("expected a window such as '01:00-05:00' or 'Sat,Sun 00:00-24:00'") from None
    return text


def _pattern(text: str) -> str:
    import regex  # noqa: PLC0415 - slow to import, and only a known answer needs it

    try:
        regex.compile(text)
    except regex.error as error:
        raise ValueError(f"expected a regular expression such as '(?i)paris' ({error})") from None
    return text


def _gpu(text: str) -> str:
    if gpu(text) is None:
        plain = _MAKERS.sub("", text)
        several = [name for name in NAMES if plain and name.lower().startswith(plain.lower())]
        hint = f" (which of {', '.join(several)}?)" if several else did_you_mean(plain, NAMES)
        raise ValueError(f"expected a GPU listed in docs/results.md{hint}; if yours is not there, remove the key")
    return text


def _engine(text: str) -> str:
    if text == "auto":
        return text
    from probe.scrape import engines  # noqa: PLC0415 - a fifth of a second of --help, for what few write

    if text not in engines.NAMES:
        hint = did_you_mean(text, engines.NAMES)
        raise ValueError(f"expected auto or one of {', '.join(engines.NAMES)}{hint}")
    return text


def _parameters(value: object) -> float:
    """Return a number of parameters from 8B, 700M or 8e9 (which YAML reads as text)."""
    text = value.strip() if isinstance(value, str) else repr(value)
    size = _SIZES.get(text[-1:].upper())
    try:
        count = float(text[:-1] if size else text) * (size or 1.0)
    except ValueError:
        count = 0.0
    if not min(_SIZES.values()) <= count <= _MOST_PARAMETERS:
        raise ValueError("expected a number of parameters such as 8B or 8e9")
    return count


def _switched_off(value: object) -> object:
    """Turn false into "off": YAML reads an unquoted `off` as false."""
    return "off" if value is False else value


def arm(value: object) -> str:
    """Return which arm of "a plain value or a mapping" is meant, so that errors concern only that arm."""
    return "mapping" if isinstance(value, dict | BaseModel) else "plain"


def default_duration(text: str) -> Any:  # noqa: ANN401 - what pydantic's Field gives
    """Return a field with a default as text, so that the schema shows it that way."""
    return Field(text, validate_default=True)


NotASwitch = BeforeValidator(_not_a_switch)
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    AfterValidator(_positive),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(
        {"title": "duration", "type": "string", "pattern": DURATION_PATTERN, "examples": ["500ms", "15s", "1h"]}
    ),
]
CanaryInterval = Annotated[Duration, AfterValidator(_canary_interval)]
Interval = Annotated[Duration, AfterValidator(_a_second_at_least)]
AtLeastAMinute = Annotated[Duration, AfterValidator(_a_minute_at_least)]
MatcherText = Annotated[str, AfterValidator(_matchers), Field(title="label matchers")]
Steps = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1024), NotASwitch], ...], Field(min_length=1), AfterValidator(_rising)
]
Rates = Annotated[
    tuple[Annotated[float, Field(gt=0, le=10_000), NotASwitch], ...], Field(min_length=1), AfterValidator(_rising)
]
Name = Annotated[str, AfterValidator(_name), Field(title="name")]
ServerName = Annotated[str, AfterValidator(_server_name), Field(title="name")]
Cron = Annotated[str, AfterValidator(_cron), Field(title="five cron fields")]
WindowText = Annotated[str, AfterValidator(_window), Field(title="window")]
Pattern = Annotated[
    str,
    Field(title="regular expression", min_length=1, max_length=1000, validate_default=True),
    AfterValidator(_pattern),
]
Timezone = Annotated[str, AfterValidator(_timezone), Field(title="time zone")]
SwitchedOff = BeforeValidator(_switched_off)
Ratio = Annotated[float, Field(title="ratio", gt=0, lt=1), NotASwitch]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NotASwitch]
EngineName = Annotated[str, AfterValidator(_engine), Field(title="engine")]


def _prometheus_labels(labels: dict[str, str]) -> dict[str, str]:
    if wrong := [name for name in labels if re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) is None]:
        raise ValueError(f"expected label names such as cluster, got {wrong[0]!r}")
    return labels


def _facts(facts: dict[str, str]) -> dict[str, str]:
    if (problem := facts_problem(facts)) is not None:
        raise ValueError(problem)
    return facts


Facts = Annotated[dict[str, str], AfterValidator(_facts)]
PrometheusLabels = Annotated[dict[str, str], AfterValidator(_prometheus_labels)]
GpuName = Annotated[str, AfterValidator(_gpu), Field(title="GPU model")]
Parameters = Annotated[
    float,
    BeforeValidator(_parameters),
    WithJsonSchema(
        {
            "title": "number of parameters",
            "type": ["number", "string"],
            "minimum": min(_SIZES.values()),
            "pattern": r"^[0-9.]+(e[0-9]+|[MBTmbt])$",
            "examples": ["8B", "70B"],
        }
    ),
]
Count = Annotated[int, Field(ge=1), NotASwitch]
Tokens = Annotated[int, Field(title="tokens", ge=1, le=1_000_000), NotASwitch]
