"""The `canary` and `canaries` sections of a target."""

from typing import Annotated, Literal

from pydantic import Field

from probe.config.headers import HeadersConfig
from probe.config.types import CanaryInterval, ConfigSection, Duration, Name, NotASwitch, Pattern, default_duration
from probe.config.workloads import WorkloadConfig

# The most canaries of one kind in flight, if each runs into its timeout.
MAX_CANARIES = 64
# Each kind has about a hundred series.
MAX_KINDS = 8
_DAY_S = 86_400.0

ModelName = Annotated[str, Field(min_length=1, max_length=256)]


class KnownAnswerConfig(ConfigSection):
    """A question with a known answer, asked in addition to the canaries."""

    prompt: Annotated[str, Field(min_length=1, max_length=4000)] = "What is the capital of France? Answer in one word."
    """The question. Set it together with `expect`."""
    expect: Pattern = "(?i)paris"
    r"""Regular expression, in Python's syntax, to be found in the answer; for an exact answer `\A42\Z`."""
    every: CanaryInterval = default_duration("5m")
    """Interval of the question while it is answered well; at least `1s`."""
    api: Literal["completions", "chat", "responses", "messages"] = "chat"
    """API of the question; `completions` for a base model, with a prompt that it continues."""
    max_tokens: Annotated[int, Field(ge=1, le=4096), NotASwitch] = 256
    """Most tokens of the answer; a reasoning model needs room to think."""

    @property
    def most_prompt_tokens(self) -> int:
        """Return the most tokens of the prompt: a token is a byte or more."""
        return len(self.prompt.encode())


class CanaryConfig(ConfigSection):
    """Synthetic requests at a low rate."""

    every: CanaryInterval = default_duration("15s")
    """Interval of the canaries, plus or minus 10 %, however slow the server is: canaries overlap. At least `1s`."""
    workload: Name = "default"
    """Workload of the canaries: a name under `workloads`, or a preset."""
    timeout: Duration | None = None
    """Limit of a whole answer. Default: four times what the objectives allow the longest answer, at least `30s`; a
    wait for the first token, or for the next, then ends after `30s`, or four times its objective if that is longer.
    At most 64 times `every`: that many canaries are in flight while a server is stuck.
    """
    startup_grace: Duration | None = None
    """For this long after Kneewatch starts, failures before the first success are not counted. It is for a sidecar,
    which starts minutes before its server has loaded the weights.
    """
    known_answer: KnownAnswerConfig | None = None
    """A question with a known answer, asked in addition to the canaries. Without the section none is asked."""

    def most_tokens_per_day(self, workload: WorkloadConfig) -> float:
        """Return the most tokens of a day's canaries, if each answer is wrong so that each one's question is asked."""
        asked = self.known_answer
        question = 0 if asked is None else asked.most_prompt_tokens + asked.max_tokens
        return _DAY_S / self.every * (workload.most_tokens + question)


class CanaryKindConfig(CanaryConfig):
    """One of several kinds of canaries."""

    model: ModelName | None = None
    """Model or adapter of this kind. Default: the target's."""
    headers: HeadersConfig = Field(default_factory=dict)
    """Headers added to the target's; one of the same name replaces it."""
