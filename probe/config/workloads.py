"""The `workloads` section: shapes of requests by name, those that exist without being configured, and its checks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Discriminator, Field, PrivateAttr, Tag, model_validator

from probe.config.messages import did_you_mean
from probe.config.types import ConfigSection, Name, NotASwitch, Tokens, arm
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
    """Number of tokens at the start that prompts share; at most `prompt_tokens`, unless there are `turns`."""
    ratio: Annotated[float, Field(gt=0, le=1), NotASwitch] = 1.0
    """Share of the prompts that begin with the shared tokens; the others are unique."""


TokenCount = Annotated[Annotated[Tokens, Tag("plain")] | Annotated[LognormalTokens, Tag("mapping")], Discriminator(arm)]
Prefix = Annotated[
    Annotated[Literal["unique"], Tag("plain")] | Annotated[SharedPrefix, Tag("mapping")], Discriminator(arm)
]


Correlation = Annotated[float, Field(gt=-1, lt=1), NotASwitch]
Turns = Annotated[int, Field(ge=1, le=50), NotASwitch]
Conversations = Annotated[int, Field(ge=1, le=1024), NotASwitch]
Weight = Annotated[float, Field(gt=0, le=1e6), NotASwitch]


class WorkloadConfig(ConfigSection):
    """The shape of requests."""

    api: Api = Api.COMPLETIONS
    """`completions` and `embeddings` send token ids, so lengths are exact; the others send text of about the same
    length. `embeddings`, `rerank` and `score` generate no tokens ([engines.md](engines.md#apis)).
    """
    prompt_tokens: TokenCount = 256
    """Length of the prompt, or `lognormal`. With `turns`, the tokens that each turn adds."""
    output_tokens: TokenCount = 128
    """Length of the answer, or `lognormal`; the request makes the server stop exactly there, except with `api:
    messages`, where the model may end earlier. Not for an `api` that generates no tokens.
    """
    prefix: Prefix = "unique"
    """`unique`: no prompt hits the server's prefix cache. Or `shared_tokens`."""
    correlation: Correlation = 0.0
    """Correlation of the two lengths, between -1 and 1, where both vary: above 0, longer prompts get longer answers."""
    turns: Turns = 1
    """Requests of a conversation. The prompt of each holds the shared prefix, all turns before it and as many tokens as
    their answers had, so it grows and hits the prefix cache.
    """
    conversations: Conversations = 32
    """With `turns`: number of conversations in progress. They take turns, so the next request of a conversation comes
    `conversations` requests later.
    """
    mixture: Annotated[dict[Name, Weight], Field(min_length=1)] | None = None
    """Requests of several workloads in one stream, by name and weight, such as `{short-chat: 9, long-prefill: 1}`; of
    the other keys only `api` may be set too.
    """
    _parts: dict[str, "WorkloadConfig"] = PrivateAttr(default_factory=dict)

    def with_parts(self, known: Mapping[str, "WorkloadConfig"]) -> "WorkloadConfig":
        """Return the workload with the known workloads that its mixture names."""
        if self.mixture is None:
            return self
        found = self.model_copy()
        found._parts = {name: known[name] for name in self.mixture if name in known}  # noqa: SLF001 - of the same class
        return found

    @property
    def parts(self) -> Mapping[str, "WorkloadConfig"]:
        """Return the workloads of the mixture by name, once they are known."""
        return self._parts

    @property
    def shared_tokens(self) -> int:
        """Return the tokens that prompts share at their start."""
        return self.prefix.shared_tokens if isinstance(self.prefix, SharedPrefix) else 0

    @property
    def longest_answer(self) -> int:
        """Return the most output tokens of a request; 0 if the API generates none."""
        if self.mixture is not None:
            return max((part.longest_answer for part in self._parts.values()), default=0)
        return _most(self.output_tokens) if self.api.generates else 0

    @property
    def most_tokens(self) -> int:
        """Return the most prompt and output tokens of a request."""
        if self.mixture is not None:
            return max((part.most_tokens for part in self._parts.values()), default=0)
        prompt, output = _most(self.prompt_tokens), self.longest_answer
        before = self.shared_tokens + (self.turns - 1) * (prompt + output) if self.turns > 1 else 0
        return before + prompt + output


def _most(tokens: int | LognormalTokens) -> int:
    return tokens if isinstance(tokens, int) else tokens.lognormal.max


DEFAULT_WORKLOAD = WorkloadConfig()
USERS = "users"  # the lengths that users send, for capacity only


def _varying(median: int, sigma: float, longest: int) -> LognormalTokens:
    return LognormalTokens(lognormal=Lognormal(median=median, sigma=sigma, max=longest))


@dataclass(frozen=True, slots=True)
class Preset:
    """A workload that Kneewatch knows by name; `shows`: what its capacity is about."""

    name: str
    shows: str
    workload: WorkloadConfig


# The two with a prefix differ only in what the prefix cache has. All requests fit into a context of 4352 tokens.
PRESET_ROWS = (
    Preset("default", "the same as `short-chat`", DEFAULT_WORKLOAD),
    Preset(
        "short-chat",
        "a balance of prefill and decode",
        WorkloadConfig(prompt_tokens=256, output_tokens=128),
    ),
    Preset(
        "long-prefill",
        "prefill, as in retrieval and summaries: TTFT breaks first",
        WorkloadConfig(prompt_tokens=2048, output_tokens=128),
    ),
    Preset(
        "long-decode",
        "decode: memory bandwidth, and a KV cache that fills while answers grow",
        WorkloadConfig(prompt_tokens=256, output_tokens=1024),
    ),
    Preset(
        "mixed",
        "both: long prompts delay the tokens of answers under way",
        WorkloadConfig(prompt_tokens=2048, output_tokens=1024),
    ),
    Preset(
        "prefix-cold",
        "long prompts that never hit the prefix cache",
        WorkloadConfig(prompt_tokens=4096, output_tokens=256),
    ),
    Preset(
        "prefix-warm",
        "the same prompts with prefix-cache hits; the difference is the cache's gain",
        WorkloadConfig(prompt_tokens=4096, output_tokens=256, prefix=SharedPrefix(shared_tokens=3840)),
    ),
    Preset(
        "varied-chat",
        "chat as users send it: long prompts delay short ones",
        WorkloadConfig(
            prompt_tokens=_varying(400, 0.9, 3000),
            output_tokens=_varying(150, 0.8, 1000),
            prefix=SharedPrefix(shared_tokens=256, ratio=0.7),
            correlation=0.4,
        ),
    ),
    Preset(
        "conversation",
        "contexts that grow, mostly from the prefix cache",
        WorkloadConfig(
            prompt_tokens=_varying(80, 0.7, 300),
            output_tokens=_varying(150, 0.6, 400),
            prefix=SharedPrefix(shared_tokens=256),
            turns=5,
        ),
    ),
    Preset(
        "production",
        "everything at once",
        WorkloadConfig(mixture={"varied-chat": 6.0, "conversation": 2.0, "long-prefill": 1.0, "long-decode": 1.0}),
    ),
)
PRESETS: Mapping[str, WorkloadConfig] = {row.name: row.workload for row in PRESET_ROWS}


_MOST = 1_000_000  # tokens of a request, as for a single length
_OWN = ("prompt_tokens", "output_tokens", "prefix", "correlation", "turns", "conversations")


def workload_problems(workloads: Mapping[str, WorkloadConfig]) -> Iterator[str]:
    """Yield problems, each with what follows the section's name in its path."""
    for name, workload in workloads.items():
        yield from (f"{name}.{line}" for line in _without_effect(workload))
        shared = workload.shared_tokens
        if isinstance(workload.prompt_tokens, int) and workload.turns == 1 and shared > workload.prompt_tokens:
            most = workload.prompt_tokens
            yield f"{name}.prefix.shared_tokens: {shared} is more than prompt_tokens, {most}; lower it"
        if workload.turns > 1 and workload.most_tokens > _MOST:
            yield (
                f"{name}.turns: the last request may have {workload.most_tokens} tokens, expected at most {_MOST};"
                " lower turns or the lengths"
            )
        for part in workload.mixture or {}:
            known = {**PRESETS, **workloads}
            if part not in known:
                hint = did_you_mean(part, [*known])
                yield f"{name}.mixture.{part}: is not in workloads and no preset{hint}; add it under workloads"
            elif known[part].mixture is not None:
                yield f"{name}.mixture.{part}: is a mixture itself; name its workloads instead"


def _without_effect(workload: WorkloadConfig) -> Iterator[str]:
    """Yield problems with keys that have no effect. Each begins with its key."""
    if not workload.api.generates:
        for key in ("output_tokens", "correlation", "turns", "conversations", "mixture"):
            if key in workload.model_fields_set:
                yield f"{key}: has no effect with api: {workload.api.value}, which generates no tokens; remove it"
        return
    if workload.mixture is not None:
        others = [key for key in _OWN if getattr(workload, key) != getattr(DEFAULT_WORKLOAD, key)]
        if others:
            yield f"mixture: its workloads set {', '.join(others)} themselves; remove the keys set next to mixture"
        return
    if workload.turns == 1 and workload.conversations != DEFAULT_WORKLOAD.conversations:
        yield "conversations: has no effect without turns; add turns, or remove it"
    if workload.correlation and (isinstance(workload.prompt_tokens, int) or isinstance(workload.output_tokens, int)):
        yield "correlation: has no effect unless both lengths vary; set both to lognormal, or remove it"
