"""The entries of `targets`: a server, or a template for discovered servers."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urljoin

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    TypeAdapter,
    model_serializer,
)

from probe.config.canaries import MAX_KINDS, CanaryConfig, CanaryKindConfig, ModelName
from probe.config.capacity import CapacityConfig
from probe.config.connection import ConnectionConfig, TlsConfig
from probe.config.discovery import DiscoverConfig
from probe.config.gpu import GpuConfig
from probe.config.headers import AuthHeaderText, HeadersConfig, SecretHeader
from probe.config.requests import RequestConfig
from probe.config.types import (
    BaseUrl,
    ConfigSection,
    Count,
    EngineName,
    Interval,
    Name,
    Replicas,
    Secret,
    ServerName,
    Url,
    default_duration,
)
from probe.core.errors import ConfigError
from probe.core.plain_file import read_secret
from probe.core.server_address import server_key


def _kind(value: object) -> str:
    """Return which model an entry of `targets` is meant for, so that errors concern only that model."""
    finds = "discover" in value if isinstance(value, dict) else isinstance(value, TemplateConfig)
    return "template" if finds else "target"


class NamedEntry(ConfigSection):
    """A target, or a discovery of targets."""

    name: Name
    """The `target` label of every series; with `discover`, its first part."""


class LocatedEntry(NamedEntry):
    """An entry with a server's address."""

    base_url: BaseUrl
    """The server's address; a trailing `/v1` is dropped. Required unless `discover` is set."""


class DiscoveredEntry(NamedEntry):
    """An entry with a discovery."""

    discover: DiscoverConfig
    """Servers that come and go, instead of `base_url`."""


class WatchConfig(NamedEntry):
    """How a target is monitored."""

    model: ModelName = "auto"
    """Model name in requests; `auto` takes the first model that the server lists. A name need not be listed."""
    api_key: Secret | None = None
    """The API key, preferably as `${NAME}`. Not together with `api_key_file`."""
    api_key_file: Path | None = None
    """File that contains only the API key; read again for every request. Must be readable at startup."""
    auth_header: AuthHeaderText = "Authorization Bearer"
    """The header that carries the API key, and the word before the key; `api-key` for Azure, `x-api-key` for Kong."""
    headers: HeadersConfig = Field(default_factory=dict)
    """Further headers of every request below `base_url`, such as a tenant's or a route's: a text, which is shown, or a
    secret. At most 16, of printable ASCII, none that Kneewatch sets itself. A name like a secret's needs `file`
    or `secret`.
    """
    request: RequestConfig = RequestConfig()
    """How requests differ from those to vLLM."""
    tls: TlsConfig = TlsConfig()
    """How the server's certificate is verified, and the client certificate."""
    connection: ConnectionConfig = ConnectionConfig()
    """How Kneewatch connects to the target; by default directly."""
    passive: bool = False
    """`true` sends no requests, neither canaries nor load; Kneewatch reads only the metrics, the GPUs and `/version`.
    Not with `capacity.mode: verify`.
    """
    metrics_url: Url | None = None
    """Address of the server's metrics, if it is not `base_url` + `/metrics` (or, with `engine`, that engine's path).
    Gets the API key only if it is below `base_url`.
    """
    metrics_urls: Replicas | None = None
    """Address of each replica's metrics page, if `base_url` is a router's or a load balancer's: they are read together,
    as one server. Not together with `metrics_url`. The replicas get the API key only if they are below `base_url`.
    """
    metrics_discovery: DiscoverConfig | None = None
    """Where to find the replicas behind `base_url`, if they come and go: instead of `metrics_urls`, with the keys of
    `discover`. Their pages are read together, as one server ([engines.md](engines.md#replicas-that-come-and-go)).
    """
    engine: EngineName = "auto"
    """The inference engine ([engines.md](engines.md)): `auto` detects it from the metric names; or its name
    there.
    """
    role: Literal["prefill", "decode"] | None = None
    """The part of each request that the server computes, where prefill and decode are on different servers
    ([integrations.md](integrations.md#prefill-and-decode-on-different-servers)). Default: as its flags or its
    pod's labels show it. Such a server has no capacity of its own: `capacity.mode` is `off`.
    """
    gpu: GpuConfig = GpuConfig()
    """The target's GPUs. Without this section no GPU is read."""
    scrape: Interval = default_duration("5s")
    """Scrape interval of the server's metrics, and the time that a page may take; at least `1s`."""
    objectives: Name = "default"
    """Objectives of the target: a name under `objectives`."""
    canary: CanaryConfig = CanaryConfig()
    """The small requests that are sent continuously."""
    canaries: Annotated[tuple[CanaryKindConfig, ...], Field(min_length=1, max_length=MAX_KINDS)] | None = None
    """Several kinds of canaries, at most 8, instead of `canary`. No two may have both workload and model in common."""
    canary_tokens_per_day: Count | None = None
    """The most tokens that all canaries of the target, with their questions, may need a day. A configuration that may
    need more is refused.
    """
    capacity: CapacityConfig = CapacityConfig()
    """How capacity is determined."""

    @property
    def known_as(self) -> str:
        """Return the `target` label of its series; for a discovery, with a star for the ids."""
        return self.name

    @property
    def known_role(self) -> str | None:
        """Return the role as configured, else by vLLM's `kv_role`; None: unknown, or it does both."""
        return self.role or _BY_KV_ROLE.get(self.capacity.server.flags.get("kv_role", ""))

    @property
    def kinds(self) -> tuple[Self, ...]:
        """Return the target once for each of its canaries: with that one as `canary`, and with its model and headers.

        The first is for what has one canary only, such as capacity runs, requests on demand and most commands.
        """
        return tuple(
            self.model_copy(
                update={
                    "canary": kind,
                    "canaries": None,
                    "model": kind.model or self.model,
                    "headers": {**self.headers, **kind.headers},
                }
            )
            for kind in self.canaries or ()
        ) or (self,)

    @model_serializer(mode="wrap")
    def _with_one_key_for_canaries(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the key that is not used, since only one of them may be set."""
        shown: dict[str, Any] = serialize(self)
        shown.pop("canary" if self.canaries else "canaries", None)
        return shown

    def secret(self) -> str | None:
        """Return the API key, read again from `api_key_file` so that a rotated secret is used.

        Raises OSError if the file was removed since the configuration was loaded.
        """
        if self.api_key_file is not None:
            return read_secret(self.api_key_file)
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
    """The `target` label of every series. Targets with a common `GROUP/`, such as replicas of a service or models
    behind one gateway, are one group: one notification when they fail together, one choice in the dashboards. With
    `discover` a name without a group.
    """

    @property
    def server(self) -> str:
        """Return the name of the server, as its lock has it: the same for every spelling of its address."""
        socket = self.connection.unix_socket
        return server_key(self.base_url, None if socket is None else str(socket))

    @property
    def metrics_page(self) -> str:
        """Return what identifies the server's metrics page, or its replicas' pages. Targets may share it."""
        if self.metrics_url is not None:
            return server_key(self.metrics_url)
        if self.metrics_urls:
            return " ".join(sorted(map(server_key, self.metrics_urls)))
        if self.metrics_discovery is not None:
            return self.metrics_discovery.model_dump_json()
        # On the API's host, so that a target that names the default page shares it.
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


# vLLM's --kv-transfer-config: a producer computes the KV caches of prompts, a consumer fetches them.
_BY_KV_ROLE = {"kv_producer": "prefill", "kv_consumer": "decode"}
_ADDRESS: TypeAdapter[str] = TypeAdapter(BaseUrl)
AnyTarget = Annotated[
    Annotated[TargetConfig, Tag("target")] | Annotated[TemplateConfig, Tag("template")], Discriminator(_kind)
]


Keys = tuple[str | int, ...]


def canary_keys(target: WatchConfig) -> list[tuple[Keys, WatchConfig]]:
    """Return each kind of canary with the keys of its section below the target."""
    return [(("canary",) if target.canaries is None else ("canaries", j), kind) for j, kind in enumerate(target.kinds)]


def only_located(target: WatchConfig) -> TargetConfig:
    """Return a target with an address, for a command on one server. Raises ConfigError for a template."""
    if isinstance(target, TargetConfig):
        return target
    raise ConfigError(
        f"--target {target.name}: its servers are discovered; name one of them, such as {target.name}/ID,"
        " or use --base-url URL"
    )
