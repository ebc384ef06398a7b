"""What `kneewatch doctor --prometheus` found: the verdict on each server and fleet, as text and JSON. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.capacity.trend.headroom import largest_share
from probe.core.durations import format_duration
from probe.core.objectives import LATENCIES, Objectives
from probe.core.result import Capacity
from probe.core.snapshot import Imbalance
from probe.core.text import one_line
from probe.observe.past_verdict import KNOWN, Health, Verdict
from probe.observe.server_past import ServerPast
from probe.report.cross_check_text import Finding
from probe.report.figures import MISSING, number, percent, promises, when
from probe.report.forecast_text import forecast_rate
from probe.report.past_causes import Cause, imbalance, imbalance_words, replica_loads

_LINE = 400
_LEAST_LOAD = 8.0
_GAP = 0.01
_NAMED = 5
_EXPLAINED = 15
_ORDER = list(Health)


@dataclass(frozen=True, slots=True)
class ServerDiagnosis:
    """One server. `capacity`: the forecast for what its users sent; without a figure it has the reason.

    `capacity_of`: the replica with the same model and KV cache whose forecast it is, where its own was not computed.
    """

    past: ServerPast
    verdict: Verdict
    causes: Sequence[Cause]
    capacity: Capacity
    settings: Sequence[Finding] = ()
    capacity_of: str = ""

    @property
    def headroom(self) -> float | None:
        """Return the share of the capacity that the peak left free; of a lower bound, at least that much."""
        used = largest_share(self.verdict.peak, self.capacity)
        return None if used is None else max(1.0 - used.ratio, 0.0)

    @property
    def lacking(self) -> Sequence[str]:
        """Return what its series do not show."""
        return list(_lacking(self))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas of a model in one place, those that still report."""

    name: str
    servers: Sequence[ServerDiagnosis]

    @property
    def imbalance(self) -> Imbalance | None:
        return imbalance(replica_loads([one.past for one in self.servers]), _LEAST_LOAD)

    @property
    def peak_rps(self) -> float | None:
        """Return the highest requests/s of all replicas together in five minutes."""
        each = [one.past.values.get("requests", {}) for one in self.servers]
        total = {at: sum(its.get(at, 0.0) for its in each) for its in each for at in its}
        return max(total.values()) / self.servers[0].past.step_s if total else None

    @property
    def capacity_rps(self) -> float | None:
        """Return the sum of the replicas' capacities; None unless each is known."""
        known = [rps for one in self.servers if (rps := one.capacity.requests_per_second) is not None]
        return sum(known) if len(known) == len(self.servers) else None


@dataclass(frozen=True, slots=True)
class PastDiagnosis:
    """All servers of a Prometheus, worst first; `gone`: those that no longer report."""

    url: str
    seconds: float
    end_s: float
    objectives: Objectives
    servers: Sequence[ServerDiagnosis]
    gone: Sequence[ServerPast] = ()
    gpu_error: str | None = None

    @property
    def fleets(self) -> Sequence[Fleet]:
        """Return the groups of two and more replicas."""
        groups: dict[tuple[str, ...], list[ServerDiagnosis]] = defaultdict(list)
        for one in self.servers:
            groups[one.past.fleet].append(one)
        return [Fleet("/".join(filter(None, key)), its) for key, its in sorted(groups.items()) if len(its) > 1]

    def count(self, health: Health) -> int:
        return sum(one.verdict.health is health for one in self.servers)


def worst_first(servers: Sequence[ServerDiagnosis]) -> list[ServerDiagnosis]:
    """Return the servers in the order in which they need somebody."""
    return sorted(
        servers,
        key=lambda one: (
            _ORDER.index(one.verdict.health),
            -len(one.verdict.bad),
            1.0 if one.headroom is None else one.headroom,
            one.past.name,
        ),
    )


def past_words(found: PastDiagnosis) -> str:
    """Return the diagnosis as text: the verdict, each server that needs somebody, one table, and what is not known."""
    lines = [_verdict_words(found), ""]
    bad = _alike(found.servers)
    for worst, *others in bad[:_EXPLAINED]:
        lines += [*_server_lines(worst, others), ""]
    if more := sum(map(len, bad[_EXPLAINED:])):
        lines += [f"{more} more are in the table, and in --json with their causes.", ""]
    lines += [*_table(found.servers), ""] if found.servers else []
    lines += [*(one_line(line, _LINE) for line in (*_fleet_lines(found), *_notes(found)))]
    return "\n".join(lines)


def _verdict_words(found: PastDiagnosis) -> str:
    many = len(found.servers)
    parts = [
        f"{found.count(health)} {words}"
        for health, words in (
            (Health.NO, "not"),
            (Health.AT_TIMES, "not at times"),
            (Health.UNKNOWN, "unknown"),
            (Health.YES, "healthy"),
        )
        if found.count(health)
    ]
    servers = f"{many} vLLM server{'s' if many != 1 else ''}"
    return (
        f"{servers}, healthy for users in the {format_duration(found.seconds)} to {when(found.end_s)}:"
        f" {', '.join(parts) or 'none reports now'}. Objectives: {promises(found.objectives)}."
    )


def _alike(servers: Sequence[ServerDiagnosis]) -> list[list[ServerDiagnosis]]:
    """Return the servers that need somebody, the worst first; replicas with the same causes together."""
    groups: dict[tuple[object, ...], list[ServerDiagnosis]] = defaultdict(list)
    for one in servers:
        if one.verdict.health in (Health.NO, Health.AT_TIMES):
            groups[one.past.fleet, one.verdict.health, *(cause.key for cause in one.causes)].append(one)
    return list(groups.values())


def _server_lines(one: ServerDiagnosis, others: Sequence[ServerDiagnosis]) -> Iterator[str]:
    name = f"{one.past.name} ({one.past.model or 'model unknown'})"
    if others:
        name += f", the worst of {len(others) + 1} replicas alike"
    yield one_line(f"{name}: {_health_words(one.verdict)}", _LINE)
    for cause in one.causes[:3]:
        yield f"  {cause.key}: {one_line(cause.words, _LINE)}"
        yield f"    change: {cause.change}"
    if not one.causes:
        yield "  why: its series do not say"


def _health_words(verdict: Verdict) -> str:
    parts = []
    for name, one in verdict.latencies.items():
        if one.all is None or not (one.missed or one.is_met is False):
            continue
        late = one.all.slow - one.all.may_be_fast
        minutes = f"missed in {number(len(one.missed) * 5)} minutes" if one.missed else "missed"
        last = f", last at {when(one.missed[-1])}" if one.missed else ""
        parts.append(f"{LATENCIES[name].title} {minutes}{last} ({percent(late / one.all.requests)} of requests late)")
    if verdict.failing:
        parts.append(f"requests failed, last at {when(verdict.failing[-1])}")
    if verdict.stalled:
        parts.append(f"no token came, last at {when(verdict.stalled[-1])}")
    if verdict.is_down:
        parts.append("does not answer Prometheus now")
    return "; ".join(parts)


def _table(servers: Sequence[ServerDiagnosis]) -> list[str]:
    head = ("server", "healthy", "why", "peak/s", "capacity/s", "headroom")
    rows = [head, *(_row(one) for one in servers)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(one: ServerDiagnosis) -> tuple[str, ...]:
    capacity, free = one.capacity, one.headroom
    least = "≥ " if capacity.is_lower_bound else ""
    rate = forecast_rate(capacity, "") if capacity.requests_per_second is not None else "unknown"
    return (
        one_line(one.past.name, 48),
        one.verdict.health.value,
        ", ".join(dict.fromkeys(cause.key for cause in one.causes)) or MISSING,
        number(one.verdict.peak.requests_per_second),
        " ".join(rate.replace("at least ", "≥ ").split()) + (" as its fleet" if one.capacity_of else ""),
        MISSING if free is None else f"{least}{percent(round(free, 2))}",
    )


def _fleet_lines(found: PastDiagnosis) -> Iterator[str]:
    for fleet in found.fleets:
        words = [f"{len(fleet.servers)} replicas"]
        if (peak := fleet.peak_rps) is not None:
            least = "at least " if any(one.capacity.is_lower_bound for one in fleet.servers) else ""
            of = f" of {least}{number(fleet.capacity_rps)}" if fleet.capacity_rps is not None else ""
            words.append(f"peak {number(peak)}{of} requests/s")
            if fleet.capacity_rps:
                words.append(f"headroom {least}{percent(round(max(1 - peak / fleet.capacity_rps, 0.0), 2))}")
        if (one := fleet.imbalance) is not None:
            words.append(f"unbalanced: {imbalance_words(one)}; balance by requests in flight")
        yield f"Fleet {fleet.name}: {', '.join(words)}."


def _notes(found: PastDiagnosis) -> Iterator[str]:
    if found.gone:
        names = ", ".join(one.name for one in found.gone[:_NAMED])
        more = f" and {len(found.gone) - _NAMED} more" if len(found.gone) > _NAMED else ""
        yield f"No longer reporting: {names}{more} (replaced, scaled down, or down without a scrape)."
    if found.gpu_error is not None:
        yield f"GPUs are unknown: {found.gpu_error}."
    many = len(found.servers)
    lacking = _grouped((line, one.past.name) for one in found.servers for line in one.lacking)
    unknown = _grouped(
        (one.capacity.reason or "unknown", one.past.name)
        for one in found.servers
        if one.capacity.requests_per_second is None
    )
    settings = _grouped((finding.words, one.past.name) for one in found.servers for finding in one.settings)
    yield from (f"{_names(its, many)}: {words}." for words, its in lacking.items())
    yield from (f"No capacity for {_names(its, many)}: {words}." for words, its in unknown.items())
    yield from (f"Setting of {_names(its, many)}: {words}." for words, its in settings.items())
    yield (
        "From history alone: no load was sent. Requests are all that servers counted, canaries and health checks too."
        " `kneewatch doctor URL` examines one server with its flags."
    )


def _grouped(pairs: Iterator[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for words, name in pairs:
        found[words].append(name)
    return found


def _names(names: Sequence[str], all_of: int) -> str:
    if len(names) == all_of and all_of > 1:
        return f"all {all_of} servers"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _lacking(one: ServerDiagnosis) -> Iterator[str]:
    past, seen = one.past, one.past.seen
    if not seen:
        yield "no scrapes"
        return
    if seen[0] > past.steps[1 if len(past.steps) > 1 else 0]:
        yield f"known since {when(seen[0] - past.step_s)} only: it started then, or Prometheus keeps no more"
    between = [at for at in past.steps if seen[0] <= at <= seen[-1]]
    if (missing := len(between) - len(seen)) > _GAP * len(between):
        yield f"no scrapes for {number(missing * past.step_s / 60)} minutes in between"
    if (share := one.verdict.unreadable) is not None and share > _GAP:
        yield f"{percent(share)} of the scrapes failed"
    if not (past.sum("generation_tokens") is not None or past.sum("requests") is not None):
        yield "none of vLLM's counters: the page of a router, or dropped by relabelling"
        return
    for name, its in one.verdict.latencies.items():
        title = LATENCIES[name].title
        if name not in KNOWN:
            yield f"{title}: vLLM does not measure a request's longest gap"
        elif its.all is None:
            yield f"{title}: no histogram with a bound at or above {number(its.objective.within_s * 1000)} ms"
        elif its.is_met is None:
            few = "too few requests" if its.all.requests < 10 else "its histogram's bounds leave it open"  # noqa: PLR2004
            yield f"{title}: not certain, {few}"


def past_json(found: PastDiagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON. Times in seconds, wall times in Unix time, rates per second."""
    return {
        "prometheus": found.url,
        "end": found.end_s,
        "seconds": found.seconds,
        "is_healthy": _is_healthy([one.verdict.health for one in found.servers]),
        "servers": [_server_json(one) for one in found.servers],
        "gpu_error": found.gpu_error,
        "fleets": [_fleet_json(one) for one in found.fleets],
        "gone": [{"name": one.name, "labels": dict(one.labels)} for one in found.gone],
    }


def _is_healthy(each: Sequence[Health]) -> bool | None:
    if any(one in (Health.NO, Health.AT_TIMES) for one in each):
        return False
    return True if each and all(one is Health.YES for one in each) else None


def _server_json(one: ServerDiagnosis) -> dict[str, Any]:
    verdict, capacity, past = one.verdict, one.capacity, one.past
    names = ("mode", "requests_per_second", "lower", "upper", "output_tokens_per_second", "reason")
    return {
        "name": past.name,
        "model": past.model,
        "labels": dict(past.labels),
        "other_records": [dict(labels) for labels in past.records],
        "health": verdict.health.value,
        "is_healthy": _is_healthy([verdict.health]),
        "objectives": {
            name: {
                "within": its.objective.within_s,
                "ratio": its.objective.ratio,
                "is_met": its.is_met,
                "is_met_lately": its.is_met_lately,
                "requests": its.all.requests if its.all else None,
                "late": its.all.slow - its.all.may_be_fast if its.all else None,
                "uncertain": its.all.uncertain if its.all else None,
                "missed_seconds": len(its.missed) * past.step_s,
                "last_missed": its.missed[-1] if its.missed else None,
            }
            for name, its in verdict.latencies.items()
        },
        "ended": verdict.ended,
        "failed": verdict.failed,
        "stalled_seconds": len(verdict.stalled) * past.step_s,
        "is_down": verdict.is_down,
        "restarts": past.restarts,
        "causes": [{"cause": cause.key, "words": cause.words, "change": cause.change} for cause in one.causes],
        "peak": {
            "at": verdict.peak_at_s,
            "requests_per_second": verdict.peak.requests_per_second,
            "output_tokens_per_second": verdict.peak.output_tokens_per_second,
        },
        "capacity": {name: getattr(capacity, name) for name in names},
        "capacity_of": one.capacity_of or past.name,
        "headroom_at_peak": one.headroom,
        "headroom_is_lower_bound": capacity.is_lower_bound,
        "settings": [{"words": each.words, "is_problem": each.is_problem} for each in one.settings],
        "gpus": [
            {
                "gpu": gpu.name,
                "busy": gpu.busy,
                "throttled_for_heat": gpu.throttled_for_heat,
                "throttled_for_power": gpu.throttled_for_power,
                "xid": gpu.xid,
            }
            for gpu in past.gpus
        ],
        "lacking": list(one.lacking),
    }


def _fleet_json(one: Fleet) -> dict[str, Any]:
    found = one.imbalance
    return {
        "name": one.name,
        "servers": [each.past.name for each in one.servers],
        "peak_requests_per_second": one.peak_rps,
        "capacity_requests_per_second": one.capacity_rps,
        "imbalance": None if found is None else {"server": found.engine, "load": found.value, "others": found.others},
    }
