"""The configuration: from YAML to frozen models.

`load_config(path)` is the entry point. Unknown keys, wrong units, missing files and undefined names are errors of one
line each, with file, key path, expectation and fix. `${NAME}` in a value is replaced from the environment after the
YAML is parsed, so a value cannot change the structure. Messages show the text as written, so values do not leak.
"""

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urljoin

import yaml
from pydantic import Discriminator, Field, SecretStr, Tag, TypeAdapter, ValidationError, model_validator

from probe.config.connection import ConnectionConfig, TlsConfig, connection_problems
from probe.config.discovery import DiscoverConfig, ObjectName, discover_problems
from probe.config.gpu import GpuConfig, gpu_problems
from probe.config.load import LoadConfig, load_problems
from probe.config.messages import describe, did_you_mean, shown
from probe.config.path_checks import file_problem, folder_problem
from probe.config.types import (
    BaseUrl,
    CanaryInterval,
    ConfigSection,
    Count,
    Cron,
    Duration,
    EngineName,
    ForecastInterval,
    GpuName,
    Listen,
    MatcherText,
    Name,
    NotASwitch,
    Parameters,
    Positive,
    Rates,
    Ratio,
    Steps,
    SwitchedOff,
    Timezone,
    Tokens,
    Url,
    WindowText,
    arm,
    default_duration,
)
from probe.config.web import HostName, web_problems
from probe.config.yaml_file import expand, read_yaml
from probe.core.errors import ConfigError
from probe.core.objectives import Objective, Objectives
from probe.core.request import Api
from probe.core.text import one_line


def _kind(value: object) -> str:
    """Return which model an entry of `targets` is meant for, so that errors concern only that model."""
    finds = "discover" in value if isinstance(value, dict) else isinstance(value, TemplateConfig)
    return "template" if finds else "target"


class LatencyObjective(ConfigSection):
    """At least `ratio` of requests take at most `within`."""

    ratio: Ratio
    within: Duration

    def objective(self) -> Objective:
        return Objective(ratio=self.ratio, within_s=self.within)


class ObjectivesConfig(ConfigSection):
    """Service level objectives."""

    window: Duration = default_duration("30d")
    availability: Ratio | None = 0.999
    ttft: LatencyObjective | None = None
    tpot: LatencyObjective | None = None


class Lognormal(ConfigSection):
    """Lengths from a log-normal distribution, cut at `max`."""

    median: Tokens
    sigma: Annotated[float, NotASwitch, Field(gt=0, le=3)]
    max: Tokens

    @model_validator(mode="after")
    def _median_below_max(self) -> "Lognormal":
        if self.median > self.max:
            raise ValueError("expected a median of at most max")
        return self


class LognormalTokens(ConfigSection):
    """The long form of a token count: a distribution."""

    lognormal: Lognormal


class SharedPrefix(ConfigSection):
    """Prompts share their first tokens, so that the server's prefix cache hits."""

    shared_tokens: Tokens


TokenCount = Annotated[Annotated[Tokens, Tag("plain")] | Annotated[LognormalTokens, Tag("mapping")], Discriminator(arm)]
Prefix = Annotated[
    Annotated[Literal["unique"], Tag("plain")] | Annotated[SharedPrefix, Tag("mapping")], Discriminator(arm)
]


class WorkloadConfig(ConfigSection):
    """The shape of requests."""

    api: Api = Api.COMPLETIONS
    prompt_tokens: TokenCount = 256
    output_tokens: TokenCount = 128
    prefix: Prefix = "unique"


class CanaryConfig(ConfigSection):
    """Synthetic requests at a low rate.

    `startup_grace`: for this long after Kneewatch starts, failures before the first success are not counted. It is for
    a sidecar, which starts minutes before its server has loaded the weights.
    """

    every: CanaryInterval = default_duration("15s")
    workload: Name = "default"
    timeout: Duration = default_duration("30s")
    startup_grace: Duration | None = None


class ScheduleConfig(ConfigSection):
    """When scheduled load may start."""

    cron: Cron = "0 4 * * *"
    timezone: Timezone = "UTC"
    windows: tuple[WindowText, ...] = ()


class BudgetConfig(ConfigSection):
    """Maximum cost of one capacity run, and of all runs of a day."""

    tokens_per_run: Count = 500_000
    tokens_per_day: Count | None = None
    seconds: Positive = 300.0
    over_objective_seconds: Positive = 20.0

    @property
    def daily_tokens(self) -> int:
        """The configured limit, or four times a run: the nightly run and three to confirm it or after a failure."""
        return 4 * self.tokens_per_run if self.tokens_per_day is None else self.tokens_per_day


class ServerLimitsConfig(ConfigSection):
    """Startup flags and hardware of the server that vLLM's metrics do not show."""

    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpu: GpuName | None = None
    parameters: Parameters | None = None
    weight_bits: Literal[4, 8, 16] = 16
    gpus: Count = 1

    @property
    def missing_key(self) -> str | None:
        """Return the keys that have no effect without another key, as a message, or None."""
        if self.parameters is None and (self.weight_bits, self.gpus) != (16, 1):
            return "weight_bits and gpus have no effect without parameters; add parameters"
        if self.parameters is not None and self.gpu is None:
            return "parameters has no effect without gpu; add gpu"
        return None


class CapacityConfig(ConfigSection):
    """How capacity is determined. By default it is forecast from live traffic, without added load.

    Step-up load needs mode "verify", because it runs on servers with users. Without `concurrency` and `rates`, a search
    chooses the load levels.
    """

    mode: Annotated[Literal["off", "forecast", "verify"], SwitchedOff] = "forecast"
    forecast_every: ForecastInterval = default_duration("30m")
    history: MatcherText | None = None
    schedule: ScheduleConfig = ScheduleConfig()
    workload: Name | None = None
    concurrency: Steps | None = None
    rates: Rates | None = None
    step: Duration = default_duration("15s")
    observe: Duration = default_duration("30s")
    server: ServerLimitsConfig = ServerLimitsConfig()
    budget: BudgetConfig = BudgetConfig()


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


class TargetConfig(WatchConfig, LocatedEntry):
    """One server. Only configured and discovered servers get traffic."""


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
        # Not validated again: the files of secrets have been checked, and a name with a slash is invalid in a file.
        return TargetConfig.model_construct(**{**fields, "name": f"{self.name}/{found_id}", "base_url": address})


_ADDRESS: TypeAdapter[str] = TypeAdapter(BaseUrl)
AnyTarget = Annotated[
    Annotated[TargetConfig, Tag("target")] | Annotated[TemplateConfig, Tag("template")], Discriminator(_kind)
]


class LeaseConfig(ConfigSection):
    """Step-up load needs a Kubernetes Lease, one per server, in this namespace.

    Default of `namespace`: that of Kneewatch's own pod.
    """

    namespace: ObjectName | None = None


class PrometheusConfig(ConfigSection):
    """The Prometheus that is asked whether an alert fires for the target, before load is added."""

    url: Url


class StoreConfig(ConfigSection):
    """Where results are stored. Without a path they are lost when the process ends."""

    path: Path | None = None


class Config(ConfigSection):
    """The whole configuration."""

    listen: Listen = "127.0.0.1:9876"
    web_config_file: Path | None = None
    web_allowed_hosts: tuple[HostName, ...] = ()
    prometheus: PrometheusConfig | None = None
    store: StoreConfig = StoreConfig()
    lock_dir: Path | None = None
    lease: LeaseConfig | None = None
    load: LoadConfig | None = None
    objectives: dict[Name, ObjectivesConfig] = Field(default_factory=dict)
    workloads: dict[Name, WorkloadConfig] = Field(default_factory=dict)
    targets: Annotated[tuple[AnyTarget, ...], Field(min_length=1)]

    @property
    def servers(self) -> tuple[TargetConfig, ...]:
        """The targets with an address in the file."""
        return tuple(target for target in self.targets if isinstance(target, TargetConfig))

    @property
    def templates(self) -> tuple[TemplateConfig, ...]:
        """The templates for discovered targets."""
        return tuple(target for target in self.targets if isinstance(target, TemplateConfig))

    def objectives_of(self, target: WatchConfig) -> Objectives:
        """Return the target's objectives."""
        o = self.objectives.get(target.objectives, DEFAULT_OBJECTIVES)
        return Objectives(
            name=target.objectives,
            window_s=o.window,
            availability=o.availability,
            ttft=o.ttft.objective() if o.ttft else None,
            tpot=o.tpot.objective() if o.tpot else None,
        )

    def workload(self, name: str) -> WorkloadConfig:
        """Return the workload with this name; "default" always exists."""
        return self.workloads.get(name, DEFAULT_WORKLOAD)

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
        if name is None or name in self.workloads or name == "default":
            return name
        known = ", ".join(self.workloads) or "(none is defined)"
        hint = did_you_mean(name, list(self.workloads))
        raise ConfigError(f"--workload {name}: not in the configuration{hint}; expected one of {known}")

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


def only_located(target: WatchConfig) -> TargetConfig:
    """Return a target with an address, for a command on one server. Raises ConfigError for a template."""
    if isinstance(target, TargetConfig):
        return target
    raise ConfigError(f"--target {target.name}: its servers are discovered at run time; use --base-url URL")


# The objectives of `--base-url`, and of targets without `objectives`: an interactive chat.
DEFAULT_OBJECTIVES = ObjectivesConfig(
    ttft=LatencyObjective.model_validate({"ratio": 0.95, "within": "500ms"}),
    tpot=LatencyObjective.model_validate({"ratio": 0.95, "within": "50ms"}),
)
DEFAULT_WORKLOAD = WorkloadConfig()


def load_config(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration in `path`. Raises ConfigError, one line per problem."""
    return config_from(read_yaml(path), str(path), environ)


def config_from(raw: object, source: str, environ: Mapping[str, str] = os.environ) -> Config:
    """Return a checked configuration from parsed YAML; messages begin with `source`. Raises ConfigError."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: expected a mapping with the key 'targets', got {type(raw).__name__}")
    try:
        expanded, problems = expand(raw, environ)
        if not problems:
            config = Config.model_validate(expanded)
            problems = _cross_key_problems(config, raw)
    except ValidationError as error:
        problems = describe(error, raw, Config)
    except (RecursionError, ValueError) as error:
        why = "it refers to itself" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{source}: not a configuration, {why}; write the values without aliases") from None
    if problems:
        raise ConfigError("\n".join(f"{source}: {one_line(problem, 400)}" for problem in problems))
    return config


def show(config: Config) -> str:
    """Return the effective configuration as YAML, with defaults and without secrets."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def config_hash(config: Config) -> str:
    """Return a short digest of the effective configuration; it does not depend on secrets."""
    return hashlib.sha256(show(config).encode()).hexdigest()[:12]


def _cross_key_problems(config: Config, raw: object) -> list[str]:
    """Return problems between keys: undefined names, duplicate names, missing files."""
    problems = [problem for i, t in enumerate(config.targets) for problem in _target_problems(i, t, config, raw)]
    problems += web_problems(config.web_config_file, raw)
    if config.lease is not None and importlib.util.find_spec("lightkube") is None:
        problems.append("lease: the package lightkube is not installed; pip install 'kneewatch[k8s]'")
    if config.lock_dir is not None and (words := folder_problem(config.lock_dir)):
        problems.append(f"lock_dir: {shown(['lock_dir'], raw)} {words}")
    problems.extend(load_problems(config.load))
    names = [target.name for target in config.targets]
    for i, name in enumerate(names):
        if name in names[:i]:
            written = shown(["targets", i, "name"], raw)
            first = names.index(name)
            problems.append(f"targets[{i}].name: {written} is also the name of targets[{first}]; use a unique name")
    for name, workload in config.workloads.items():
        shared = workload.prefix.shared_tokens if isinstance(workload.prefix, SharedPrefix) else 0
        if isinstance(workload.prompt_tokens, int) and shared > workload.prompt_tokens:
            problems.append(
                f"workloads.{name}.prefix.shared_tokens: {shared} is more than prompt_tokens,"
                f" {workload.prompt_tokens}; lower it"
            )
    return problems


def _target_problems(i: int, target: AnyTarget, config: Config, raw: object) -> list[str]:
    problems: list[str] = []

    def refer(keys: tuple[str, ...], name: str | None, known: Mapping[str, object], section: str) -> None:
        if name is not None and name not in known and name != "default":
            names = ", ".join(known) or "(none is defined)"
            hint = did_you_mean(name, list(known))
            written = shown(["targets", i, *keys], raw)
            problems.append(f"{at}.{'.'.join(keys)}: {written} is not in {section}{hint}; expected one of {names}")

    at = f"targets[{i}]"
    refer(("objectives",), target.objectives, config.objectives, "objectives")
    refer(("canary", "workload"), target.canary.workload, config.workloads, "workloads")
    refer(("capacity", "workload"), target.capacity.workload, config.workloads, "workloads")
    if target.api_key and target.api_key_file:
        problems.append(f"{at}: api_key and api_key_file are both set; keep api_key_file")
    if target.api_key_file and (words := file_problem(target.api_key_file)):
        problems.append(f"{at}.api_key_file: {shown(['targets', i, 'api_key_file'], raw)} {words}")
    if target.capacity.concurrency is not None and target.capacity.rates is not None:
        problems.append(f"{at}.capacity: concurrency and rates are both set; keep one of them")
    if target.passive and target.capacity.mode == "verify":
        problems.append(f"{at}: passive allows no load, but capacity.mode is verify; use forecast, or remove passive")
    if (missing_key := target.capacity.server.missing_key) is not None:
        problems.append(f"{at}.capacity.server: {missing_key}")
    budget = target.capacity.budget
    if budget.daily_tokens < budget.tokens_per_run:
        problems.append(
            f"{at}.capacity.budget.tokens_per_day: {budget.daily_tokens} is less than tokens_per_run,"
            f" {budget.tokens_per_run}; raise it"
        )
    return problems + [f"{at}.{line}" for line in _reaching_problems(i, target, raw)]


def _reaching_problems(i: int, target: AnyTarget, raw: object) -> Iterator[str]:
    def written(keys: str) -> str:
        return shown(["targets", i, *keys.split(".")], raw)

    if isinstance(target, TemplateConfig):
        base_url = f"{target.discover.scheme}://{target.name}"
        for key, is_set in (
            ("metrics_url", target.metrics_url is not None),
            ("connection.unix_socket", target.connection.unix_socket is not None),
            ("gpu", target.gpu.is_read),
        ):
            if is_set:
                yield f"{key}: would apply to every discovered server; remove it"
        yield from discover_problems(target.discover, written)
    else:
        base_url = target.base_url
    yield from connection_problems(
        target.tls,
        target.connection,
        base_url=base_url,
        metrics_url=target.metrics_url,
        timeout_s=target.canary.timeout,
        written=written,
    )
    yield from gpu_problems(target.gpu)
