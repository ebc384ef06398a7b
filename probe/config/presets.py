"""The workloads that exist without being configured."""

from collections.abc import Mapping

from probe.config.workloads import DEFAULT_WORKLOAD, Lognormal, LognormalTokens, SharedPrefix, WorkloadConfig


def _varying(median: int, sigma: float, longest: int) -> LognormalTokens:
    return LognormalTokens(lognormal=Lognormal(median=median, sigma=sigma, max=longest))


# The two with a prefix differ only in what the prefix cache has. All requests fit into a context of 4352 tokens.
PRESETS: Mapping[str, WorkloadConfig] = {
    "default": DEFAULT_WORKLOAD,
    "short-chat": WorkloadConfig(prompt_tokens=256, output_tokens=128),
    "long-prefill": WorkloadConfig(prompt_tokens=2048, output_tokens=128),
    "long-decode": WorkloadConfig(prompt_tokens=256, output_tokens=1024),
    "mixed": WorkloadConfig(prompt_tokens=2048, output_tokens=1024),
    "prefix-cold": WorkloadConfig(prompt_tokens=4096, output_tokens=256),
    "prefix-warm": WorkloadConfig(prompt_tokens=4096, output_tokens=256, prefix=SharedPrefix(shared_tokens=3840)),
    "varied-chat": WorkloadConfig(
        prompt_tokens=_varying(400, 0.9, 3000),
        output_tokens=_varying(150, 0.8, 1000),
        prefix=SharedPrefix(shared_tokens=256, ratio=0.7),
        correlation=0.4,
    ),
    "conversation": WorkloadConfig(
        prompt_tokens=_varying(80, 0.7, 300),
        output_tokens=_varying(150, 0.6, 400),
        prefix=SharedPrefix(shared_tokens=256),
        turns=5,
    ),
    "production": WorkloadConfig(
        mixture={"varied-chat": 6.0, "conversation": 2.0, "long-prefill": 1.0, "long-decode": 1.0}
    ),
}
