"""Decides whether a capacity run may begin now, and its limits. Each refusal has a reason and numbers.

`preflight` checks the server and its firing alerts, for every run; AdmissionCheck checks more, for scheduled ones.

In: the target's canaries and scrapes, the tokens spent, and the time. Out: an Admission. The reasons are listed in
core/reasons.py.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from probe.capacity.trend.headroom import CapacityShare, largest_share
from probe.config.capacity import CapacityConfig
from probe.config.config import Config
from probe.core import objectives as slo
from probe.core import reasons
from probe.core.burn_rate import BurnRates
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.load_windows import closes_at, parse_window
from probe.core.objectives import Objectives
from probe.core.request import Outcome, RequestRecord
from probe.core.result import Capacity
from probe.core.snapshot import ServerSnapshot, UserLoad
from probe.observe.guard import GO, SLEEPS, GuardLimits, GuardVerdict, denied, may_start
from probe.observe.restarts import CHANGED
from probe.observe.server_state import ServerState


async def preflight(
    read_server: Callable[[], Awaitable[ServerSnapshot]],
    limits: GuardLimits,
    firing_pages: Callable[[], Awaitable[list[str]]] | None = None,
    *,
    by_stream: bool = False,
) -> tuple[GuardVerdict, ServerSnapshot | None]:
    """Check the server once. Return whether load may begin, and the server's state. Raises nothing.

    `by_stream`: the run is guarded by its own answers, so metrics that cannot be read refuse nothing.
    """
    server: ServerSnapshot | None = None
    try:
        server = await _read_twice(read_server)
        verdict = may_start(server, limits)
    except TargetError as error:
        verdict = denied(reasons.NO_SERVER_METRICS, str(error))
    if by_stream and verdict.reason == reasons.NO_SERVER_METRICS.word:
        verdict = GO
    try:
        if verdict.allows_load and firing_pages is not None and (firing := await firing_pages()):
            verdict = denied(reasons.ALERT_FIRING, f"{', '.join(firing)} fires for the target")
    except TargetError as error:
        verdict = denied(reasons.NO_PROMETHEUS, str(error))
    return verdict, server


async def _read_twice(read_server: Callable[[], Awaitable[ServerSnapshot]]) -> ServerSnapshot:
    """Return the server's state, asked for again if it was late: the first page after a start often is.

    Raises TargetError.
    """
    try:
        return await read_server()
    except TargetError as error:
        if error.reason != "timeout":
            raise
    return await read_server()


def firing_pages(config: Config, target: str) -> Callable[[], Awaitable[list[str]]] | None:
    """Return a function that lists a target's firing paging alerts; None where no Prometheus is configured."""
    if config.prometheus is None:
        return None
    from probe.prometheus.queries import Prometheus  # noqa: PLC0415 - memory that only this option needs

    prometheus = Prometheus(config.prometheus)
    return partial(prometheus.firing_pages, target)


# Above this share of the capacity, users leave no room for steps.
MAX_LIVE_SHARE = 0.6
# After a restart caches are cold and replicas may still follow.
_ROLLOUT_S = 300.0
# Less than this share of a run's tokens seldom takes it beyond its first steps.
_USEFUL_SHARE = 0.25
_UNREAD = "rollout, live load: with capacity.guard: stream the metrics page does not count"
# A daily schedule has 23 hours between two runs in spring, and less where the first began late; the run of the day
# before is not held against it.
_DAY_S, _LATEST_S = 23 * 3600.0 - 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Admission:
    """A verdict and, where it is "go", the run's limits: tokens and seconds (None: the budget's own).

    `server`: its state when it was checked. `unchecked`: the checks that could not be made, and why.
    """

    verdict: GuardVerdict
    server: ServerSnapshot | None = None
    tokens: int | None = None
    seconds: float | None = None
    unchecked: tuple[str, ...] = ()


class AdmissionCheck:
    """Decides before each run of one target, by its canaries and the state of its server."""

    def __init__(
        self,
        capacity: CapacityConfig,
        objectives: Objectives,
        clock: Clock,
        state: ServerState,
        *,
        firing_pages: Callable[[], Awaitable[list[str]]] | None,
        spent: Callable[[float], int | None],
        lacking_workload: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Take `spent`: the tokens of the runs that began at this wall time or later; None: unknown.

        `lacking_workload`: returns why the run has no workload yet, or None.
        """
        self._schedule, self._budget = capacity.schedule, capacity.budget
        self._least_s = capacity.least_s
        self._windows = tuple(parse_window(text) for text in capacity.schedule.windows)
        self._by_stream = capacity.guard == "stream"
        self._objectives = objectives
        self._clock = clock
        self._firing_pages = firing_pages
        self._spent = spent
        self._state = state
        self._lacking_workload = lacking_workload
        self._burn: dict[int, BurnRates] = defaultdict(BurnRates)  # by kind of canary
        self._last: dict[int, RequestRecord] = {}  # by kind of canary

    def add_canary(self, record: RequestRecord, kind: int = 0) -> None:
        """Note a canary that has ended."""
        self._last[kind] = record
        self._burn[kind].add(slo.met(record, self._objectives), record.done_ns)

    async def ask(self, read_server: Callable[[], Awaitable[ServerSnapshot]], known: Capacity | None) -> Admission:
        """Return whether a run may begin now. Raise only what `spent` raises.

        `read_server` adds its snapshot to the server's state. `known`: the last known capacity.
        """
        wall_s = self._clock.wall_s()
        seconds = self._seconds_left(wall_s)
        tokens = self._tokens_left(wall_s)
        refused = self._refused_unasked(seconds, tokens)
        if refused is not None:
            return Admission(refused)
        verdict, server = await preflight(read_server, GuardLimits(), self._firing_pages, by_stream=self._by_stream)
        if verdict.allows_load and self._by_stream:
            burn = self._highest_burn(self._clock.monotonic_ns())
            return Admission(_burning(burn) or verdict, server, tokens, seconds, (*_unchecked_burn(burn), _UNREAD))
        if verdict.allows_load and server is not None:
            now_ns = self._clock.monotonic_ns()
            restart, users = self._state.restarted_ago(now_ns), self._state.users()
            burn = self._highest_burn(now_ns)
            several = _several() if self._state.has_multiple_backends else None
            verdict = several or _restarted(restart) or _burning(burn) or _loaded(users, known) or verdict
            return Admission(verdict, server, tokens, seconds, _unchecked(burn, users, known))
        return Admission(verdict, server)

    def _refused_unasked(self, seconds: float | None, tokens: int | None) -> GuardVerdict | None:
        """Return why the run is refused without asking the server: by schedule, budget or last canary; or None."""
        if seconds is not None and seconds <= 0:
            windows = ", ".join(self._schedule.windows)
            return denied(reasons.OUTSIDE_WINDOW, f"no window is open ({windows}, {self._schedule.timezone})")
        if seconds is not None and seconds < self._least_s:
            words = f"the window closes in {seconds:.0f} s, a first step takes {self._least_s:g} s"
            return denied(reasons.OUTSIDE_WINDOW, words)
        if tokens is None or tokens < _USEFUL_SHARE * self._budget.tokens_per_run:
            unknown = "the day's spent tokens are unknown, store.path cannot be read; the log says why"
            left = f"{tokens} of the day's {self._budget.daily_tokens} tokens are left"
            return denied(reasons.BUDGET_SPENT, unknown if tokens is None else left)
        if self._state.sleep.is_recent(self._clock.monotonic_ns()):  # and so there may be no canary
            return denied(reasons.REFUSED_ASLEEP, SLEEPS)
        lacking = self._lacking_workload()
        return self._failed_canary() or (denied(reasons.NO_USER_LENGTHS, lacking) if lacking is not None else None)

    def _failed_canary(self) -> GuardVerdict | None:
        outcomes = [last.outcome for last in self._last.values()]
        bad = next((outcome.value for outcome in outcomes if outcome is not Outcome.OK), None)
        if outcomes and bad is None:
            return None
        return denied(reasons.CANARY_FAILED, f"the last canary did not succeed ({bad or 'none has ended yet'})")

    def _highest_burn(self, now_ns: int) -> dict[str, float]:
        """Return the highest burn rate of any kind of canary, by objective."""
        burn: dict[str, float] = {}
        for each in self._burn.values():
            for name, rate in each.rates(self._objectives, now_ns).items():
                burn[name] = max(rate, burn.get(name, 0.0))
        return burn

    def _seconds_left(self, wall_s: float) -> float | None:
        now = datetime.fromtimestamp(wall_s, UTC)
        closes = closes_at(self._windows, now, self._schedule.timezone)
        return None if closes is None else (closes - now).total_seconds()

    def _tokens_left(self, wall_s: float) -> int | None:
        spent = self._spent(wall_s - _DAY_S + min(self._schedule.grace, _LATEST_S))
        if spent is None:
            return None
        return max(min(self._budget.daily_tokens - spent, self._budget.tokens_per_run), 0)


def _several() -> GuardVerdict:
    words = (
        "several servers answer at this address, and not all of their metrics pages are read; set metrics_urls, or"
        " configure a target for each"
    )
    return denied(reasons.REFUSED_SEVERAL_SERVERS, words)


def _restarted(restart: tuple[float, str] | None) -> GuardVerdict | None:
    if restart is None or restart[0] > _ROLLOUT_S:
        return None
    what = "changed" if restart[1].startswith(CHANGED) else "restarted"
    return denied(reasons.ROLLOUT, f"the server {what} {restart[0]:.0f} s ago: {restart[1]}")


def _burning(burn: Mapping[str, float]) -> GuardVerdict | None:
    burning = [f"{name} {rate:.3g}" for name, rate in burn.items() if rate >= 1]
    words = f"burn rate of the last hour's canaries: {', '.join(burning)}"
    return denied(reasons.BURN_RATE, words) if burning else None


def _loaded(users: UserLoad | None, known: Capacity | None) -> GuardVerdict | None:
    """Refuse by requests and by output tokens: users' requests may be longer than the probe's."""
    used = _share(users, known)
    if used is None or used.ratio <= MAX_LIVE_SHARE:
        return None
    share = f"{used.ratio:.0%} of the capacity ({used.live:.3g} of {used.most:.3g} {used.unit})"
    return denied(reasons.LIVE_LOAD, f"users take {share}, more than {MAX_LIVE_SHARE:.0%}")


def _share(users: UserLoad | None, known: Capacity | None) -> CapacityShare | None:
    # A lower bound on the capacity cannot show that the load is too high.
    return largest_share(users, known) if known is not None and known.upper is not None else None


def _unchecked_burn(burn: Mapping[str, float]) -> list[str]:
    return [] if burn else ["burn rate: no canary judged an objective within the last hour"]


def _unchecked(burn: Mapping[str, float], users: UserLoad | None, known: Capacity | None) -> tuple[str, ...]:
    words = _unchecked_burn(burn)
    if _share(users, known) is None:
        unknown = "user traffic is unknown: too little data yet, or several servers share the address"
        why = unknown if users is None else "no capacity with an upper bound"
        words.append(f"live load: {why}")
    return tuple(words)
