"""Checks between keys: undefined names, duplicate names, contradictions and missing files."""

import importlib.util
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from probe.config.canaries import MAX_CANARIES
from probe.config.capacity import capacity_problems
from probe.config.config import Config, load_problems, otlp_problems
from probe.config.connection import connection_problems
from probe.config.discovery import discover_problems, replica_problems
from probe.config.gpu import gpu_problems, shared_host_problems
from probe.config.headers import header_problems
from probe.config.messages import did_you_mean, dotted, shown
from probe.config.path_checks import file_problem, folder_problem
from probe.config.prometheus import prometheus_problems
from probe.config.schedule_checks import never_problems
from probe.config.targets import AnyTarget, Keys, TemplateConfig, WatchConfig, canary_keys
from probe.config.time_limits import canary_limits
from probe.config.web_file import web_problems
from probe.config.workloads import PRESETS, USERS, workload_problems
from probe.core.objectives import LATENCIES

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
    problems.extend(prometheus_problems(config.prometheus, raw))
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
    problems.extend(shared_host_problems([(each.gpu, getattr(each, "base_url", None)) for each in config.targets]))
    return [*problems, *(f"workloads.{line}" for line in workload_problems(config.workloads))]


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
    problems += [f"{at}.capacity{line}" for line in capacity_problems(target.capacity)]
    problems += [f"{at}.capacity{line}" for line in never_problems(target.capacity)]
    problems += [f"{at}{line}" for line in _load_problems(target)]
    load = target.capacity.workload or target.canary.workload
    problems += [f"{at}.capacity{line}" for line in _search_problems(target, load, config)]
    if target.capacity.guard == "stream" and config.objectives_of(target).ttft is None:
        problems.append(
            f"{at}.capacity.guard: stream judges waits for the first token, and objectives"
            f" {target.objectives} promise none; add ttft there, or use metrics"
        )
    headers = (f"headers.{name}: {words}" for name, words in header_problems(target.headers, target.auth_header))
    more = itertools.chain(headers, canary_problems(i, target, config, raw), _reaching_problems(i, target, config, raw))
    return problems + [f"{at}.{line}" for line in more]


def _load_problems(target: AnyTarget) -> Iterator[str]:
    """Yield problems of a target that no load may be sent to, each with what follows the target in its path."""
    if target.passive and target.capacity.mode == "verify":
        yield ": passive allows no load, but capacity.mode is verify; use forecast, or remove passive"
    if target.role and target.capacity.mode == "verify":
        yield (
            f".capacity.mode: verify has no effect on a server that does only {target.role}; run it on the router's"
            " target, or remove role"
        )


def _search_problems(target: AnyTarget, load: str, config: Config) -> Iterator[str]:
    """Yield the problem of a scheduled search for a workload without tokens, which it models."""
    capacity = target.capacity
    if capacity.mode != "verify" or not config.has_workload(load) or capacity.concurrency or capacity.rates:
        return
    if not (api := config.workload(load).api).generates:
        yield f": a search models generated tokens, and api: {api.value} of {load} has none; add rates or concurrency"


def _reaching_problems(i: int, target: AnyTarget, config: Config, raw: object) -> Iterator[str]:
    def written(keys: str) -> str:
        return shown(["targets", i, *keys.split(".")], raw)

    if isinstance(target, TemplateConfig):
        base_url = f"{target.discover.scheme}://{target.name}"
        for key, is_set in (
            ("metrics_url", target.metrics_url is not None),
            ("metrics_urls", target.metrics_urls is not None),
            ("metrics_discovery", target.metrics_discovery is not None),
            ("connection.unix_socket", target.connection.unix_socket is not None),
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
        timeouts={
            dotted((*keys, "timeout")): canary_limits(config, kind).answer_s()
            for keys, kind in canary_keys(target)
            if config.has_workload(kind.canary.workload)
        },
        written=written,
    )
    discover = target.discover if isinstance(target, TemplateConfig) else None
    yield from gpu_problems(target.gpu, discover, has_prometheus=config.prometheus is not None)


def canary_problems(i: int, target: WatchConfig, config: Config, raw: object) -> Iterator[str]:
    """Yield problems, each with the key's path below target `i`."""
    if target.canaries is not None and "canary" in target.model_fields_set:
        yield "canary: is set together with canaries; make it the first entry of canaries"
    first: dict[tuple[str, str], str] = {}
    for keys, kind in canary_keys(target):
        yield from _kind_problems(keys, i, kind, config, raw)
        where, pair = dotted(keys), (kind.canary.workload, kind.model)
        if (other := first.setdefault(pair, where)) != where:
            yield (
                f"{where}: has workload {pair[0]!r} and model {pair[1]!r}, as {other} has, so both would have the"
                " same series; use another workload (its lengths may be the same)"
            )
    for j, canary in enumerate(target.canaries or ()):
        for name, words in header_problems({**target.headers, **canary.headers}, target.auth_header):
            if name in canary.headers:
                yield f"canaries[{j}].headers.{name}: {words}"
    yield from _cost_problems(target, config)


def _kind_problems(keys: Keys, i: int, kind: WatchConfig, config: Config, raw: object) -> Iterator[str]:
    canary, where = kind.canary, dotted(keys)
    if config.is_learnt(canary.workload):
        written = shown(["targets", i, *keys, "workload"], raw)
        yield (
            f"{where}.workload: {written} is for capacity.workload only, since canaries are compared over time;"
            " use default, or a workload under workloads"
        )
    if config.has_workload(canary.workload):
        yield from _result_problems(where, kind, config)
    asked = canary.known_answer
    if asked is not None and "prompt" in asked.model_fields_set and "expect" not in asked.model_fields_set:
        yield f"{where}.known_answer: prompt is set without expect; add expect, a regular expression for the answer"
    if canary.timeout is not None and not kind.passive and canary.timeout > MAX_CANARIES * canary.every:
        written = shown(["targets", i, *keys, "timeout"], raw)
        yield (
            f"{where}.timeout: {written} is more than {MAX_CANARIES} times every, {canary.every:g}s; lower it, or set"
            f" every to at least {math.ceil(canary.timeout / MAX_CANARIES)}s"
        )


def _result_problems(where: str, kind: WatchConfig, config: Config) -> Iterator[str]:
    """Yield problems with objectives and questions about tokens, where the API generates none."""
    api = config.workload(kind.canary.workload).api
    if api.generates:
        return
    objectives = config.objectives_of(kind)
    limits = [name for name in objectives.latencies() if LATENCIES[name].tokens]
    if limits:
        yield (
            f"{where}.workload: its api, {api.value}, generates no tokens, and objectives {kind.objectives} promise"
            f" {', '.join(limits)}; use objectives with availability and e2e alone"
        )
    if kind.canary.known_answer is not None:
        yield f"{where}.known_answer: its workload's api ({api.value}) generates no text; ask in other canaries"


def _cost_problems(target: WatchConfig, config: Config) -> Iterator[str]:
    most = target.canary_tokens_per_day
    if most is None or target.passive:
        return
    needed = [
        (dotted(keys), math.ceil(kind.canary.most_tokens_per_day(config.workload(kind.canary.workload))))
        for keys, kind in canary_keys(target)
        if config.has_workload(kind.canary.workload)
    ]
    total = sum(tokens for _, tokens in needed)
    if total > most:
        each = ", ".join(f"{where} {tokens}" for where, tokens in needed)
        yield (
            f"canary_tokens_per_day: {most} is less than the {total} tokens that canaries may need a day ({each});"
            " raise it, or make canaries rarer or shorter"
        )
