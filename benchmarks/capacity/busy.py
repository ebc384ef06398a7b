"""A machine that is busy for part of a run: when the client's process does not run, though it has something to do.

Stretches of 20 to 60 s alternate, quiet or busy. In a busy one the process runs and waits in turn, each wait for about
as long as the stretch's mean, 5 to 150 ms, which is drawn once for each stretch: some are hardly late, some far too
late to judge by. Whatever happens during a wait, a request that is due or bytes that come, is handled at its end.
"""

from bisect import bisect_right
from itertools import pairwise
from random import Random

_STRETCH_S = (20.0, 60.0)
_WAIT_S = (0.005, 0.15)
_RUN_SHARE = 2.0  # it runs for twice as long as it waits
_SAMPLE_S = 0.01  # of the event loop's lag (load/loop_lag.py)


class BusyMachine:
    """The waits of one run, in virtual time."""

    def __init__(self, seed: int, until_s: float = 3000.0) -> None:
        source = Random(f"busy {seed}")
        self._begin_s: list[float] = []
        self._end_s: list[float] = []
        now_s, is_busy = 0.0, source.random() < 0.5
        while now_s < until_s:
            ends_s = now_s + source.uniform(*_STRETCH_S)
            mean_s = _WAIT_S[0] * (_WAIT_S[1] / _WAIT_S[0]) ** source.random()
            while is_busy and now_s < ends_s:
                now_s += source.expovariate(1 / (_RUN_SHARE * mean_s))
                self._begin_s.append(now_s)
                now_s += source.expovariate(1 / mean_s)
                self._end_s.append(now_s)
            now_s, is_busy = max(now_s, ends_s), not is_busy

    def handled_s(self, at_s: float) -> float:
        """Return when the process handles what happens at that time."""
        wait = bisect_right(self._begin_s, at_s) - 1
        return max(at_s, self._end_s[wait]) if wait >= 0 else at_s

    def lags_s(self, from_s: float, to_s: float) -> tuple[float, ...]:
        """Return the samples that watch_lag takes between these times."""
        woken = [from_s]
        while woken[-1] < to_s:
            woken.append(self.handled_s(woken[-1] + _SAMPLE_S))
        return tuple(max(after - before - _SAMPLE_S, 0.0) for before, after in pairwise(woken)) or (0.0,)


class QuietMachine(BusyMachine):
    """A machine whose process always runs."""

    def __init__(self) -> None:
        super().__init__(0, 0.0)

    def lags_s(self, from_s: float, to_s: float) -> tuple[float, ...]:  # noqa: ARG002
        """See BusyMachine: it is never late."""
        return (0.0,) * 20
