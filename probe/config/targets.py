"""The entries of `targets`: a server, or a template for discovered servers."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urljoin

from pydantic import Discriminator, Field, SecretStr, Tag, TypeAdapter

from probe.config.addresses import BaseUrl, Url
from probe.config.capacity import CapacityConfig
from probe.config.connection import ConnectionConfig, TlsConfig
from probe.config.discovery import DiscoverConfig
from probe.config.gpu import GpuConfig
from probe.config.headers import AuthHeaderText, HeadersConfig, SecretHeader
from probe.config.requests import RequestConfig
from probe.config.types import (
    CanaryInterval,
    ConfigSection,
    Duration,
    EngineName,
    Name,
    Pattern,
    ServerName,
    Tokens,
    default_duration,
)
from probe.core.errors import ConfigError
from probe.core.request import Api
from probe.core.server_address import server_key


def _kind(value: object) -> str:
    """Return which model an entry of `targets` is meant for, so that errors concern only that model."""
    finds = "discover" in value if isinstance(value, dict) else isinstance(value, TemplateConfig)
    return "template" if finds else "target"


# The most canaries of a target in flight, if each runs into its timeout.
MAX_CANARIES = 64


class KnownAnswerConfig(ConfigSection):
    """A question with a known answer, asked beside the canaries. `expect`: a regular expression for the answer."""

    prompt: Annotated[str, Field(min_length=1, max_length=4000)] = "What is the capital of France? Answer in one word."
    expect: Pattern = "(?i)paris"
    every: CanaryInterval = default_duration("5m")
    api: Api = Api.CHAT
    max_tokens: Annotated[Tokens, Field(le=4096)] = 256


class CanaryConfig(ConfigSection):
    """Synthetic requests at a low rate.

    `startup_grace`: for this long after Kneewatch starts, failures before the first success are not counted. It is for
    a sidecar, which starts minutes before its server has loaded the weights.
    """

    every: CanaryInterval = default_duration("15s")
    workload: Name = "default"
    timeout: Duration = default_duration("30s")
    startup_grace: Duration | None = None
    known_answer: KnownAnswerConfig | None = None

    @property
    def valid_s(self) -> float:
        """For how long a canary shows whether the server is up. Later ones should have ended long before."""
        return 3 * self.every + 2 * self.timeout


class NamedEntry(ConfigSection):
    """A target, or a discovery of targets."""

    name: Name


class LocatedEntry(NamedEntry):
    """An entry with a server's address."""

    base_url: BaseUrl


class DiscoveredEntry(NamedEntry):
    """An entry with a discovery."""

    discover: DiscoverConfig


class WatchConfig(NamedEntry):
    """How a target is monitored.

    `passive`: it gets no requests except for its metrics, its version and its GPU metrics.
    """

    model: Annotated[str, Field(min_length=1, max_length=256)] = "auto"
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    auth_header: AuthHeaderText = "Authorization Bearer"
    headers: HeadersConfig = Field(default_factory=dict)
    request: RequestConfig = RequestConfig()
    tls: TlsConfig = TlsConfig()
    connection: ConnectionConfig = ConnectionConfig()
    passive: bool = False
    metrics_url: Url | None = None
    engine: EngineName = "auto"
    gpu: GpuConfig = GpuConfig()
    scrape: Duration = default_duration("5s")
    objectives: Name = "default"
    canary: CanaryConfig = CanaryConfig()
    capacity: CapacityConfig = CapacityConfig()

    @property
    def known_as(self) -> str:
        """The `target` label of its series; for a discovery, with a star for the ids."""
        return self.name

    def secret(self) -> str | None:
        """Return the API key, read again from `api_key_file` so that a rotated secret is used.

        Raises OSError if the file was removed since the configuration was loaded.
        """
        if self.api_key_file is not None:
            return self.api_key_file.read_text().strip()
        return self.api_key.get_secret_value() if self.api_key else None

    def plain_headers(self) -> dict[str, str]:
        """Return the headers that are no secrets."""
        return {name: value for name, value in self.headers.items() if isinstance(value, str)}

    def secret_headers(self) -> dict[str, str]:
        """Return the secret headers, read again from their files. Raises OSError or UnicodeError."""
        return {name: value.value() for name, value in self.headers.items() if isinstance(value, SecretHeader)}


class TargetConfig(WatchConfig, LocatedEntry):
    """One server. Only configured and discovered servers get traffic. Its name may have a group: `GROUP/NAME`."""

    name: ServerName

    @property
    def server(self) -> str:
        """The name of the server, as its lock has it: the same for every spelling of its address."""
        socket = self.connection.unix_socket
        return server_key(self.base_url, None if socket is None else str(socket))

    @property
    def metrics_page(self) -> str:
        """What identifies the server's metrics page. Several targets may have the same."""
        if self.metrics_url is not None:
            return server_key(self.metrics_url)
        # Beside the API, so that a target that names the default page shares it.
        return self.server + ("/metrics" if self.connection.unix_socket is None else "")


class TemplateConfig(WatchConfig, DiscoveredEntry):
    """A template for discovered servers. Their targets are named `name/id`."""

    @property
    def known_as(self) -> str:
        return f"{self.name}/*"

    def target(self, found_id: str, base_url: str) -> TargetConfig:
        """Return the target of a discovered server. Raises ValueError if its address is invalid."""
        fields = {name: getattr(self, name) for name in WatchConfig.model_fields}
        address = _ADDRESS.validate_python(base_url)
        if self.discover.metrics_path is not None:
            fields["metrics_url"] = urljoin(address, self.discover.metrics_path)
        # Not validated again: the files of secrets have been checked, and an id may be longer than a name in a file.
        return TargetConfig.model_construct(**{**fields, "name": f"{self.name}/{found_id}", "base_url": address})


_ADDRESS: TypeAdapter[str] = TypeAdapter(BaseUrl)
AnyTarget = Annotated[
    Annotated[TargetConfig, Tag("target")] | Annotated[TemplateConfig, Tag("template")], Discriminator(_kind)
]


def only_located(target: WatchConfig) -> TargetConfig:
    """Return a target with an address, for a command on one server. Raises ConfigError for a template."""
    if isinstance(target, TargetConfig):
        return target
    raise ConfigError(
        f"--target {target.name}: its servers are discovered; name one of them, such as {target.name}/ID,"
        " or use --base-url URL"
    )
