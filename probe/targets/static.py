"""A configured target, opened: its address, its connections, its workloads."""

from probe.client.endpoint import Endpoint
from probe.config import Lognormal, LognormalTokens, SharedPrefix, TargetConfig, WorkloadConfig
from probe.workload import Lognormal as Lengths
from probe.workload import Workload


def endpoint(target: TargetConfig) -> Endpoint:
    """Where the target is and how to get in."""
    return Endpoint(
        target=target.name,
        base_url=target.base_url,
        metrics_url=target.metrics_url or "",
        secret=target.secret,
        ca_file=str(target.tls.ca_file) if target.tls.ca_file else None,
        verify=target.tls.verify,
    )


def workload(name: str, config: WorkloadConfig) -> Workload:
    """The configured workload as the generator takes it."""
    return Workload(
        name=name,
        api=config.api,
        prompt_tokens=_tokens(config.prompt_tokens),
        output_tokens=_tokens(config.output_tokens),
        shared_tokens=config.prefix.shared_tokens if isinstance(config.prefix, SharedPrefix) else 0,
    )


def _tokens(tokens: int | LognormalTokens) -> int | Lengths:
    if isinstance(tokens, int):
        return tokens
    lognormal: Lognormal = tokens.lognormal
    return Lengths(median=lognormal.median, sigma=lognormal.sigma, maximum=lognormal.max)
