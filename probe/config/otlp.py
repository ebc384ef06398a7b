"""The `otlp` section: where canaries are sent to as spans and histograms, and its checks."""

from collections.abc import Iterator
from pathlib import Path

from probe.config.addresses import Url
from probe.config.headers import AnyHeadersConfig, SecretHeader, header_problems
from probe.config.messages import shown
from probe.config.path_checks import authorities_problem
from probe.config.types import ConfigSection


class OtlpConfig(ConfigSection):
    """An OpenTelemetry collector, or any other receiver of OTLP over HTTP. Without the section nothing is sent."""

    endpoint: Url
    """Address of the receiver, such as `http://collector:4318`; `/v1/traces` and `/v1/metrics` are added."""
    headers: AnyHeadersConfig = {}  # noqa: RUF012 - pydantic copies it
    """Headers of the requests to it, at most 16, `Authorization` included; secrets as in `targets[].headers`."""
    ca_file: Path | None = None
    """CA certificates that sign its certificate, in a readable PEM file; read again when it changes. Default: the usual
    authorities.
    """

    def plain_headers(self) -> dict[str, str]:
        """Return the headers that are no secrets."""
        return {name: value for name, value in self.headers.items() if isinstance(value, str)}

    def secret_headers(self) -> dict[str, str]:
        """Return the secret headers, read again from their files. Raises OSError or UnicodeError."""
        return {name: value.value() for name, value in self.headers.items() if isinstance(value, SecretHeader)}


def otlp_problems(otlp: OtlpConfig | None, raw: object) -> Iterator[str]:
    """Yield problems, each with the path of its key."""
    if otlp is None:
        return
    if otlp.ca_file is not None and (words := authorities_problem(otlp.ca_file)):
        yield f"otlp.ca_file: {shown(['otlp', 'ca_file'], raw)} {words}"
    for name, words in header_problems(otlp.headers, ""):
        yield f"otlp.headers.{name}: {words}"
