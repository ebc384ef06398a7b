"""The whole configuration, as frozen models: its top-level keys with their small sections, and lookups by name."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from probe.config.discovery import DiscoverConfig, ObjectName
from probe.config.headers import AnyHeadersConfig, SecretHeader, header_problems
from probe.config.messages import did_you_mean, shown
from probe.config.objectives import DEFAULT_OBJECTIVES, ObjectivesConfig
from probe.config.path_checks import authorities_problem
from probe.config.prometheus import PrometheusConfig
from probe.config.targets import AnyTarget, TargetConfig, TemplateConfig, WatchConfig, only_located
from probe.config.types import (
    ConfigSection,
    Duration,
    ExternalUrl,
    HostName,
    Listen,
    Name,
    NotASwitch,
    Url,
    default_duration,
)
from probe.config.workloads import DEFAULT_WORKLOAD, PRESETS, USERS, WorkloadConfig
from probe.core.errors import ConfigError
from probe.core.objectives import Objectives

_AUTO = "auto"
_ADDRESS = re.compile(r"(ray://)?([A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")
_MAX_PORT = 65535


def _address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if text != _AUTO and (found is None or not 0 < int(found[4]) <= _MAX_PORT):
        raise ValueError(
            "expected HOST:PORT of a Ray cluster, ray://HOST:PORT, or auto for the cluster on this machine"
        )
    return text


RayAddress = Annotated[str, AfterValidator(_address), Field(title="address of a Ray cluster")]
CoreShare = Annotated[float, Field(ge=0.01, le=64, allow_inf_nan=False), NotASwitch]
RunCount = Annotated[int, Field(ge=1, le=64), NotASwitch]
# No run can keep more workers busy.
WorkerCount = Annotated[int, Field(ge=1, le=256), NotASwitch]


class RayConfig(ConfigSection):
    """A Ray cluster to generate the load on."""

    address: RayAddress
    """`HOST:PORT`, or `auto` for the cluster of this node; `ray://HOST:PORT` from elsewhere."""
    workers: WorkerCount | None = None
    """Number of worker processes, one CPU each. Default: one per 128 streams."""
    start_timeout: Duration = default_duration("60s")
    """Limit for starting the workers."""


class LoadConfig(ConfigSection):
    """Where the load workers run."""

    ray: RayConfig | None = None
    """A Ray cluster that sends step-up load instead of this machine
    ([integrations.md](integrations.md#load-from-a-ray-cluster)). Without the section this machine sends the load.
    """


def load_problems(load: LoadConfig | None) -> Iterator[str]:
    """Yield problems that begin with the key's path."""
    if load is not None and load.ray is not None and importlib.util.find_spec("ray") is None:
        yield "load.ray: the package ray is not installed; pip install 'kneewatch[ray]'"


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


class LeaseConfig(ConfigSection):
    """Step-up load needs a Kubernetes Lease, one per server."""

    namespace: ObjectName | None = None
    """Namespace of the Leases. Default: the pod's own."""


class StoreConfig(ConfigSection):
    """Where results are stored. Without a path they are lost when the process ends."""

    path: Path | None = None
    """SQLite file that keeps capacity results across restarts, the newest 2200 per target, and the counts of canaries
    for the pages' uptime, 30 days. New results are compared with earlier ones. Its directory must exist and be
    writable.
    """


class Config(ConfigSection):
    """The whole configuration."""

    listen: Listen = "127.0.0.1:9876"
    """Address of the pages and metrics, HOST:PORT with IPv6 in brackets; in a container `0.0.0.0:9876`."""
    web_config_file: Path | None = None
    """TLS and passwords of the pages, in the format of the Prometheus exporters
    ([pages.md](pages.md#tls-client-certificates-and-passwords)). Must be readable at startup; may change at run time.
    """
    web_allowed_hosts: tuple[HostName, ...] = ()
    """Host names, without a port, under which browsers reach the pages, such as an Ingress's, in addition to the
    private names that are always allowed ([pages.md](pages.md#allowed-host-names)). `.example.org` allows every name
    below it.
    """
    web_external_url: ExternalUrl | None = None
    """The address of the pages for people, such as an Ingress's: alerts link the page of their target (`page_url`), and
    its host name is an allowed one. http or https, without credentials.
    """
    grafana_url: ExternalUrl | None = None
    """The address of the Grafana that has the dashboards, which alerts link (`dashboard_url`). http or https, without
    credentials. Nothing is sent to it.
    """
    prometheus: PrometheusConfig | None = None
    """A Prometheus that is asked before each capacity run whether an alert with severity `page` fires for the target;
    if one does, or if there is no complete answer within 5 s, no load is sent. It also provides a target's capacity
    history if the store has none, and the firing alerts on the pages. Without the section nothing is asked.
    """
    otlp: OtlpConfig | None = None
    """An OpenTelemetry collector that gets each canary as a span, and histograms of them
    ([integrations.md](integrations.md#canaries-in-opentelemetry)). Without the section nothing is sent. Fixed at
    startup.
    """
    store: StoreConfig = StoreConfig()
    """Where results are stored. Without a path they are lost when the process ends."""
    lock_dir: Path | None = None
    """Directory of the locks that keep two probers from loading one server. Must be writable, and the same for every
    Kneewatch on the machine. Default: `/tmp`.
    """
    lease: LeaseConfig | None = None
    """Use Kubernetes Leases, one per server, instead of locks on this machine ([discovery.md](discovery.md))."""
    load: LoadConfig | None = None
    """Where step-up load is generated."""
    capacity_runs_at_once: RunCount = 1
    """How many scheduled capacity runs may go on at once, each on another server. With more than 1 they share this
    machine's cores and memory, and what is common to their servers: a GPU, a node, a gateway.
    """
    forecast_cores: CoreShare = 0.25
    """CPU that the forecasts of all targets may take together, in cores of this machine. They are computed in as many
    processes as this is cores, rounded up, with low priority, and those with the oldest evidence come first. Where it
    is too little for `capacity.forecast_every`, each is made less often.
    """
    objectives: dict[Name, ObjectivesConfig] = Field(default_factory=dict)
    """Service level objectives, by name."""
    workloads: dict[Name, WorkloadConfig] = Field(default_factory=dict)
    """Kinds of requests, by name."""
    targets: Annotated[tuple[AnyTarget, ...], Field(min_length=1)]
    """The servers to monitor, with unique names; no other server gets traffic."""

    @property
    def servers(self) -> tuple[TargetConfig, ...]:
        """Return the targets with an address in the file."""
        return tuple(target for target in self.targets if isinstance(target, TargetConfig))

    @property
    def templates(self) -> tuple[TemplateConfig, ...]:
        """Return the templates for discovered targets."""
        return tuple(target for target in self.targets if isinstance(target, TemplateConfig))

    @property
    def discoveries(self) -> dict[str, DiscoverConfig]:
        """Return what to discover, by the target's name: servers, or the replicas behind one address."""
        replicas = {each.name: each.metrics_discovery for each in self.servers if each.metrics_discovery is not None}
        return {**{template.name: template.discover for template in self.templates}, **replicas}

    @property
    def exporters(self) -> dict[str, DiscoverConfig]:
        """Return where to find the dcgm-exporters of discovered pods, by the selection's name."""
        return {each.gpu.dcgm.name: each.gpu.dcgm.discovery for each in self.templates if each.gpu.dcgm is not None}

    def objectives_of(self, target: WatchConfig) -> Objectives:
        """Return the target's objectives."""
        return self.objectives.get(target.objectives, DEFAULT_OBJECTIVES).objectives(target.objectives)

    def workload(self, name: str) -> WorkloadConfig:
        """Return the workload with this name: a configured one, or a preset. Raises KeyError.

        For `users` it is the default: the lengths that users send are learnt (monitor/capacity_workload.py).
        """
        known = {**PRESETS, **self.workloads}
        return (DEFAULT_WORKLOAD if self.is_learnt(name) else known[name]).with_parts(known)

    def has_workload(self, name: str) -> bool:
        """Return whether a workload with this name is configured or a preset."""
        return name in self.workloads or name in PRESETS

    def is_learnt(self, name: str) -> bool:
        """Return whether the workload with this name is what users send, learnt from the server's metrics."""
        return name == USERS and name not in self.workloads

    def target(self, name: str) -> TargetConfig:
        """Return the target with this name. Raises ConfigError if it is unknown or a template."""
        for target in self.targets:
            if target.name == name:
                return only_located(target)
        known = [t.name for t in self.targets]
        hint = did_you_mean(name, known)
        raise ConfigError(f"--target {name}: not in the configuration{hint}; expected one of {', '.join(known)}")

    def workload_name(self, name: str | None) -> str | None:
        """Return `name` if it is None or the name of a workload. Raise ConfigError otherwise."""
        names = [*self.workloads, *PRESETS, USERS]
        if name is None or name in names:
            return name
        hint = did_you_mean(name, names)
        if not self.workloads:
            raise ConfigError(f"--workload {name}: not in the configuration{hint}; add it under workloads")
        known = ", ".join(self.workloads)
        raise ConfigError(f"--workload {name}: not in the configuration{hint}; expected one of {known}")

    @property
    def page_hosts(self) -> tuple[str, ...]:
        """Return the host names in the configuration that browsers may reach the pages by."""
        external = (urlsplit(self.web_external_url).hostname or "",) if self.web_external_url else ()
        return (self.listen_address[0], *external, *self.web_allowed_hosts)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Return the host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)
