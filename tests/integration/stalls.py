"""How late this machine wakes whoever sleeps: a witness of its own for a measurement that says its client was late.

Other programs and, on a virtual machine, other machines take the processors away for tens of milliseconds, at times
for minutes. Kneewatch has to refuse to judge then; where it does, a test can see here whether it had to.
"""

import threading
import time
from types import TracebackType
from typing import Self

_EVERY_S = 0.005
# Of the wakings 99 % are earlier on a quiet machine with two cores, a stand-in and a run beside it: 1 to 3 ms.
_LATE_S = 0.005


class Stalls:
    """Sleeps and notes how late it woke, on a thread, until the block ends."""

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def p99_s(self) -> float:
        """Seconds by which one waking in a hundred was late, or more."""
        return sorted(self._late_s)[int(0.99 * len(self._late_s))]

    @property
    def too_many(self) -> bool:
        """Whether a client on this machine could not send or stamp in time."""
        return self.p99_s > _LATE_S

    def _watch(self) -> None:
        while not self._over.is_set():
            due = time.monotonic() + _EVERY_S
            time.sleep(_EVERY_S)
            self._late_s.append(time.monotonic() - due)
