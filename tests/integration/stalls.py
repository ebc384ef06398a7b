"""How late this machine wakes whoever sleeps: a witness of its own for a measurement that says its client was late.

Other programs and, on a virtual machine, other machines take the processors away for tens of milliseconds, at times
for minutes. Kneewatch has to refuse to judge then; where it does, a test can see here whether it had to.
"""

import threading
import time
from types import TracebackType
from typing import Self

_EVERY_S = 0.005
# A step is void where TTFT may be wrong by more than 50 ms. In six runs that judged theirs, on two virtual cores whose
# neighbours took 5 %, the latest waking was 11 to 35 ms late.
_LATE_S = 0.04


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
    def longest_s(self) -> float:
        """Seconds by which the latest waking was late."""
        return max(self._late_s)

    @property
    def too_long(self) -> bool:
        """Whether a client on this machine could not send or stamp in time."""
        return self.longest_s > _LATE_S

    def _watch(self) -> None:
        while not self._over.is_set():
            due = time.monotonic() + _EVERY_S
            time.sleep(_EVERY_S)
            self._late_s.append(time.monotonic() - due)
