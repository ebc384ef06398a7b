"""Failed canaries in groups: since when a target fails, how often, and why."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.core.request import Outcome, RequestRecord

_KEEP = 20


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures in a row with the same outcome and HTTP status. `detail` is of the newest. Times are wall times (s).

    `recovered_s`: when a canary succeeded again; None: not yet.
    """

    outcome: Outcome
    http_status: int | None
    detail: str | None
    count: int
    first_s: float
    last_s: float
    recovered_s: float | None = None


@dataclass(frozen=True, slots=True)
class Since:
    """When a target began to succeed or to fail (wall time, s). Not exact: it did so with the first canary."""

    at_s: float
    is_exact: bool


# So many successes in a row end a trouble. Fewer interrupt it: a server that fails every third request does not fail
# "since" its last one.
RECOVERED = 10


@dataclass(frozen=True, slots=True)
class Trouble:
    """Failures without RECOVERED successes in a row between them.

    `sent`: canaries since the first of them, `failed`: of which failed. `last_ok_s`: when one succeeded last; None:
    never.
    """

    since: Since
    sent: int
    failed: int
    last_ok_s: float | None


class FailureLog:
    """The last groups of failures of one target, and since when it has been up or down."""

    def __init__(self) -> None:
        self._groups: deque[FailureGroup] = deque(maxlen=_KEEP)
        self._is_up: bool | None = None
        self.since: Since | None = None
        self._last_ok_s: float | None = None
        self._since_failed = 0  # successes
        self._trouble: Trouble | None = None

    @property
    def groups(self) -> Sequence[FailureGroup]:
        """Return the groups, newest first."""
        return tuple(self._groups)

    @property
    def trouble(self) -> Trouble | None:
        """Return the trouble that goes on, as far as one can tell yet; None after enough successes."""
        return None if self._trouble is None else replace(self._trouble, last_ok_s=self._last_ok_s)

    def add(self, record: RequestRecord) -> None:
        """Take the next canary. One that shows nothing of the server changes nothing."""
        is_up = record.is_up
        if is_up is None:
            return
        if is_up is not self._is_up:
            self.since = Since(record.done_wall_s, is_exact=self._is_up is not None)
            self._is_up = is_up
        self._follow(record.done_wall_s, is_up=is_up)
        if not is_up:
            self._fail(record)
        elif self._groups and self._groups[0].recovered_s is None:
            self._recover(record.done_wall_s)

    def _follow(self, at_s: float, *, is_up: bool) -> None:
        is_first = self._trouble is None and self._last_ok_s is None
        if is_up:
            self._last_ok_s = at_s
            self._since_failed += 1
        else:
            self._since_failed = 0
        known = self._trouble
        if known is None and not is_up:
            known = Trouble(Since(at_s, is_exact=not is_first), 0, 0, None)
        if known is not None and self._since_failed < RECOVERED:
            known = replace(known, sent=known.sent + 1, failed=known.failed + (not is_up))
        self._trouble = known if self._since_failed < RECOVERED else None

    def _fail(self, record: RequestRecord) -> None:
        last = self._groups[0] if self._groups else None
        same = (record.outcome, record.http_status)
        if last is not None and last.recovered_s is None and (last.outcome, last.http_status) == same:
            counted = replace(last, count=last.count + 1, last_s=record.done_wall_s, detail=record.detail)
            self._groups[0] = counted
            return
        self._groups.appendleft(FailureGroup(*same, record.detail, 1, record.done_wall_s, record.done_wall_s))

    def _recover(self, at_s: float) -> None:
        kept = [replace(each, recovered_s=at_s) if each.recovered_s is None else each for each in self._groups]
        self._groups = deque(kept, maxlen=_KEEP)
