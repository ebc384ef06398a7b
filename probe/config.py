"""The configuration: YAML in, frozen models out.

`load_config(path)` is the way in. Unknown keys, wrong units, missing files and dangling names are
one line each, with file, key path, what was expected and the mend. `${NAME}` in a value is replaced
from the environment after the YAML is parsed, so a value can never change the structure, and
messages show the text as written, so a value can never leak.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    SecretStr,
    Tag,
    ValidationError,
    WithJsonSchema,
)

from probe.config_errors import describe, did_you_mean
from probe.errors import ConfigError
from probe.records import Api, Objective, Objectives
from probe.units import DURATION_PATTERN, format_duration, parse_duration

MAX_CONFIG_BYTES = 1_000_000


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("expected a duration above zero")
    return seconds


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", text):
        raise ValueError(f"expected a name of at most 63 letters, digits, '-', '_' or '.', got {text!r}")
    return text


def _url(text: str) -> str:
    match = re.fullmatch(r"https?://([^/?#\s]+)(/[^?#\s]*)?", text)
    if not match:
        raise ValueError(f"expected an address such as http://llama-8b:8000, got {text!r}")
    if "@" in match.group(1):
        raise ValueError("credentials do not belong into an address; use api_key_file")
    return text.rstrip("/")


def _base_url(text: str) -> str:
    return _url(text).removesuffix("/v1")


def _cron(text: str) -> str:
    from probe.schedule import check_cron  # noqa: PLC0415 - slow to import, and needed for a written schedule only

    try:
        check_cron(text)
    except ValueError as error:
        raise ValueError(f"expected five cron fields such as '0 4 * * *', got {text!r} ({error})") from None
    return text


def _timezone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"expected a time zone such as UTC or Europe/Berlin, got {text!r}") from None
    return text


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    AfterValidator(_positive),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["500ms", "15s", "1h"]}),
]
Name = Annotated[str, AfterValidator(_name)]
Url = Annotated[str, AfterValidator(_url)]
Ratio = Annotated[float, Field(gt=0, lt=1)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000)]


def _arm(value: object) -> str:
    """Which arm of "a plain value or a mapping" is meant: errors then speak of that one alone."""
    return "mapping" if isinstance(value, dict | BaseModel) else "plain"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class LatencyObjective(_Model):
    """`ratio` of requests within `within`."""

    ratio: Ratio
    within: Duration

    def objective(self) -> Objective:
        return Objective(ratio=self.ratio, within_s=self.within)


class ObjectivesConfig(_Model):
    """What users were promised."""

    window: Duration = 30 * 86400.0
    availability: Ratio | None = 0.999
    ttft: LatencyObjective | None = None
    tpot: LatencyObjective | None = None


class Lognormal(_Model):
    """Lengths drawn from a log-normal distribution, cut at `max`."""

    median: Tokens
    sigma: Annotated[float, Field(gt=0, le=3)]
    max: Tokens


class LognormalTokens(_Model):
    """The long form of a token count."""

    lognormal: Lognormal


class SharedPrefix(_Model):
    """The first tokens are the same in every prompt, so the server's prefix cache hits."""

    shared_tokens: Tokens


TokenCount = Annotated[
    Annotated[Tokens, Tag("plain")] | Annotated[LognormalTokens, Tag("mapping")], Discriminator(_arm)
]
Prefix = Annotated[
    Annotated[Literal["unique"], Tag("plain")] | Annotated[SharedPrefix, Tag("mapping")], Discriminator(_arm)
]


class WorkloadConfig(_Model):
    """What one request looks like."""

    api: Api = Api.COMPLETIONS
    prompt_tokens: TokenCount = 256
    output_tokens: TokenCount = 128
    prefix: Prefix = "unique"


class CanaryConfig(_Model):
    """A low-rate synthetic request.

    `startup_grace`: for so long after our own start, failures before the first success are not counted. For a
    sidecar, which starts minutes before its server has loaded its weights.
    """

    every: Duration = 15.0
    workload: Name = "default"
    timeout: Duration = 30.0
    startup_grace: Duration | None = None


class ScheduleConfig(_Model):
    """When scheduled load may start."""

    cron: Annotated[str, AfterValidator(_cron)]
    timezone: Annotated[str, AfterValidator(_timezone)] = "UTC"


class BudgetConfig(_Model):
    """What one capacity run may cost at most."""

    tokens_per_run: Annotated[int, Field(ge=1)] = 500_000
    seconds: Annotated[float, Field(gt=0)] = 300.0
    over_objective_seconds: Annotated[float, Field(gt=0)] = 20.0


class CapacityConfig(_Model):
    """Step-up load. Off unless asked for: it runs against servers that users are on."""

    mode: Literal["off", "verify"] = "off"
    schedule: ScheduleConfig = ScheduleConfig(cron="0 4 * * *")
    workload: Name | None = None
    concurrency: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1)] = (
        1,
        2,
        4,
        8,
        16,
    )
    step: Duration = 15.0
    budget: BudgetConfig = BudgetConfig()


class TlsConfig(_Model):
    """How the target's certificate is checked."""

    ca_file: Path | None = None
    verify: bool = True


class TargetConfig(_Model):
    """One server to watch. Only servers named here get traffic."""

    name: Name
    base_url: Annotated[str, AfterValidator(_base_url)]
    model: Annotated[str, Field(min_length=1, max_length=256)] = "auto"
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    tls: TlsConfig = TlsConfig()
    metrics_url: Url | None = None
    scrape: Duration = 5.0
    objectives: Name = "default"
    canary: CanaryConfig = CanaryConfig()
    capacity: CapacityConfig = CapacityConfig()

    def secret(self) -> str | None:
        """The API key, read anew from `api_key_file` so that a rotated secret is used.

        Raises OSError where the file went away since the configuration was loaded.
        """
        if self.api_key_file is not None:
            return self.api_key_file.read_text().strip()
        return self.api_key.get_secret_value() if self.api_key else None


class PrometheusConfig(_Model):
    """Prometheus, asked before load is added whether an alert fires for the target."""

    url: Url


class StoreConfig(_Model):
    """Where results are kept. Without a path they live as long as the process."""

    path: Path | None = None


class Config(_Model):
    """The whole configuration."""

    listen: Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}$")] = "127.0.0.1:9876"
    prometheus: PrometheusConfig | None = None
    store: StoreConfig = StoreConfig()
    objectives: dict[Name, ObjectivesConfig] = Field(default_factory=dict)
    workloads: dict[Name, WorkloadConfig] = Field(default_factory=dict)
    targets: Annotated[tuple[TargetConfig, ...], Field(min_length=1)]

    def objectives_of(self, target: TargetConfig) -> Objectives:
        """The target's objectives, as the rest of the program uses them."""
        o = self.objectives.get(target.objectives, DEFAULT_OBJECTIVES)
        return Objectives(
            name=target.objectives,
            window_s=o.window,
            availability=o.availability,
            ttft=o.ttft.objective() if o.ttft else None,
            tpot=o.tpot.objective() if o.tpot else None,
        )

    def workload(self, name: str) -> WorkloadConfig:
        """The workload of that name; "default" exists without being written."""
        return self.workloads.get(name, DEFAULT_WORKLOAD)

    def target(self, name: str) -> TargetConfig:
        """The target of that name. Raises ConfigError."""
        for target in self.targets:
            if target.name == name:
                return target
        known = [t.name for t in self.targets]
        hint = did_you_mean(name, known)
        raise ConfigError(f"--target {name}: not in the configuration{hint}; expected one of {', '.join(known)}")

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


# What `--base-url` alone, or a target that names nothing, is held to: an interactive chat.
DEFAULT_OBJECTIVES = ObjectivesConfig(
    ttft=LatencyObjective.model_validate({"ratio": 0.95, "within": "500ms"}),
    tpot=LatencyObjective.model_validate({"ratio": 0.95, "within": "50ms"}),
)
DEFAULT_WORKLOAD = WorkloadConfig()


def load_config(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration in `path`. Raises ConfigError, one line a problem."""
    raw = _read_yaml(path)
    return config_from(raw, str(path), environ)


def config_from(raw: object, source: str, environ: Mapping[str, str] = os.environ) -> Config:
    """A checked configuration from parsed YAML; `source` names it in messages. Raises ConfigError."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: expected a mapping with the key 'targets', got {type(raw).__name__}")
    problems: list[str] = []
    expanded = _expand(raw, "", environ, problems)
    if not problems:
        try:
            config = Config.model_validate(expanded)
        except ValidationError as error:
            problems = describe(error, raw, Config)
        else:
            problems = _dangling(config)
    if problems:
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems))
    return config


def show(config: Config) -> str:
    """The effective configuration as YAML, defaults included and secrets hidden."""
    return yaml.safe_dump(config.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def config_hash(config: Config) -> str:
    """A short digest of the effective configuration; it does not depend on secrets."""
    return hashlib.sha256(show(config).encode()).hexdigest()[:12]


def _read_yaml(path: Path) -> object:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing file with -c FILE") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: {len(data)} bytes; expected a configuration of at most {MAX_CONFIG_BYTES}")
    try:
        return yaml.load(data, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader that also refuses duplicates
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not valid YAML ({error.problem})") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML ({str(error).splitlines()[0]})") from None


class _StrictLoader(yaml.SafeLoader):
    """YAML takes the last of two equal keys silently; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = getattr(key_node, "value", None)
            if isinstance(key, str) and key != "<<":
                if key in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key!r} stands here twice; keep one",
                        problem_mark=key_node.start_mark,
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _expand(value: object, path: str, environ: Mapping[str, str], problems: list[str]) -> object:
    if isinstance(value, dict):
        return {k: _expand(v, f"{path}.{k}" if path else str(k), environ, problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, f"{path}[{i}]", environ, problems) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value
    missing = [name for name in _VARIABLE.findall(value) if name not in environ]
    if missing:
        problems.append(f"{path}: the environment variable {missing[0]} is not set; set it, or write the value")
        return value
    return _VARIABLE.sub(lambda match: environ[match.group(1)], value)


def _dangling(config: Config) -> list[str]:
    """Names that point nowhere, names given twice, and files that are not there."""
    problems = [
        problem for i, t in enumerate(config.targets) for problem in _target_problems(f"targets[{i}]", t, config)
    ]
    names = [target.name for target in config.targets]
    for i, name in enumerate(names):
        if name in names[:i]:
            problems.append(
                f"targets[{i}].name: {name!r} is already targets[{names.index(name)}]; give each target its own name"
            )
    for name, workload in config.workloads.items():
        shared = workload.prefix.shared_tokens if isinstance(workload.prefix, SharedPrefix) else 0
        if isinstance(workload.prompt_tokens, int) and shared > workload.prompt_tokens:
            problems.append(
                f"workloads.{name}.prefix.shared_tokens: {shared} is more than the prompt's"
                f" {workload.prompt_tokens} tokens; make it smaller"
            )
    return problems


def _target_problems(at: str, target: TargetConfig, config: Config) -> list[str]:
    problems: list[str] = []

    def refer(key: str, name: str | None, known: Mapping[str, object], section: str) -> None:
        if name is not None and name not in known and name != "default":
            names = ", ".join(known) or "(none is defined)"
            hint = did_you_mean(name, list(known))
            problems.append(f"{at}.{key}: {name!r} is not in {section}{hint}; expected one of {names}")

    refer("objectives", target.objectives, config.objectives, "objectives")
    refer("canary.workload", target.canary.workload, config.workloads, "workloads")
    refer("capacity.workload", target.capacity.workload, config.workloads, "workloads")
    if target.api_key and target.api_key_file:
        problems.append(f"{at}: api_key and api_key_file are both set; keep api_key_file")
    for key, file in (("api_key_file", target.api_key_file), ("tls.ca_file", target.tls.ca_file)):
        if file is not None and not os.access(file, os.R_OK):
            problems.append(f"{at}.{key}: {file} cannot be read; create it, or mend the path")
    return problems
