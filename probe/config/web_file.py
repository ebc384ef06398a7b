"""The web configuration file, in the format of Prometheus and its exporters: TLS, passwords, headers.

Settings of the format that are not supported are errors and never ignored, because the file controls access. Messages
never contain values of the file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationError

from probe.config.messages import shown
from probe.config.path_checks import file_problem
from probe.config.types import ConfigSection, Secret
from probe.config.yaml_file import read_yaml
from probe.core.durations import parse_duration
from probe.core.errors import ConfigError
from probe.core.text import one_line

_BCRYPT = re.compile(r"\$2[aby]\$(?P<cost>[0-9]{2})\$[./A-Za-z0-9]{53}")
_MAX_COST = 14  # a second of a core
_VERIFIED = "RequireAndVerifyClientCert"
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert")
_INLINE = {"cert": "cert_file", "key": "key_file", "client_ca": "client_ca_file"}
_LONGEST_S = 3600.0


def _hash(value: SecretStr) -> SecretStr:
    found = _BCRYPT.fullmatch(value.get_secret_value())
    if found is None:
        raise ValueError("expected a bcrypt hash, as `htpasswd -nBC 10 USER` prints it after the colon")
    if int(found["cost"]) > _MAX_COST:
        raise ValueError(f"expected a bcrypt cost of at most {_MAX_COST}: each login would take seconds; use -C 10")
    return value


def _header(value: str) -> str:
    if not all(" " <= each <= "~" for each in value):
        raise ValueError("expected printable ASCII, as HTTP headers are")
    return value


HeaderText = Annotated[str, AfterValidator(_header)]


def _interval(value: object) -> float:
    if value in (0, "0"):
        return 0.0
    seconds = parse_duration(value)
    if seconds > _LONGEST_S:
        raise ValueError("expected an interval of at most one hour")
    return seconds


Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]


class TlsServer(ConfigSection):
    """`tls_server_config`."""

    cert: str | None = None
    key: Secret | None = None
    client_ca: str | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    client_auth_type: Literal[
        "", "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven",
        "RequireAndVerifyClientCert",
    ] = ""  # fmt: skip
    client_allowed_sans: tuple[str, ...] = ()
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] = ()


class Headers(ConfigSection):
    """`http_server_config.headers`; blank values keep Kneewatch's headers."""

    content_security_policy: Annotated[HeaderText, Field(alias="Content-Security-Policy")] = ""
    frame_options: Annotated[Literal["", "deny", "sameorigin"], Field(alias="X-Frame-Options")] = ""
    content_type_options: Annotated[Literal["", "nosniff"], Field(alias="X-Content-Type-Options")] = ""
    xss_protection: Annotated[HeaderText, Field(alias="X-XSS-Protection")] = ""
    transport_security: Annotated[HeaderText, Field(alias="Strict-Transport-Security")] = ""

    def set(self) -> dict[str, str]:
        """Return the headers that are set, by their HTTP names."""
        return {name: value for name, value in self.model_dump(by_alias=True).items() if value}


class HttpServer(ConfigSection):
    """`http_server_config`. Kneewatch serves HTTP/1.1 regardless of `http2`."""

    http2: bool = True
    headers: Headers = Headers()


class RateLimit(ConfigSection):
    """`rate_limit`: one request per interval, with bursts. 0: no limit."""

    interval: Annotated[float, Field(validate_default=True)] = 0.0
    burst: Annotated[int, Field(ge=0)] = 0


class WebConfig(ConfigSection):
    """The web configuration file."""

    tls_server_config: TlsServer | None = None
    http_server_config: HttpServer = HttpServer()
    basic_auth_users: dict[str, Annotated[SecretStr, AfterValidator(_hash)]] = Field(default_factory=dict)
    rate_limit: RateLimit = RateLimit()

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that it names."""
        tls = self.tls_server_config
        named = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls is not None else ()
        return tuple(file for file in named if file is not None)


def load_web_config(file: Path) -> WebConfig:
    """Return the file's settings with absolute paths. Raises ConfigError, one line per problem, without values."""
    raw = read_yaml(file)
    if raw is None:  # perhaps being written; it must not open the pages
        raise ConfigError(f"{file}: is empty; write {{}} to serve the pages without TLS and passwords")
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: expected a mapping of the web configuration format, got {type(raw).__name__}")
    try:
        if isinstance(limit := raw.get("rate_limit"), dict) and "interval" in limit:
            raw = {**raw, "rate_limit": {**limit, "interval": _interval(limit["interval"])}}
    except ValueError as error:
        raise ConfigError(f"{file}: rate_limit.interval: {one_line(str(error))}") from None
    if empty := [key for key in ("tls_server_config", "basic_auth_users") if key in raw and raw[key] is None]:
        raise ConfigError(f"{file}: {empty[0]}: is empty; fill it in, or remove it to serve the pages without it")
    # Any other empty section counts as missing.
    raw = {key: value for key, value in raw.items() if value is not None}
    try:
        config = WebConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {line}" for line in _problems(error))) from None
    if config.tls_server_config is not None:
        config = config.model_copy(update={"tls_server_config": _beside(config.tls_server_config, file.parent)})
        if problems := list(_tls_problems(config.tls_server_config or TlsServer())):
            raise ConfigError("\n".join(f"{file}: tls_server_config.{line}" for line in problems))
    return config


def web_problems(file: Path | None, raw: object) -> list[str]:
    """Return the problems of the web configuration file, so that they are known before a restart."""
    if file is None:
        return []
    if words := file_problem(file):
        return [f"web_config_file: {shown(['web_config_file'], raw)} {words}"]
    try:
        load_web_config(file)
    except ConfigError as error:
        return [f"web_config_file: {line}" for line in str(error).splitlines()]
    return []


def _beside(tls: TlsServer, folder: Path) -> TlsServer:
    """Return the section with absolute paths; in the file they are relative to it."""
    paths = {key: getattr(tls, key) for key in _INLINE.values()}
    return tls.model_copy(update={key: folder / path for key, path in paths.items() if path is not None})


def _problems(error: ValidationError) -> Iterator[str]:
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(map(str, found["loc"])) or "the whole"
        words = "unknown key" if found["type"] == "extra_forbidden" else found["msg"].removeprefix("Value error, ")
        yield one_line(f"{where}: {words}", 300)


def _tls_problems(tls: TlsServer) -> Iterator[str]:
    for inline, file in _INLINE.items():
        if getattr(tls, inline) is not None and getattr(tls, file) is not None:
            yield f"{inline}: {file} is set too; keep one of them"
    if tls.cert is None and tls.cert_file is None:
        yield "cert_file: missing; add a PEM file with the server's certificate"
    if tls.key is None and tls.key_file is None:
        yield "key_file: missing; add a PEM file with the certificate's key"
    if tls.min_version > tls.max_version:
        yield "min_version: above max_version; swap the two"
    if len(tls.curve_preferences) > 1:
        yield "curve_preferences: only one curve is supported; keep the first, or none"
    yield from _client_problems(tls)


def _client_problems(tls: TlsServer) -> Iterator[str]:
    """Yield problems with the verification of client certificates."""
    authority = tls.client_ca is not None or tls.client_ca_file is not None
    if tls.client_auth_type in _UNVERIFIED:
        yield f"client_auth_type: unverified certificates prove nothing; use {_VERIFIED}"
    if tls.client_auth_type in ("VerifyClientCertIfGiven", _VERIFIED) and not authority:
        yield "client_ca_file: missing; add a PEM file with the CA that signs client certificates"
    if authority and tls.client_auth_type in ("", "NoClientCert"):
        yield f"client_auth_type: missing, but client_ca_file is set; use {_VERIFIED}"
    if tls.client_allowed_sans and tls.client_auth_type != _VERIFIED:
        yield f"client_allowed_sans: requires client_auth_type {_VERIFIED}"
