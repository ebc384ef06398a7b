"""Log lines about tasks that do not run or fail: for each cause at most one a minute, with how many it stands for.

On a machine without CPU time left every task of every target is late or skipped. A line for each would hide the others.
"""

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field

import structlog

from probe.runtime.scheduler import TaskId

_log = structlog.get_logger()
_EVERY_S = 60.0


@dataclass(slots=True)
class _Unsaid:
    """What has happened of one cause since its last line."""

    times: int = 0
    targets: set[str] = field(default_factory=set)
    error: BaseException | None = None


class TaskLog:
    """The lines about tasks. Needs a running event loop."""

    def __init__(self) -> None:
        self._causes: dict[Hashable, _Unsaid] = {}  # of the last minute

    def add(self, task: TaskId, problem: str, error: BaseException | None) -> None:
        """Log that a task did not run or failed, now or within a minute."""
        cause = (task.task, problem, None if error is None else (type(error), str(error)))
        is_first = cause not in self._causes
        unsaid = self._causes.setdefault(cause, _Unsaid())
        unsaid.times += 1
        unsaid.targets.add(task.target)
        unsaid.error = error
        if is_first:
            self._say(task.task, problem, cause)

    def _say(self, task: str, problem: str, cause: Hashable) -> None:
        """Log what has happened of a cause, and again in a minute; forget it after a minute without."""
        unsaid = self._causes.pop(cause)
        if not unsaid.times:
            return
        one, *others = sorted(unsaid.targets)
        more = {"times": unsaid.times, "targets": 1 + len(others)} if unsaid.times > 1 else {}
        if unsaid.error is None:
            _log.warning("task did not run", task=task, target=one, problem=problem, **more)
        else:
            _log.error("task failed", task=task, target=one, exc_info=unsaid.error, **more)
        self._causes[cause] = _Unsaid()
        asyncio.get_running_loop().call_later(_EVERY_S, self._say, task, problem, cause)
