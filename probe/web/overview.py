"""Rows of the status page, the worst targets first, with their problems and failed canaries as text."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from probe.capacity.trend.headroom import headroom
from probe.core import latency
from probe.core import objectives as slo
from probe.core.failure_log import FailureGroup, Since
from probe.core.objectives import Objectives
from probe.core.request import UP, Outcome, RequestRecord
from probe.core.result import CapacityResult
from probe.core.snapshot import REPLICAS, CrossChecks
from probe.core.target_status import CanaryStatus, OwnClock, TargetStatus
from probe.report.cross_check_text import Finding, findings
from probe.report.figures import ago, moment, percent, short
from probe.report.result_text import over_capacity
from probe.web.history import TargetHistory, target_history
from probe.web.how_much import how_much
from probe.web.row_text import because, failing_kinds, slow_kinds, users_trouble
from probe.web.state import (
    ASLEEP,
    ENOUGH,
    FAILING,
    GOOD,
    SLOW,
    STATES,
    Evidence,
    Facts,
    Shares,
    decide,
    evidence,
    first_of,
    kinds_of,
    order,
    shares,
)
from probe.web.trust import doubts, warnings

_SLOT, _BAR, _HEIGHT, _SLOTS = 4, 3, 28, 60
_MIN_HEIGHT = 0.06  # of a bar, as a share
_LOW_HEADROOM = 0.1  # headroom below this needs attention
_MAX_FAILURES = 20


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
    kinds: Sequence[Evidence]  # of each of state.kinds_of


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A target as a row of the table."""

    status: TargetStatus
    state: str
    since: Since | None  # of the state
    because: str  # why it is slow; "" in other states
    shares: Shares
    sent: int  # canaries that decide, at most NEWEST of each kind
    checks: CrossChecks  # while the server's page cannot be read: the last ones
    href: str
    strip: CanaryStrip | None
    good: float | None
    headroom: float | None
    headroom_for_users: float | None
    history: TargetHistory | None
    findings: Sequence[Finding]
    wrong: Sequence[str]
    doubts: Sequence[str]  # why its values may be wrong
    how_much: str  # more load it can take


class Overview:
    """Builds the rows, and caches what depends on canaries until a target has a new one."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[RequestRecord, Objectives, CanarySummary]] = {}

    def rows(self, statuses: Sequence[TargetStatus]) -> list[TargetRow]:
        """Return the rows, the worst targets first, otherwise in the given order."""
        return sorted(self.in_order(statuses), key=_order)

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


def _order(one: TargetRow) -> tuple[float, ...]:
    users_rps = (one.status.users.requests_per_second if one.status.users is not None else None) or 0.0
    return (*order(one.state, one.shares, users_rps), not one.wrong)


def canary_summary(status: TargetStatus) -> CanarySummary:
    """Return the summary of a target's recent canaries."""
    verdicts = _verdicts(status.recent, status.objectives)
    drawn = strip(status.recent, status.objectives, verdicts) if status.recent else None
    kinds = [
        evidence(
            kind.recent,
            verdicts if kind is status else _verdicts(kind.recent, status.objectives),
            status.objectives,
        )
        for kind in kinds_of(status)
    ]
    return CanarySummary(slo.shares(verdicts, status.objectives), drawn, kinds)


def _verdicts(records: Sequence[RequestRecord], objectives: Objectives) -> Sequence[Mapping[str, bool]]:
    return [slo.met(record, objectives) for record in records]


def row(status: TargetStatus, known: CanarySummary | None = None) -> TargetRow:
    """Return the row of one target."""
    known, now_s = known or canary_summary(status), time.time()
    checks = status.checks if status.server is not None else status.last_checks or status.checks
    found = findings(status)
    headroom_of = (headroom_now(status), _headroom_below(status, status.for_users))
    kinds = _that_show(status, known.kinds)
    facts = Facts(
        kinds=[one for _, one in kinds],
        users=status.checks.user_minutes,  # those of a server that cannot be read are of the past
        is_asleep=status.asleep_since_s is not None,
        is_passive=status.passive,
        is_stale=status.up is None and bool(status.recent),
        is_over=any(left is not None and left < 0 for left in headroom_of),
    )
    state = decide(facts, status.objectives)
    problems = [*_wrong(status, known, kinds, now_s), *(finding.words for finding in found if finding.is_problem)]
    state = decide(replace(facts, has_problem=bool(problems)), status.objectives)
    return TargetRow(
        status=status,
        state=state,
        since=_since(status, state, kinds),
        because=because(status, checks) if state == SLOW else "",
        shares=shares(facts.kinds, facts.users) if state != ASLEEP else Shares(),
        sent=sum(one.sent for one in facts.kinds),
        checks=checks,
        href=href(status.name),
        strip=known.strip,
        good=known.ratios.get(slo.ALL),
        headroom=headroom_of[0],
        headroom_for_users=headroom_of[1],
        history=target_history(status, now_s),
        findings=found,
        wrong=problems,
        doubts=doubts(status),
        how_much=how_much(status, now_s),
    )


_Kinds = Sequence[tuple[CanaryStatus | TargetStatus, Evidence]]


def _that_show(status: TargetStatus, known: Sequence[Evidence]) -> _Kinds:
    """Return the kinds of canaries that show how the server is now: not those that are old, or may fail yet."""
    are_starting = [kind.is_starting for kind in status.canaries] if status.canaries else [False]
    several = zip(kinds_of(status), known, are_starting, strict=True)
    return [(kind, one) for kind, one, is_starting in several if kind.up is not None and not is_starting]


def _since(status: TargetStatus, state: str, kinds: _Kinds) -> Since | None:
    """Return since when the target is in its state, if that is known."""
    if state == FAILING:
        known = [kind.trouble for kind, one in kinds if kind.trouble and one.is_failing(status.objectives.availability)]
        return first_of([one.since for one in known])
    if state == SLOW:
        slow = [one.missed[name].since for _, one in kinds for name in one.slow(status.objectives)]
        return first_of([one for one in slow if one is not None])
    if state == ASLEEP and status.asleep_since_s is not None:
        return Since(status.asleep_since_s, is_exact=True)
    return status.since if state == GOOD else None


def warnings_of(shown: Sequence[TargetRow], clock: OwnClock | None) -> Sequence[str]:
    """Return what to look at before any target."""
    bad = [one.since for one in shown if one.state in (FAILING, SLOW)]
    began_s = [one.at_s for one in bad if one is not None and one.is_exact]
    failing = sum(one.state == FAILING for one in shown)
    return warnings([one.status for one in shown], began_s, failing, clock)


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


def _wrong(status: TargetStatus, known: CanarySummary, kinds: _Kinds, now_s: float) -> Iterator[str]:
    """Yield each problem that users may notice, as a sentence."""
    said: set[str] = set()
    if status.asleep_since_s is None:  # else the canaries were sent before it fell asleep
        failing = [*failing_kinds(status, kinds, now_s)]
        slow = {name for _, one in kinds for name in one.slow(status.objectives)}
        said = slow | ({slo.AVAILABILITY} if failing else set())
        yield from failing
        yield from users_trouble(status.checks, status.objectives)
        yield from slow_kinds(status, kinds, now_s)
        if status.up is None and status.recent:
            yield "no recent canary shows whether the server is up"
        if len(status.recent) >= ENOUGH:
            yield from _broken(status, known.ratios, said)
        if status.up is False and not failing and kinds:
            failure = next((one.failure for _, one in kinds if one.in_a_row and one.failure is not None), None)
            yield f"the last canary failed: {failure.detail or failure.outcome.value}" if failure else "a canary failed"
    left = headroom_now(status)
    if left is not None and left < _LOW_HEADROOM:
        yield f"users leave only {percent(left)} of the measured capacity" if left >= 0 else over_capacity(left)
    if status.server_error is not None:
        yield f"server's metrics: {status.server_error}"


def _broken(status: TargetStatus, ratios: Mapping[str, float], said: Collection[str]) -> Iterator[str]:
    """Yield the objectives that the kept canaries missed, but for those of which it is said already."""
    for name in slo.broken(ratios, status.objectives):
        if name in said:
            continue
        promise = slo.promised(status.objectives)[name]
        limit = status.objectives.latencies().get(name)
        within = f" within {short(limit.within_s)}" if limit is not None else ""
        word = "answered" if name == slo.AVAILABILITY else f"{name.upper()}{within}"
        yield f"{word}: {percent(ratios[name])} of the last {len(status.recent)} canaries, objective {percent(promise)}"


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


def failures(statuses: Sequence[TargetStatus], now_s: float) -> list[TargetFailures]:
    """Return the last groups of failures of all targets: current ones first, then the newest first."""
    found = [
        TargetFailures(status.name, group, _words(group, now_s, is_current=is_current), is_current)
        for status in statuses
        for i, group in enumerate(status.failure_groups)
        for is_current in (i == 0 and group.recovered_s is None,)
    ]
    return sorted(found, key=lambda one: (not one.is_current, -one.group.last_s))[:_MAX_FAILURES]


def newest_of_each(found: Sequence[TargetFailures]) -> Sequence[TargetFailures]:
    """Return the first group of each target, so that one target that fails now and then hides no other."""
    first: dict[str, TargetFailures] = {}
    for one in found:
        first.setdefault(one.name, one)
    return [*first.values()]


def since_words(status: TargetStatus | TargetRow | CanaryStatus, now_s: float) -> str:
    """Return since when a target, or a kind of its canaries, is up or down; "" if unknown.

    Such as "02:49 UTC (3 h ago)".
    """
    if status.since is None:
        return ""
    age = ago(status.since.at_s, now_s)
    return f"{moment(status.since.at_s, now_s)} ({age if status.since.is_exact else f'{age} or earlier'})"


def _words(group: FailureGroup, now_s: float, *, is_current: bool) -> str:
    what = group.outcome.value.replace("_", " ")
    counted = f"{group.count} x {what}" if group.count > 1 else what
    if is_current:
        return f"{counted} since {moment(group.first_s, now_s)}"
    if group.count == 1:
        return f"{counted} at {moment(group.first_s, now_s)}"
    first, last = moment(group.first_s, now_s), moment(group.last_s, now_s)
    return f"{counted} from {first.removesuffix(' UTC')} to {last}" if first != last else f"{counted} at {last}"
