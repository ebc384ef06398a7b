"""Live objects from the configuration: endpoint, lock, workload."""

from pathlib import Path

from probe.capacity.run.locks import FileLock, Lock
from probe.client.api_request import RequestShape
from probe.client.endpoint import Endpoint
from probe.client.secrets import AuthHeader
from probe.config.config import Config
from probe.config.requests import PromptForm
from probe.config.targets import TargetConfig
from probe.config.workloads import Lognormal, LognormalTokens, SharedPrefix, WorkloadConfig
from probe.core.clock import Clock
from probe.core.workload import LognormalLength as Lengths
from probe.core.workload import Part, Workload, mixed
from probe.scrape.scraper import Scraper


def endpoint(target: TargetConfig) -> Endpoint:
    """Return the target's endpoint: address, credentials and timeouts."""
    tls, connection = target.tls, target.connection
    auth_name, _, auth_scheme = target.auth_header.partition(" ")
    return Endpoint(
        target=target.name,
        base_url=target.base_url,
        metrics_url=target.metrics_url or "",
        metrics_urls=target.metrics_urls or (),
        secret=target.secret,
        secret_headers=target.secret_headers,
        plain_headers=target.plain_headers(),
        auth_header=AuthHeader(auth_name, auth_scheme),
        shape=shape_of(target),
        ca_file=_text(tls.ca_file),
        verify=tls.verify,
        cert_file=_text(tls.cert_file),
        key_file=_text(tls.key_file),
        unix_socket=_text(connection.unix_socket),
        proxy=connection.proxy,
        proxy_auth_file=_text(connection.proxy_auth_file),
        http2=connection.http2,
        connect_s=connection.connect_timeout,
        first_byte_s=connection.first_byte_timeout,
        between_bytes_s=connection.between_bytes_timeout,
    )


def shape_of(target: TargetConfig) -> RequestShape:
    """Return how the target's requests differ from those to vLLM."""
    request = target.request
    is_text = request.prompt is PromptForm.TEXT
    return RequestShape(
        request.extra_body,
        frozenset(request.omit),
        is_text,
        request.expect_done,
        request.vector_length,
        request.chat_limit.value,
    )


def engine_of(target: TargetConfig) -> str | None:
    """Return the configured engine, or None to detect it from the metrics page."""
    return None if target.engine == "auto" else target.engine


def scraper_of(target: TargetConfig, clock: Clock, timeout_s: float) -> Scraper:
    """Return the scraper of the target's server; with `metrics_discovery` it has to be told the replicas' pages."""
    return Scraper(
        endpoint(target),
        clock,
        timeout_s=timeout_s,
        engine=engine_of(target),
        follows=target.metrics_discovery is not None,
        kv_cache_tokens=target.capacity.server.kv_cache_tokens,
    )


def lock(config: Config, target: TargetConfig, clock: Clock) -> Lock:
    """Return the lock that keeps other probers from loading the target's server."""
    if config.lease is not None:
        from probe.capacity.run.lease_lock import KubernetesLease  # noqa: PLC0415 - memory that only this option needs

        return KubernetesLease(target.server, config.lease.namespace, clock)
    return FileLock(target.server, config.lock_dir, clock)


def workload(name: str, config: WorkloadConfig) -> Workload:
    """Return the configured workload for the request generator."""
    if config.mixture is not None:
        whole = sum(config.mixture[part] for part in config.parts)
        kinds = ((part, of_part, config.mixture[part] / whole) for part, of_part in config.parts.items())
        return mixed(name, config.api, tuple(_part(part, of_part, share) for part, of_part, share in kinds))
    if not config.api.generates:
        return Workload(name, config.api, _tokens(config.prompt_tokens), 0, config.shared_tokens)
    one = _part(name, config, 1.0)
    if one.turns > 1 or one.correlation or (one.shared_tokens and one.shared_ratio < 1):
        return mixed(name, config.api, (one,))
    return Workload(name, config.api, one.prompt_tokens, one.output_tokens, one.shared_tokens)


def _part(name: str, config: WorkloadConfig, share: float) -> Part:
    return Part(
        name=name,
        share=share,
        prompt_tokens=_tokens(config.prompt_tokens),
        output_tokens=_tokens(config.output_tokens),
        shared_tokens=config.shared_tokens,
        shared_ratio=config.prefix.ratio if isinstance(config.prefix, SharedPrefix) else 1.0,
        correlation=config.correlation,
        turns=config.turns,
        conversations=config.conversations if config.turns > 1 else 1,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _tokens(tokens: int | LognormalTokens) -> int | Lengths:
    if isinstance(tokens, int):
        return tokens
    lognormal: Lognormal = tokens.lognormal
    return Lengths(median=lognormal.median, sigma=lognormal.sigma, maximum=lognormal.max)
