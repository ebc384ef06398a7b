"""The state of a target, by its newest canaries and its users' last minutes. Pure.

More failures or misses never make a state better: a failure counts as a miss of every latency objective, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe.core.failure_log import RECOVERED, Since
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.core.snapshot import UserMinutes
from probe.core.target_status import CanaryStatus, TargetStatus

# States of a target, the worst first.
FAILING, SLOW, OVER, DEGRADED, STARTING = "failing", "slow", "over", "degraded", "starting"
ASLEEP, GOOD, PASSIVE = "asleep", "good", "passive"
STATES = {
    FAILING: "failing",
    SLOW: "slow",
    OVER: "over its limit",
    DEGRADED: "needs attention",
    STARTING: "starting",
    ASLEEP: "asleep",
    GOOD: "good",
    PASSIVE: "passive",
}
UNHEALTHY = frozenset({FAILING, STARTING, ASLEEP})  # to a load balancer: what does not answer, or is not known to
NEWEST = 20  # canaries that decide
ENOUGH = 5  # fewer show nothing good yet
CLEAR = 3  # failures or misses; fewer of NEWEST may be chance
_IN_A_ROW = 2  # failures by which a dead server is known
_LEAST_USERS = 10  # requests; of fewer, single ones decide


@dataclass(frozen=True, slots=True)
class Missed:
    """Canaries of NEWEST that one latency objective judges. `late`: answered too late; `failed`: not answered.

    `lately`: how many of the last RECOVERED missed it, either way. `since_s`: the first miss without RECOVERED good
    ones after it, of those that are kept; `is_exact`: none of the earlier ones that are kept missed it.
    """

    judged: int
    late: int
    failed: int
    lately: int
    since: Since | None

    def is_clear(self, ratio: float) -> bool:
        """Return whether too many missed the objective, by more than chance, and some of the last ones."""
        missed = self.late + self.failed
        return self.lately > 0 and missed >= CLEAR and self.judged - missed < ratio * self.judged


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the newest canaries of one kind show. `sent`: those of NEWEST that show anything; `in_a_row`: failures."""

    sent: int
    failed: int
    lately: int  # failures of the last RECOVERED
    in_a_row: int
    missed: Mapping[str, Missed]
    failure: RequestRecord | None  # the newest

    def is_failing(self, availability: float | None) -> bool:
        """Return whether the server fails: clearly more often than it may, several times in a row, or always."""
        allowed = (1 - availability) * self.sent if availability is not None else 0.0
        is_clear = self.lately > 0 and self.failed >= CLEAR and self.failed > allowed
        return is_clear or self.in_a_row >= min(_IN_A_ROW, max(self.sent, 1))

    def slow(self, objectives: Objectives) -> tuple[str, ...]:
        """Return the latency objectives that are clearly missed."""
        limits = objectives.latencies()
        return tuple(name for name, one in self.missed.items() if one.is_clear(limits[name].ratio))


def evidence(
    records: Sequence[RequestRecord], verdicts: Sequence[Mapping[str, bool]], objectives: Objectives
) -> Evidence:
    """Return what canaries show, given newest first with their verdicts of `objectives.met`."""
    shown = [(one, verdict) for one, verdict in zip(records, verdicts, strict=True) if one.is_up is not None]
    ups = [bool(one.is_up) for one, _ in shown[:NEWEST]]
    return Evidence(
        sent=len(ups),
        failed=ups.count(False),
        lately=ups[:RECOVERED].count(False),
        in_a_row=ups.index(True) if True in ups else len(ups),
        missed={name: _missed(name, shown) for name in objectives.latencies()},
        failure=next((one for one, _ in shown[:NEWEST] if not one.is_up), None),
    )


def _missed(name: str, shown: Sequence[tuple[RequestRecord, Mapping[str, bool]]]) -> Missed:
    judged = [(one, verdict.get(name, False)) for one, verdict in shown if name in verdict or not one.is_up]
    newest = judged[:NEWEST]
    failed = sum(not one.is_up for one, _ in newest)
    return Missed(
        judged=len(newest),
        late=sum(not met for _, met in newest) - failed,
        failed=failed,
        lately=sum(not met for _, met in newest[:RECOVERED]),
        since=_since(judged),
    )


def _since(judged: Sequence[tuple[RequestRecord, bool]]) -> Since | None:
    first, good = None, 0
    for at, (_, met) in enumerate(judged):
        first, good = (first, good + 1) if met else (at, 0)
        if good >= RECOVERED:
            break
    if first is None:
        return None
    return Since(judged[first][0].done_wall_s, is_exact=good > 0)


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of requests that failed or were late, of canaries or of users, whichever is larger."""

    failed: float = 0.0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """All that decides the state of one target.

    `kinds`: of each kind of canary that has a recent one and whose server need not be starting. `is_stale`: there were
    canaries, and the newest is too old. `is_over`: users ask for more than the capacity.
    """

    kinds: Sequence[Evidence] = ()
    users: UserMinutes | None = None
    is_asleep: bool = False
    is_passive: bool = False
    is_stale: bool = False
    is_over: bool = False
    has_problem: bool = False


def decide(facts: Facts, objectives: Objectives) -> str:
    """Return the state, one of STATES: the first that holds."""
    users, sent = facts.users, sum(one.sent for one in facts.kinds)
    kinds_fail = any(one.is_failing(objectives.availability) for one in facts.kinds)
    rules = (
        (ASLEEP, facts.is_asleep),
        (FAILING, kinds_fail or users_fail(users, objectives)),
        (SLOW, any(one.slow(objectives) for one in facts.kinds) or bool(users_slow(users))),
        (OVER, facts.is_over),
        (DEGRADED, facts.is_stale),
        (STARTING, not sent and not facts.is_passive),
        (DEGRADED, facts.has_problem),
        (STARTING, sent < ENOUGH and not facts.is_passive),
        (PASSIVE, facts.is_passive),
    )
    return next((state for state, holds in rules if holds), GOOD)


def users_fail(users: UserMinutes | None, objectives: Objectives) -> bool:
    """Return whether the server clearly fails more of its users' requests than it may."""
    if users is None or users.failed is None or users.ended is None or users.ended < _LEAST_USERS:
        return False
    allowed = (1 - objectives.availability) * users.ended if objectives.availability is not None else 0.0
    return users.failed >= CLEAR and users.failed > allowed


def users_slow(users: UserMinutes | None) -> tuple[str, ...]:
    """Return the latency objectives that users' requests certainly missed."""
    return tuple(name for name, one in users.latencies.items() if one.is_met is False) if users is not None else ()


def shares(kinds: Sequence[Evidence], users: UserMinutes | None) -> Shares:
    """Return the largest shares of failed and of late requests."""
    failed = [one.failed / one.sent for one in kinds if one.sent]
    late = [(m.late + m.failed) / m.judged for one in kinds for m in one.missed.values() if m.judged]
    if users is not None:
        if users.failed is not None and users.ended:
            failed.append(users.failed / users.ended)
        late += [one.late / one.requests for one in users.latencies.values() if one.is_met is not None]
    return Shares(max(failed, default=0.0), max(late, default=0.0))


def order(state: str, share: Shares, users_rps: float) -> tuple[float, ...]:
    """Return the key by which targets are sorted: the worst state first, then by share, then by users' requests/s."""
    return [*STATES].index(state), -share.failed, -share.late, -users_rps


def kinds_of(status: TargetStatus) -> Sequence[CanaryStatus | TargetStatus]:
    """Return the kinds of canaries of a target; the target itself if it has only one."""
    return status.canaries if len(status.canaries) > 1 else (status,)


def first_of(found: Sequence[Since]) -> Since | None:
    """Return the earliest; None without any."""
    return min(found, key=lambda one: one.at_s, default=None)
