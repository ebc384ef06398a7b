"""Checks of a target's canaries: each kind by itself, the kinds with one another, and what they cost a day."""

import math
from collections.abc import Iterator

from probe.config.canaries import MAX_CANARIES
from probe.config.config import Config
from probe.config.headers import header_problems
from probe.config.messages import dotted, shown
from probe.config.targets import WatchConfig

Keys = tuple[str | int, ...]


def canary_keys(target: WatchConfig) -> list[tuple[Keys, WatchConfig]]:
    """Return each kind of canary with the keys of its section below the target."""
    return [(("canary",) if target.canaries is None else ("canaries", j), kind) for j, kind in enumerate(target.kinds)]


def canary_problems(i: int, target: WatchConfig, config: Config, raw: object) -> Iterator[str]:
    """Yield problems, each with the key's path below target `i`."""
    if target.canaries is not None and "canary" in target.model_fields_set:
        yield "canary: canaries is set too; move it to the first place of canaries"
    first: dict[tuple[str, str], str] = {}
    for keys, kind in canary_keys(target):
        yield from _kind_problems(keys, i, kind, config, raw)
        where, pair = dotted(keys), (kind.canary.workload, kind.model)
        if (other := first.setdefault(pair, where)) != where:
            yield (
                f"{where}: has workload {pair[0]!r} and model {pair[1]!r}, as {other} has, so their series would be"
                " one; use another workload, whose lengths may be the same"
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
        yield f"{where}.known_answer: prompt is set without expect; add expect, what the answer has to match"
    if not kind.passive and canary.timeout > MAX_CANARIES * canary.every:
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
    limits = [name for name in objectives.latencies() if name != "e2e"]
    if limits:
        yield (
            f"{where}.workload: its api, {api.value}, generates no tokens, and objectives {kind.objectives} promise"
            f" {', '.join(limits)}; use objectives with availability and e2e alone"
        )
    if kind.canary.known_answer is not None:
        yield f"{where}.known_answer: the workload's api, {api.value}, has no text; use a kind of canary of its own"


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
