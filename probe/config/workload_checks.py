"""Checks between the keys of workloads: what a mixture names, and lengths that cannot be."""

from collections.abc import Iterator

from probe.config.config import Config
from probe.config.messages import did_you_mean
from probe.config.presets import PRESETS
from probe.config.workloads import DEFAULT_WORKLOAD, WorkloadConfig

_MOST = 1_000_000  # tokens of a request, as for a single length
_OWN = ("prompt_tokens", "output_tokens", "prefix", "correlation", "turns", "conversations")


def workload_problems(config: Config) -> Iterator[str]:
    """Yield problems, each with what follows the section's name in its path."""
    for name, workload in config.workloads.items():
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
            known = {**PRESETS, **config.workloads}
            if part not in known:
                hint = did_you_mean(part, [*known])
                yield f"{name}.mixture.{part}: is not in workloads and no preset{hint}; add it under workloads"
            elif known[part].mixture is not None:
                yield f"{name}.mixture.{part}: is a mixture itself; name its workloads instead"


def _without_effect(workload: WorkloadConfig) -> Iterator[str]:
    """Yield problems with keys that have no effect, each from its key on."""
    if not workload.api.generates:
        for key in ("output_tokens", "correlation", "turns", "conversations", "mixture"):
            if key in workload.model_fields_set:
                yield f"{key}: has no effect with api: {workload.api.value}, which generates no tokens; remove it"
        return
    if workload.mixture is not None:
        others = [key for key in _OWN if getattr(workload, key) != getattr(DEFAULT_WORKLOAD, key)]
        if others:
            yield f"mixture: its workloads have their own {', '.join(others)}; remove what stands beside it"
        return
    if workload.turns == 1 and workload.conversations != DEFAULT_WORKLOAD.conversations:
        yield "conversations: has no effect without turns; add turns, or remove it"
    if workload.correlation and (isinstance(workload.prompt_tokens, int) or isinstance(workload.output_tokens, int)):
        yield "correlation: has no effect unless both lengths vary; set both to lognormal, or remove it"
