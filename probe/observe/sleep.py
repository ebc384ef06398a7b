"""Whether a server sleeps, by its successive snapshots. Pure.

A sleeping server answers /health and /metrics, and has given its GPU memory to others. A request waits until it wakes
up; in some versions of vLLM it ends the engine. So nothing may be sent to it.
"""

from probe.core.snapshot import ServerSnapshot

# How long a server whose page cannot be read any more still counts as asleep. It may have died, and then its canaries
# have to fail.
_UNREAD_NS = 60 * 10**9


class Sleep:
    """The sleep of one server. `since_s`: wall time of the first snapshot that showed it; None: the server is awake.

    `is_reported`: whether the last snapshot shows it; None: there has been none.
    """

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.is_reported: bool | None = None
        self._last_ns = -_UNREAD_NS  # the last snapshot of a sleeping server

    def add(self, snapshot: ServerSnapshot) -> None:
        """Take the next snapshot."""
        self.is_reported = snapshot.is_asleep is not None
        if not snapshot.is_asleep:
            self.since_s = None
            return
        self._last_ns = snapshot.at_ns
        if self.since_s is None:
            self.since_s = snapshot.wall_s

    def is_recent(self, now_ns: int) -> bool:
        """Return whether the server sleeps by the last snapshot, and within the last minute."""
        return self.since_s is not None and now_ns - self._last_ns < _UNREAD_NS

    def was_since(self, since_ns: int) -> bool:
        """Return whether a snapshot since then showed the server asleep."""
        return self._last_ns >= since_ns
