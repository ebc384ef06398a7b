"""The `capacity` section of a target."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr

from probe.config.types import (
    ConfigSection,
    Count,
    Cron,
    Duration,
    ForecastInterval,
    GpuName,
    MatcherText,
    Name,
    Parameters,
    Positive,
    Rates,
    Steps,
    SwitchedOff,
    Timezone,
    WindowText,
    default_duration,
)
from probe.core.vllm_command import count

# Where a server's startup flags are read, in the order of precedence.
CONFIGURATION, SERVER_INFO, POD, PROCESS = FLAG_SOURCES = ("configuration", "server_info", "pod", "process")
_LIMITS = ("max_num_seqs", "max_num_batched_tokens")


class ScheduleConfig(ConfigSection):
    """When scheduled load may start."""

    cron: Cron = "0 4 * * *"
    timezone: Timezone = "UTC"
    windows: tuple[WindowText, ...] = ()


_RUN_TOKENS = 5_000_000


class BudgetConfig(ConfigSection):
    """Maximum cost of one capacity run, and of all runs of a day."""

    tokens_per_day: Count | None = None
    # By default a run may spend no more than a day may.
    tokens_per_run: Count = Field(
        default_factory=lambda data: min(_RUN_TOKENS, data.get("tokens_per_day") or _RUN_TOKENS),
        json_schema_extra={"default": _RUN_TOKENS},
    )
    seconds: Positive = 300.0
    over_objective_seconds: Positive = 20.0

    @property
    def daily_tokens(self) -> int:
        """The configured limit, or four times a run: the nightly run and three to confirm it or after a failure."""
        return 4 * self.tokens_per_run if self.tokens_per_day is None else self.tokens_per_day


class ServerLimitsConfig(ConfigSection):
    """Startup flags and hardware of the server that vLLM's metrics do not show.

    `flags`: further startup flags, which only distinguish one setup from another.
    """

    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpu: GpuName | None = None
    parameters: Parameters | None = None
    weight_bits: Literal[4, 8, 16] = 16
    gpus: Count = 1
    flags: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)  # of the flags that are not from the configuration

    @property
    def flag_sources(self) -> dict[str, str]:
        """Where each startup flag is from, as one of FLAG_SOURCES."""
        return {name: self._sources.get(name, CONFIGURATION) for name in self.startup_flags}

    def with_flags(self, flags: Mapping[str, str], source: str) -> Self:
        """Return these limits with the flags of a source, but for those that an earlier one of FLAG_SOURCES states."""
        rank = FLAG_SOURCES.index
        known = self.flag_sources
        new = {name: value for name, value in flags.items() if name not in known or rank(source) < rank(known[name])}
        limits = {name: number for name in _LIMITS if (number := count(new.get(name, "")))}
        others = {name: value for name, value in new.items() if name not in limits}
        changed = self.model_copy(update={**limits, "flags": {**self.flags, **others}})
        changed._sources = {**self._sources, **dict.fromkeys(new, source)}  # noqa: SLF001 - of the same class
        return changed

    @property
    def startup_flags(self) -> dict[str, str]:
        """All known startup flags, which are conditions of a capacity."""
        limits = self.model_dump(include=set(_LIMITS), exclude_none=True)
        return {**self.flags, **{name: str(value) for name, value in limits.items()}}

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
    confirm: Duration = default_duration("180s")
    observe: Duration = default_duration("30s")
    server: ServerLimitsConfig = ServerLimitsConfig()
    budget: BudgetConfig = BudgetConfig()
