"""Rows of the status page, the worst targets first, with their problems and failed canaries as text."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from probe.capacity.trend.headroom import headroom
from probe.core import latency
from probe.core import objectives as slo
from probe.core.failure_log import FailureGroup
from probe.core.objectives import Objectives
from probe.core.request import UP, Outcome, RequestRecord
from probe.core.result import CapacityResult
from probe.core.snapshot import REPLICAS
from probe.core.target_status import CanaryStatus, TargetStatus
from probe.report.cross_check_text import Finding, findings
from probe.report.failure_text import refusal_words
from probe.report.figures import ago, milliseconds, percent, when
from probe.report.result_text import over_capacity
from probe.web.history import TargetHistory, target_history

# States of a target, the worst first.
FAILING, MISSING, DEGRADED, STARTING, GOOD, PASSIVE = "failing", "missing", "degraded", "starting", "good", "passive"
ASLEEP = "asleep"
STATES = {
    FAILING: "failing",
    MISSING: "missing objectives",
    DEGRADED: "needs attention",
    STARTING: "starting",
    ASLEEP: "asleep",
    GOOD: "good",
    PASSIVE: "passive",
}
_SLOT, _BAR, _HEIGHT, _SLOTS = 4, 3, 28, 60
_MIN_HEIGHT = 0.06  # of a bar, as a share
_LOW_HEADROOM = 0.1  # headroom below this needs attention
_MIN_CANARIES = 5  # fewer say little about a ratio
_MAX_FAILURES = 20
_DATE = len("2026-11-23 ")


@dataclass(frozen=True, slots=True)
class CanaryStrip:
    """The recent canaries as SVG paths, oldest on the left, and the height of the TTFT objective."""

    paths: tuple[tuple[str, str], ...]  # kind (good, slow, failed) and outline
    width: int
    height: int
    objective_y: float | None
    words: str


@dataclass(frozen=True, slots=True)
class CanarySummary:
    """Values derived from a target's recent canaries: the ratio that met each objective, and the strip."""

    ratios: Mapping[str, float]
    strip: CanaryStrip | None


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A target as a row of the table."""

    status: TargetStatus
    state: str
    href: str
    strip: CanaryStrip | None
    good: float | None
    headroom: float | None
    headroom_for_users: float | None
    history: TargetHistory | None
    findings: Sequence[Finding]
    wrong: Sequence[str]


class Overview:
    """Builds the rows, and caches what depends on canaries until a target has a new one."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[RequestRecord, Objectives, CanarySummary]] = {}

    def rows(self, statuses: Sequence[TargetStatus]) -> list[TargetRow]:
        """Return the rows, targets in trouble first, otherwise in the given order."""
        order = list(STATES)
        return sorted(self.in_order(statuses), key=lambda one: (order.index(one.state), not one.wrong))

    def in_order(self, statuses: Sequence[TargetStatus]) -> list[TargetRow]:
        """Return the rows in the given order."""
        found = [row(status, self._canary_summary(status)) for status in statuses]
        known = self._known  # another thread may replace it
        self._known = {name: known[name] for one in found if (name := one.status.name) in known}
        return found

    def _canary_summary(self, status: TargetStatus) -> CanarySummary:
        if not status.recent:
            return canary_summary(status)
        newest, known = status.recent[0], self._known.get(status.name)
        if known is None or known[0] is not newest or known[1] is not status.objectives:
            known = (newest, status.objectives, canary_summary(status))
            self._known[status.name] = known
        return known[2]


def canary_summary(status: TargetStatus) -> CanarySummary:
    """Return the summary of a target's recent canaries."""
    verdicts = [slo.met(record, status.objectives) for record in status.recent]
    drawn = strip(status.recent, status.objectives, verdicts) if status.recent else None
    return CanarySummary(slo.shares(verdicts, status.objectives), drawn)


def row(status: TargetStatus, known: CanarySummary | None = None) -> TargetRow:
    """Return the row of one target."""
    known = known or canary_summary(status)
    ratios = known.ratios
    found = findings(status)
    broken = slo.broken(ratios, status.objectives) if len(status.recent) >= _MIN_CANARIES else ()
    if status.asleep_since_s is not None:
        broken = ()  # the canaries were sent before it fell asleep
    state = _state(status, broken)
    problems = [*_wrong(status, state, broken, ratios), *(finding.words for finding in found if finding.is_problem)]
    if problems and state in (GOOD, PASSIVE):
        state = DEGRADED
    return TargetRow(
        status=status,
        state=state,
        href=href(status.name),
        strip=known.strip,
        good=ratios.get(slo.ALL),
        headroom=headroom_now(status),
        headroom_for_users=_headroom_below(status, status.for_users),
        history=target_history(status, time.time()),
        findings=found,
        wrong=problems,
    )


def href(name: str) -> str:
    """Return the path of a target's page, relative to the status page. A discovered name may contain a slash."""
    return f"targets/{quote(name.encode('utf-8', 'replace'), safe='/')}"


def headroom_now(status: TargetStatus) -> float | None:
    """Return the current headroom below the last measured capacity, if it was measured with as many replicas."""
    return _headroom_below(status, status.measured or status.capacity)


def _headroom_below(status: TargetStatus, known: CapacityResult | None) -> float | None:
    if known is not None and status.server is not None:
        known = known if known.context.flags.get(REPLICAS) == status.server.flags.get(REPLICAS) else None
    return headroom(status.users, known.capacity if known is not None else None)


def tally(shown: Sequence[TargetRow]) -> list[tuple[str, str, int]]:
    """Return, for each state, its name, its text and the number of targets."""
    return [(state, words, sum(one.state == state for one in shown)) for state, words in STATES.items()]


def strip(
    records: Sequence[RequestRecord], objectives: Objectives, verdicts: Sequence[Mapping[str, bool]]
) -> CanaryStrip:
    """Return canaries (given newest first) as bars of their TTFT; a failed one has the full height.

    Answers without tokens have bars of their E2E.
    """
    ttft = [latency.wait_s(record) or 0.0 for record in records[:_SLOTS]]
    has_tokens = not records or records[0].spec.api.generates
    limit = objectives.ttft if has_tokens else objectives.e2e
    objective = limit.within_s if limit else None
    top = max([*ttft, (objective or 0.0) * 1.1, 1e-9])
    paths: dict[str, list[str]] = {"good": [], "slow": [], "failed": []}
    for i, (record, value, verdict) in enumerate(zip(records, ttft, verdicts, strict=False)):
        kind = "failed" if record.outcome not in UP else "good" if verdict.get(slo.ALL, True) else "slow"
        height = _HEIGHT * (1.0 if kind == "failed" else max(value / top, _MIN_HEIGHT))
        x = (_SLOTS - 1 - i) * _SLOT
        paths[kind].append(f"M{x} {_HEIGHT - height:.1f}h{_BAR}V{_HEIGHT}h-{_BAR}z")
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in paths.items() if found)
    return CanaryStrip(
        tuple((kind, "".join(found)) for kind, found in paths.items() if found),
        _SLOTS * _SLOT,
        _HEIGHT,
        _HEIGHT * (1 - objective / top) if objective else None,
        f"{'TTFT' if has_tokens else 'E2E'} of the last {len(ttft)} canaries: {counts}",
    )


def _state(status: TargetStatus, broken: Sequence[str]) -> str:
    if status.asleep_since_s is not None:
        return ASLEEP
    if status.passive:
        return PASSIVE
    if status.up is None:
        return DEGRADED if status.recent else STARTING
    if not status.up:
        return FAILING
    return MISSING if broken else GOOD


def _wrong(status: TargetStatus, state: str, broken: Sequence[str], ratios: Mapping[str, float]) -> Iterator[str]:
    """Yield each problem that users may notice, as a sentence."""
    if state == FAILING:
        yield from _failing(status)
    if status.up is None and status.recent and state == DEGRADED:
        yield "no recent canary shows whether the server is up"
    for name in broken:
        promise = slo.promised(status.objectives)[name]
        limit = status.objectives.latencies().get(name)
        within = f" within {milliseconds(limit.within_s)}" if limit is not None else ""
        word = "answered" if name == slo.AVAILABILITY else f"{name.upper()}{within}"
        yield f"{word}: {percent(ratios[name])} of the last {len(status.recent)} canaries, objective {percent(promise)}"
    left = headroom_now(status)
    if left is not None and left < _LOW_HEADROOM:
        yield f"users leave only {percent(left)} of the measured capacity" if left >= 0 else over_capacity(left)
    if status.server_error is not None:
        yield f"server's metrics: {status.server_error}"


def _failing(status: TargetStatus) -> Iterator[str]:
    """Yield why each kind of canary fails, and since when."""
    several = status.canaries if len(status.canaries) > 1 else ()
    failing_kinds: list[CanaryStatus | TargetStatus] = [kind for kind in several if kind.up is False]
    for failing in failing_kinds or [status]:
        named = ""
        if isinstance(failing, CanaryStatus):
            named = f"canaries of {failing.workload} with {failing.model}: "
        if failing.recent:
            last, since = failing.recent[0], since_words(failing, time.time())
            known = f", failing since {since}" if since else ""
            why = f"{last.detail or 'no reason known'}{refusal_words(last)}"
            yield f"{named}{last.outcome.value}: {why}{known}"


def is_slow(record: RequestRecord, objectives: Objectives) -> bool:
    """Return whether a request was answered but missed an objective."""
    return record.outcome is Outcome.OK and not slo.met(record, objectives)[slo.ALL]


@dataclass(frozen=True, slots=True)
class TargetFailures:
    """A group of a target's failures. `words`: outcome, number, times. `is_current`: the target fails like this now."""

    name: str
    group: FailureGroup
    words: str
    is_current: bool


def failures(statuses: Sequence[TargetStatus]) -> list[TargetFailures]:
    """Return the last groups of failures of all targets: current ones first, then the newest first."""
    found = [
        TargetFailures(status.name, group, _words(group, is_current=is_current), is_current)
        for status in statuses
        for i, group in enumerate(status.failure_groups)
        for is_current in (i == 0 and group.recovered_s is None,)
    ]
    return sorted(found, key=lambda one: (not one.is_current, -one.group.last_s))[:_MAX_FAILURES]


def since_words(status: TargetStatus | CanaryStatus, now_s: float) -> str:
    """Return since when a target, or a kind of its canaries, is up or down; "" if unknown.

    Such as "2026-11-23 02:49:12 UTC (3 h ago)".
    """
    if status.since is None:
        return ""
    age = ago(status.since.at_s, now_s)
    return f"{when(status.since.at_s)} ({age if status.since.is_exact else f'{age}, the first canary'})"


def _words(group: FailureGroup, *, is_current: bool) -> str:
    what = group.outcome.value.replace("_", " ")
    counted = f"{group.count} x {what}" if group.count > 1 else what
    if is_current:
        return f"{counted} since {when(group.first_s)}"
    if group.count == 1:
        return f"{counted} at {when(group.first_s)}"
    first, last = when(group.first_s), when(group.last_s)
    is_same_day = first[:_DATE] == last[:_DATE]
    return f"{counted} from {first.removesuffix(' UTC')} to {last[_DATE:] if is_same_day else last}"
