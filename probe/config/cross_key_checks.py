"""Checks between keys: undefined names, duplicate names, contradictions and missing files."""

import importlib.util
import itertools
from collections.abc import Iterator, Mapping, Sequence

from probe.config.canary_checks import canary_keys, canary_problems
from probe.config.config import Config
from probe.config.connection import connection_problems
from probe.config.discovery import discover_problems, replica_problems
from probe.config.gpu import gpu_problems
from probe.config.headers import header_problems
from probe.config.load import load_problems
from probe.config.messages import did_you_mean, dotted, shown
from probe.config.otlp import otlp_problems
from probe.config.path_checks import authorities_problem, file_problem, folder_problem
from probe.config.presets import PRESETS
from probe.config.targets import AnyTarget, TemplateConfig
from probe.config.web import web_problems
from probe.config.workload_checks import workload_problems
from probe.config.workloads import USERS

# The names that exist without being configured.
_BUILT_IN: Mapping[str, Sequence[str]] = {"objectives": ("default",), "workloads": (*PRESETS, USERS)}


def cross_key_problems(config: Config, raw: object) -> list[str]:
    """Return problems between keys: undefined names, duplicate names, missing files."""
    problems = [problem for i, t in enumerate(config.targets) for problem in _target_problems(i, t, config, raw)]
    problems += web_problems(config.web_config_file, raw)
    if config.lease is not None and importlib.util.find_spec("lightkube") is None:
        problems.append("lease: the package lightkube is not installed; pip install 'kneewatch[k8s]'")
    if config.lock_dir is not None and (words := folder_problem(config.lock_dir)):
        problems.append(f"lock_dir: {shown(['lock_dir'], raw)} {words}")
    problems.extend(load_problems(config.load))
    ca_file = config.prometheus.ca_file if config.prometheus is not None else None
    if ca_file is not None and (words := authorities_problem(ca_file)):
        problems.append(f"prometheus.ca_file: {shown(['prometheus', 'ca_file'], raw)} {words}")
    problems.extend(otlp_problems(config.otlp, raw))
    names = [target.name for target in config.targets]
    for i, name in enumerate(names):
        if name in names[:i]:
            written = shown(["targets", i, "name"], raw)
            first = names.index(name)
            problems.append(f"targets[{i}].name: {written} is also the name of targets[{first}]; use a unique name")
        group, slash, _ = name.partition("/")
        if slash and group in names and isinstance(config.targets[names.index(group)], TemplateConfig):
            problems.append(
                f"targets[{i}].name: {shown(['targets', i, 'name'], raw)} is in the group of the discovery"
                f" targets[{names.index(group)}]; use another name before the slash"
            )
    return [*problems, *(f"workloads.{line}" for line in workload_problems(config))]


def _target_problems(i: int, target: AnyTarget, config: Config, raw: object) -> list[str]:
    problems: list[str] = []

    def refer(keys: tuple[str | int, ...], name: str | None, known: Mapping[str, object], section: str) -> None:
        if name is not None and name not in (*known, *_BUILT_IN[section]):
            hint = did_you_mean(name, [*known, *_BUILT_IN[section]])
            problem = f"is not in {section}{hint}; expected one of {', '.join(known)}"
            if not known:
                problem = f"is not defined; add it under {section}"
            problems.append(f"{at}.{dotted(keys)}: {shown(['targets', i, *keys], raw)} {problem}")

    at = f"targets[{i}]"
    refer(("objectives",), target.objectives, config.objectives, "objectives")
    for keys, kind in canary_keys(target):
        refer((*keys, "workload"), kind.canary.workload, config.workloads, "workloads")
    refer(("capacity", "workload"), target.capacity.workload, config.workloads, "workloads")
    if target.api_key and target.api_key_file:
        problems.append(f"{at}: api_key and api_key_file are both set; keep api_key_file")
    if target.api_key_file and (words := file_problem(target.api_key_file)):
        problems.append(f"{at}.api_key_file: {shown(['targets', i, 'api_key_file'], raw)} {words}")
    problems += [f"{at}{line}" for line in _capacity_problems(target)]
    load = target.capacity.workload or target.canary.workload
    problems += [f"{at}.capacity{line}" for line in _search_problems(target, load, config)]
    if target.capacity.guard == "stream" and config.objectives_of(target).ttft is None:
        problems.append(
            f"{at}.capacity.guard: stream judges waits for the first token, and objectives"
            f" {target.objectives} promise none; add ttft there, or use metrics"
        )
    headers = (f"headers.{name}: {words}" for name, words in header_problems(target.headers, target.auth_header))
    more = itertools.chain(headers, canary_problems(i, target, config, raw), _reaching_problems(i, target, raw))
    return problems + [f"{at}.{line}" for line in more]


def _capacity_problems(target: AnyTarget) -> Iterator[str]:
    """Yield problems, each with what follows the target in its path."""
    capacity, budget = target.capacity, target.capacity.budget
    if capacity.concurrency is not None and capacity.rates is not None:
        yield ".capacity: concurrency and rates are both set; keep one of them"
    if capacity.rates is None:
        for key, is_set in (
            ("arrivals", capacity.arrivals != "poisson"),
            ("max_concurrency", capacity.max_concurrency),
        ):
            if is_set:
                yield f".capacity.{key}: has no effect without rates; add rates, or remove it"
    if target.passive and capacity.mode == "verify":
        yield ": passive allows no load, but capacity.mode is verify; use forecast, or remove passive"
    if target.role and capacity.mode == "verify":
        yield (
            f".capacity.mode: verify has no effect on a server that does only {target.role}; run it on the router's"
            " target, or remove role"
        )
    if (missing_key := capacity.server.missing_key) is not None:
        yield f".capacity.server: {missing_key}"
    if budget.daily_tokens < budget.tokens_per_run:
        yield (
            f".capacity.budget.tokens_per_day: {budget.daily_tokens} is less than tokens_per_run,"
            f" {budget.tokens_per_run}; raise it"
        )


def _search_problems(target: AnyTarget, load: str, config: Config) -> Iterator[str]:
    """Yield the problem of a scheduled search for a workload without tokens, which it models."""
    capacity = target.capacity
    if capacity.mode != "verify" or not config.has_workload(load) or capacity.concurrency or capacity.rates:
        return
    if not (api := config.workload(load).api).generates:
        yield f": a search models generated tokens, and api: {api.value} of {load} has none; add rates or concurrency"


def _reaching_problems(i: int, target: AnyTarget, raw: object) -> Iterator[str]:
    def written(keys: str) -> str:
        return shown(["targets", i, *keys.split(".")], raw)

    if isinstance(target, TemplateConfig):
        base_url = f"{target.discover.scheme}://{target.name}"
        for key, is_set in (
            ("metrics_url", target.metrics_url is not None),
            ("metrics_urls", target.metrics_urls is not None),
            ("metrics_discovery", target.metrics_discovery is not None),
            ("connection.unix_socket", target.connection.unix_socket is not None),
            ("gpu", target.gpu.is_read),
        ):
            if is_set:
                yield f"{key}: would apply to every discovered server; remove it"
        yield from discover_problems("discover", target.discover, written)
    else:
        base_url = target.base_url
    pages = [key for key in ("metrics_url", "metrics_urls", "metrics_discovery") if getattr(target, key) is not None]
    if len(pages) > 1:
        yield f"{pages[0]}: {' and '.join(pages)} are {'both' if len(pages) == 2 else 'all'} set; keep one"  # noqa: PLR2004
    replicas = target.metrics_urls or (target.metrics_url or base_url,)
    if (found := target.metrics_discovery) is not None and not isinstance(target, TemplateConfig):
        yield from discover_problems("metrics_discovery", found, written)
        yield from replica_problems(found)
        replicas = (f"{found.scheme}://{target.name}",)
    yield from connection_problems(
        target.tls,
        target.connection,
        base_url=base_url,
        metrics_urls=replicas,
        timeouts={dotted((*keys, "timeout")): kind.canary.timeout for keys, kind in canary_keys(target)},
        written=written,
    )
    yield from gpu_problems(target.gpu)
