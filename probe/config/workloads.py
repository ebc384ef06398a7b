"""The `workloads` section: shapes of requests by name."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from probe.config.types import ConfigSection, NotASwitch, Tokens, arm
from probe.core.request import Api


class Lognormal(ConfigSection):
    """Lengths from a log-normal distribution, cut at `max`."""

    median: Tokens
    """Median of varying lengths; at most `max`."""
    sigma: Annotated[float, Field(gt=0, le=3), NotASwitch]
    """Standard deviation of the logarithm."""
    max: Tokens
    """Maximum; longer lengths are cut to it."""

    @model_validator(mode="after")
    def _median_below_max(self) -> "Lognormal":
        if self.median > self.max:
            raise ValueError("expected a median of at most max")
        return self


class LognormalTokens(ConfigSection):
    """The long form of a token count: a distribution."""

    lognormal: Lognormal
    """Lengths from a log-normal distribution."""


class SharedPrefix(ConfigSection):
    """Prompts share their first tokens, so that the server's prefix cache hits."""

    shared_tokens: Tokens
    """Number of tokens at the start that all prompts share; at most `prompt_tokens`."""


TokenCount = Annotated[Annotated[Tokens, Tag("plain")] | Annotated[LognormalTokens, Tag("mapping")], Discriminator(arm)]
Prefix = Annotated[
    Annotated[Literal["unique"], Tag("plain")] | Annotated[SharedPrefix, Tag("mapping")], Discriminator(arm)
]


class WorkloadConfig(ConfigSection):
    """The shape of requests."""

    api: Api = Api.COMPLETIONS
    """`completions` sends token ids, so lengths are exact; `chat` sends text of about the same length."""
    prompt_tokens: TokenCount = 256
    """Length of the prompt, or `lognormal`."""
    output_tokens: TokenCount = 128
    """Length of the answer, or `lognormal`; the request makes the server stop exactly there."""
    prefix: Prefix = "unique"
    """`unique`: no prompt hits the server's prefix cache. Or `shared_tokens`."""

    @property
    def most_tokens(self) -> int:
        """The most prompt and output tokens of a request."""
        lengths = (self.prompt_tokens, self.output_tokens)
        return sum(tokens if isinstance(tokens, int) else tokens.lognormal.max for tokens in lengths)


DEFAULT_WORKLOAD = WorkloadConfig()
USERS = "users"  # the lengths that users send, for capacity only
# The workloads that exist without being configured. The two with a prefix differ only in what the prefix cache has.
PRESETS = {
    "default": DEFAULT_WORKLOAD,
    "short-chat": WorkloadConfig(prompt_tokens=256, output_tokens=128),
    "long-prefill": WorkloadConfig(prompt_tokens=2048, output_tokens=128),
    "long-decode": WorkloadConfig(prompt_tokens=256, output_tokens=1024),
    "mixed": WorkloadConfig(prompt_tokens=2048, output_tokens=1024),
    "prefix-cold": WorkloadConfig(prompt_tokens=4096, output_tokens=256),
    "prefix-warm": WorkloadConfig(prompt_tokens=4096, output_tokens=256, prefix=SharedPrefix(shared_tokens=3840)),
}
