"""What `kneewatch doctor --prometheus` does: ask for every vLLM server's past, judge it, forecast. No printing."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from probe.capacity.model.hints import SET_MAX_NUM_SEQS, Hints
from probe.config.prometheus import PrometheusConfig
from probe.core.clock import Clock
from probe.core.errors import KneewatchError
from probe.core.objectives import Objectives
from probe.core.request import Api
from probe.core.result import Capacity, Phase
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload
from probe.observe.kv_size import kv_size
from probe.observe.past_verdict import Verdict, verdict
from probe.observe.server_past import ServerPast
from probe.observe.snapshot_history import spliced
from probe.observe.user_mix import MIN_REQUESTS, users_workload
from probe.prometheus.past import PastReader
from probe.prometheus.queries import Prometheus
from probe.report.cross_check_text import Finding
from probe.report.past_causes import causes
from probe.report.past_diagnosis import PastDiagnosis, ServerDiagnosis, worst_first
from probe.report.setting_findings import RequestLengths, setting_findings
from probe.runtime.helper_process import HelperError, HelperProcess

# The whole answer, with 50 servers (docs/evidence/benchmarks.md); a later forecast is left out, and said.
LONGEST_S = 55.0
_FORECAST = "probe.capacity.model.forecast:forecast"
_HOUR_S = 3600.0
_LEAST_STEP_S = 5.0
_LATE = "not computed within the minute of this command; choose the server with --match"
_ASK_IT = "`kneewatch doctor URL` reads it from the server"
_IDLE = "not enough evidence: no requests in that time"


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What a forecast is made of, and what the settings are judged by. `lacking`: why there is none."""

    snapshots: Sequence[ServerSnapshot] = ()
    workload: Workload | None = None
    lengths: RequestLengths | None = None
    lacking: str = ""


async def diagnose_past(
    config: PrometheusConfig,
    matchers: str,
    seconds: float,
    objectives: Objectives,
    clock: Clock,
    on_phase: Callable[[Phase], None],
) -> PastDiagnosis:
    """Return the diagnosis of every vLLM server in a Prometheus. Raises TargetError where it cannot be asked."""
    until_s = asyncio.get_running_loop().time() + LONGEST_S
    prometheus = Prometheus(config)
    reader = PastReader(prometheus, config.url, clock.wall_s(), seconds, matchers)
    on_phase(Phase("asking Prometheus for its servers"))
    pasts = await reader.read(
        objectives, lambda count: on_phase(Phase(f"asking Prometheus for the past of {count} servers"))
    )
    present = [one for one in pasts if not one.is_gone]
    verdicts = {one.name: verdict(one, objectives) for one in present}
    forecasts = _Forecasts(prometheus, objectives, until_s, on_phase)
    found = await forecasts.of([(one, verdicts[one.name]) for one in present])
    diagnosed = [
        ServerDiagnosis(one, verdicts[one.name], causes(one, verdicts[one.name]), *found[one.name])
        for one in present
        if one.name in found
    ]
    diagnosed += [_as_its_fleet(one, verdicts[one.name], diagnosed) for one in present if one.name not in found]
    gone = [one for one in pasts if one.is_gone]
    return PastDiagnosis(config.url, seconds, reader.end_s, objectives, worst_first(diagnosed), gone, reader.gpu_error)


class _Forecasts:
    """Forecasts in as many processes as there are cores, the busiest replica of each fleet first."""

    def __init__(
        self, prometheus: Prometheus, objectives: Objectives, until_s: float, on_phase: Callable[[Phase], None]
    ) -> None:
        self._prometheus, self._objectives = prometheus, objectives
        self._until_s, self._on_phase = until_s, on_phase
        self._done = 0

    async def of(self, servers: Sequence[tuple[ServerPast, Verdict]]) -> dict[str, tuple[Capacity, Sequence[Finding]]]:
        """Return the forecast and the findings on the settings of each server, by its name, while there is time."""
        left = _in_turn(servers)
        found: dict[str, tuple[Capacity, Sequence[Finding]]] = {}
        cores = min(len(os.sched_getaffinity(0)), max(len(left), 1))
        async with asyncio.TaskGroup() as workers:
            for _ in range(cores):
                workers.create_task(self._work(left, len(servers), found))
        return found

    async def _work(
        self,
        left: list[tuple[ServerPast, Verdict]],
        many: int,
        found: dict[str, tuple[Capacity, Sequence[Finding]]],
    ) -> None:
        with HelperProcess() as helper:
            while left and asyncio.get_running_loop().time() < self._until_s:
                past, its = left.pop(0)
                self._on_phase(Phase(f"forecasting server {self._done + 1} of {many}"))
                try:
                    async with asyncio.timeout_at(self._until_s):
                        found[past.name] = await self._forecast(helper, past, its)
                except TimeoutError:
                    return
                self._done += 1

    async def _forecast(
        self, helper: HelperProcess, past: ServerPast, its: Verdict
    ) -> tuple[Capacity, Sequence[Finding]]:
        evidence = await self._evidence(past, its)
        if evidence.workload is None:
            capacity = _none(evidence.lacking)
        else:
            try:
                capacity = await asyncio.to_thread(
                    helper.call, _FORECAST, evidence.snapshots, evidence.workload, self._objectives, Hints()
                )
                if capacity.reason:
                    capacity = replace(capacity, reason=capacity.reason.replace(SET_MAX_NUM_SEQS, _ASK_IT))
            except HelperError as error:
                capacity = _none(str(error))
        return capacity, self._settings(evidence, capacity)

    async def _evidence(self, past: ServerPast, its: Verdict) -> _Evidence:
        if not its.peak.requests_per_second or its.peak_at_s is None:
            return _Evidence(lacking=_IDLE)
        interval_s = past.step_s / max(max(past.known("scrapes"), default=1.0), 1.0)
        try:
            hours = [
                await self._prometheus.server_history(
                    past.matchers, end_s, _HOUR_S, step_s=max(interval_s, _LEAST_STEP_S), prefix=past.prefix
                )
                for end_s in _hours(past, its.peak_at_s)
            ]
        except KneewatchError as error:
            return _Evidence(lacking=str(error))
        snapshots, lengths = spliced(hours), _lengths(past)
        prompts, outputs = past.totals.get("prompt_length"), past.totals.get("output_length")
        if prompts is None or outputs is None:
            lacking = "its series show no lengths of requests (vllm:request_prompt_tokens, _generation_tokens)"
            return _Evidence(snapshots, lengths=lengths, lacking=lacking)
        queries, hits = past.sum("prefix_cache_queries"), past.sum("prefix_cache_hits")
        ratio = min((hits or 0.0) / queries, 1.0) if queries else 0.0
        load = users_workload(prompts, outputs, api=Api.COMPLETIONS, hit_ratio=ratio)
        known = min(prompts.count, outputs.count)
        lacking = f"not enough evidence: the lengths of {known:.0f} requests, {MIN_REQUESTS} needed"
        return _Evidence(snapshots, load, lengths, lacking)

    def _settings(self, evidence: _Evidence, capacity: Capacity) -> Sequence[Finding]:
        if not evidence.snapshots:
            return ()
        last, lengths = evidence.snapshots[-1], evidence.lengths
        kv = kv_size(evidence.snapshots, lengths.held_tokens) if lengths is not None else None
        flags = {**last.flags, **{name: str(value) for name, value in last.scheduler_limits.items()}}
        rate = capacity.prefill_tokens_per_second
        return list(setting_findings(last, flags, lengths, self._objectives, rate, kv=kv))


def _as_its_fleet(past: ServerPast, its: Verdict, known: Sequence[ServerDiagnosis]) -> ServerDiagnosis:
    """Return the server with the forecast of a replica of the same model with the same KV cache, or without any.

    One that is slower than its load explains has no other's capacity.
    """
    why = causes(past, its)
    alike = [
        one for one in known if one.past.fleet == past.fleet and past.kv_cache and one.past.kv_cache == past.kv_cache
    ]
    found = min(alike, key=lambda one: one.capacity.requests_per_second or inf, default=None)
    if found is not None and found.capacity.requests_per_second is None:
        return ServerDiagnosis(past, its, why, found.capacity, capacity_of=found.past.name)
    if found is None or {"decode", "gpu", "stalled", "down"} & {cause.key for cause in why}:
        return ServerDiagnosis(past, its, why, _none(_LATE))
    return ServerDiagnosis(past, its, why, found.capacity, capacity_of=found.past.name)


def _in_turn(servers: Sequence[tuple[ServerPast, Verdict]]) -> list[tuple[ServerPast, Verdict]]:
    """Return the servers in the order of their forecasts: the busiest of each model, then the second of each."""
    groups: dict[tuple[str, ...], list[tuple[ServerPast, Verdict]]] = defaultdict(list)
    for one in servers:
        groups[one[0].fleet].append(one)
    ranked = [
        (i, -(one[1].peak.requests_per_second or 0.0), one[0].name, one)
        for its in groups.values()
        for i, one in enumerate(sorted(its, key=lambda each: -(each[1].peak.requests_per_second or 0.0)))
    ]
    return [one for *_, one in sorted(ranked, key=lambda each: each[:3])]


def _hours(past: ServerPast, peak_s: float) -> list[float]:
    """Return the ends of the hour around the peak, and of a usual one: costs show where the load differs."""
    last = past.steps[-1]
    first_end = min(peak_s + _HOUR_S / 2, last)
    requests = past.values.get("requests", {})
    apart = [at for at in requests if abs(at - first_end) >= _HOUR_S and at - past.steps[0] >= _HOUR_S / 2]
    if not apart:
        return [first_end]
    usual = median(requests.values())
    second = min(apart, key=lambda at: (abs(requests[at] - usual), at))
    return sorted([first_end, second])


def _lengths(past: ServerPast) -> RequestLengths | None:
    prompts, outputs = past.totals.get("prompt_length"), past.totals.get("output_length")
    if prompts is None or outputs is None or not (prompts.count and outputs.count and prompts.sum and outputs.sum):
        return None
    return RequestLengths(prompts.count, prompts.sum / prompts.count, outputs.sum / outputs.count, is_recent=True)


def _none(reason: str) -> Capacity:
    return Capacity(mode="forecast", reason=reason)
