"""What `kneewatch doctor` finds on one server, as text and JSON. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from probe.capacity.trend.headroom import largest_share
from probe.core import objectives as slo
from probe.core.request import Outcome, RequestRecord
from probe.core.result import CapacityResult
from probe.core.server_limits import limits_of
from probe.core.snapshot import ServerSnapshot, UserTotals
from probe.core.target_status import TargetStatus
from probe.core.text import one_line
from probe.core.vllm_flags import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from probe.observe.kv_size import KvSize
from probe.observe.user_mix import USERS
from probe.report.cross_check_text import Finding, findings, idle_gpus
from probe.report.figures import cell, kv_size, number, percent, table
from probe.report.forecast_text import forecast_rate
from probe.report.result_json import record_json
from probe.report.setting_findings import LongRequests, RequestLengths, setting_findings, unused_memory
from probe.report.terminal import canary_words
from probe.report.workload_text import workload_words

_LINE = 500
MAX_MODEL_LEN = "max_model_len"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One server, watched for some seconds. `status` has its canaries, its last snapshot and its forecast."""

    status: TargetStatus
    users: UserTotals  # while it was watched
    seconds: float
    flags: Mapping[str, str]
    flag_sources: Mapping[str, str]
    lengths: RequestLengths | None = None  # the mean request
    for_users: CapacityResult | None = None  # the forecast for users' lengths, if users sent requests
    kv: KvSize | None = None  # for the mean request, by the traffic while it was watched
    longest: LongRequests | None = None  # nearly the longest requests, since the server's start
    max_model_len: int | None = None  # as the server lists its model

    @property
    def is_healthy(self) -> bool:
        """Return whether every canary that could be judged was answered within every objective."""
        return self.is_judged and all(map(self.is_good, self._judged))

    @property
    def is_judged(self) -> bool:
        """Return whether this machine was on time for any canary."""
        return bool(self._judged)

    @property
    def _judged(self) -> Sequence[RequestRecord]:
        return [record for record in self.status.recent if record.outcome is not Outcome.CLIENT_BOUND]

    def is_good(self, record: RequestRecord) -> bool:
        """Return whether a canary was answered within every objective."""
        return slo.met(record, self.status.objectives).get(slo.ALL, False)

    @property
    def _in_effect(self) -> Mapping[str, str]:
        """Return the flags, with the values that the server's page shows of its scheduler."""
        shown = self.status.server.scheduler_limits if self.status.server is not None else {}
        listed = {} if self.max_model_len is None else {MAX_MODEL_LEN: str(self.max_model_len)}
        return {**listed, **self.flags, **{name: str(value) for name, value in shown.items()}}

    @property
    def missing_limits(self) -> Sequence[str]:
        """Return the limits that a forecast needs and that are unknown, by the keys of the configuration."""
        limits = limits_of(self._in_effect)
        size = self.status.server.kv_cache_tokens if self.status.server is not None else None
        known = {MAX_NUM_SEQS: limits.running, MAX_NUM_BATCHED_TOKENS: limits.step_tokens, "kv_cache_tokens": size}
        return [name for name, value in known.items() if value is None]

    def findings(self) -> Sequence[Finding]:
        """Return the findings, problems first."""
        found = [*findings(self.status), *idle_gpus(self.status), *unused_memory(self.status.gpus, self.flags)]
        if self.status.server is not None:
            forecast = self.status.forecast
            speed = forecast.capacity.prefill_tokens_per_second if forecast is not None else None
            server, objectives = self.status.server, self.status.objectives
            found += setting_findings(
                server, self._in_effect, self.lengths, objectives, speed, kv=self.kv, longest=self.longest
            )
        return sorted(found, key=lambda finding: not finding.is_problem)


def diagnosis_words(found: Diagnosis) -> str:
    """Return the diagnosis as labelled lines."""
    return "\n".join(f"{f'{label}:':<12}{one_line(words, _LINE)}" for label, words in _lines(found))


def diagnosis_markdown(found: Diagnosis) -> str:
    """Return the diagnosis for a ticket: the same lines as a table."""
    head = [f"**Kneewatch examined {cell(found.status.base_url)} for {found.seconds:.0f} s.**", ""]
    return "\n".join([*head, *table(("", "found"), _lines(found))])


def _lines(found: Diagnosis) -> list[tuple[str, str]]:
    return [*_server(found), *_health(found), *_users(found), *_capacity(found), *_found(found)]


def _server(found: Diagnosis) -> Iterator[tuple[str, str]]:
    server, status = found.status.server, found.status
    if server is None:
        yield "Server", f"{status.base_url} serves {status.model}; its metrics cannot be read: {status.server_error}"
        return
    engines = f", {server.engines} engines" if server.engines > 1 else ""
    yield "Server", f"{status.base_url} serves {status.model} with {server.engine} {server.version}{engines}"
    if not all(record.spec.api.generates for record in status.recent):
        yield (
            "API",
            f"{status.recent[0].spec.api.value}: it generates no text, so latency is E2E, and nothing is forecast",
        )
    if server.kv_cache_tokens is not None:
        differs = f"; {found.kv.words}" if found.kv is not None and found.kv.words else ""
        yield "KV cache", f"{kv_size(server)}{differs}"
    known = [f"{name}={value} ({found.flag_sources[name]})" for name, value in sorted(found.flags.items())]
    yield "Flags", ", ".join(known) or "none known"
    if found.missing_limits and all(record.spec.api.generates for record in status.recent):
        named = " and ".join(found.missing_limits)
        may = "a forecast may be a lower bound only" if server.kv_cache_tokens else "there is no forecast"
        yield "Unknown", f"{named}: {may}; set them below targets[].capacity.server"


def _health(found: Diagnosis) -> Iterator[tuple[str, str]]:
    recent = found.status.recent
    answer = "unknown" if not found.is_judged else "yes" if found.is_healthy else "no"
    words = f"{answer}: {sum(map(found.is_good, recent))} of {len(recent)} canaries met every objective"
    if late := sum(record.outcome is Outcome.CLIENT_BOUND for record in recent):
        words += f", and Kneewatch itself was too late to judge {late}; run it on a quieter machine"
    yield "Healthy", words
    worst = min(found.status.recent, key=lambda record: _rank(record, found), default=None)
    if worst is not None:
        yield "Canary", canary_words(worst, found.status.objectives, urlsplit(found.status.base_url).netloc)


def _rank(record: RequestRecord, found: Diagnosis) -> tuple[bool, int]:
    """Return a key that puts a failed canary first, and then the slowest one."""
    return found.is_good(record), record.sent_ns - record.done_ns


def _users(found: Diagnosis) -> Iterator[tuple[str, str]]:
    load, lengths = found.status.users, found.lengths
    if load is None or load.requests_per_second is None:
        words = "unknown: the server's metrics do not show user traffic"
    elif not found.users.requests:
        words = f"no requests in {found.seconds:.0f} s"
    else:
        words = (
            f"{number(load.requests_per_second)} requests/s, {number(load.output_tokens_per_second)} output tokens/s"
        )
    if lengths is not None:
        when = "" if lengths.is_recent else " since the server's start, canaries of other programs included"
        mean = f"{number(round(lengths.prompt_tokens))} + {number(round(lengths.output_tokens))} tokens"
        words += f"; {mean} in an average request{when}"
    yield "Users", words


def _capacity(found: Diagnosis) -> Iterator[tuple[str, str]]:
    status, for_users = found.status, found.for_users
    has_queue = status.server is not None and status.server.waiting is not None
    ramp = "ramp" if has_queue else "ramp --stream-guard"
    if status.forecast is not None:
        yield "Capacity", _forecast(status.forecast, ramp)
    if for_users is not None:
        is_mix_known = for_users.context.workload.get("name") == USERS
        yield "For users", _forecast(for_users, f"{ramp} --workload {USERS}" if is_mix_known else None)
    known = (one for one in (for_users, status.forecast) if one and one.capacity.requests_per_second is not None)
    for forecast in islice(known, 1):
        yield from _headroom(status, forecast)


def _forecast(result: CapacityResult, command: str | None) -> str:
    """Return a forecast and its workload, or why there is none. `command` measures it; None: no command can."""
    capacity, load = result.capacity, workload_words(result.context.workload)
    if capacity.requests_per_second is None:
        if command is None:
            return f"unknown: {capacity.reason}"
        how = "load guarded by its own answers" if "--stream-guard" in command else "guarded load"
        return f"unknown: {capacity.reason}; `kneewatch {command}` measures it by {how}"
    return f"{forecast_rate(capacity, 'requests/s')} of {load}; forecast, {capacity.reason}"


def _headroom(status: TargetStatus, forecast: CapacityResult) -> Iterator[tuple[str, str]]:
    capacity = forecast.capacity
    used = largest_share(status.users, capacity)
    if used is not None:
        least = "at least " if capacity.is_lower_bound else ""
        left = f"{least}{percent(max(1 - used.ratio, 0.0))}"
        whole = f"the capacity for workload {forecast.context.workload.get('name')}"
        yield "Headroom", f"{left} of {whole}: users send {number(used.live)} {used.unit}; forecast, not measured"
    if capacity.limiting:
        yield "Limited by", capacity.limiting
    if capacity.bottleneck:
        yield "Bottleneck", f"{capacity.bottleneck}; {capacity.advice or 'see docs/capacity.md'}"


def _found(found: Diagnosis) -> Iterator[tuple[str, str]]:
    for finding in found.findings():
        yield "Problem" if finding.is_problem else "Note", f"{finding.words[:1].upper()}{finding.words[1:]}."


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON. Rates per second, lengths in tokens, times in seconds."""
    status, lengths = found.status, found.lengths
    return {
        "base_url": status.base_url,
        "model": status.model,
        **_server_json(status.server, status.server_error),
        "flags": {name: {"value": value, "source": found.flag_sources[name]} for name, value in found.flags.items()},
        "missing_flags": list(found.missing_limits),
        "is_healthy": found.is_healthy if found.is_judged else None,
        "canaries": [
            {**record_json(record), "met": dict(slo.met(record, status.objectives))} for record in status.recent
        ],
        "users": {
            "requests_per_second": status.users.requests_per_second if status.users else None,
            "output_tokens_per_second": status.users.output_tokens_per_second if status.users else None,
            "mean_prompt_tokens": lengths.prompt_tokens if lengths else None,
            "mean_output_tokens": lengths.output_tokens if lengths else None,
        },
        "capacity": _capacity_json(status.forecast),
        "capacity_for_users": _capacity_json(found.for_users),
        "findings": [{"words": each.words, "is_problem": each.is_problem} for each in found.findings()],
    }


def _capacity_json(forecast: CapacityResult | None) -> dict[str, Any]:
    capacity = forecast.capacity if forecast is not None else None
    names = ("mode", "requests_per_second", "lower", "upper", "limiting", "bottleneck", "reason")
    workload = forecast.context.workload.get("name") if forecast is not None else None
    return {"workload": workload, **{name: getattr(capacity, name, None) for name in names}}


def _server_json(server: ServerSnapshot | None, error: str | None) -> dict[str, Any]:
    if server is None:
        unknown = dict.fromkeys(("engine", "version", "engines", "kv_cache_tokens", "kv_cache_bytes"))
        return {**unknown, "metrics_error": error}
    known = {"kv_cache_tokens": server.kv_cache_tokens, "kv_cache_bytes": server.value("kv_cache_bytes")}
    return {
        "engine": server.engine,
        "version": server.version,
        "engines": server.engines,
        **known,
        "metrics_error": None,
    }
