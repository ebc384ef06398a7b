"""What ends a run from outside: signals, and replicas that come or go."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.service import Interrupts
from probe.observe.guard import REPLICAS_CHANGED


def on_signals(act: Callable[[], None]) -> None:
    """Have Ctrl-C, SIGTERM and a closed terminal do this from now on, in the running loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # ignored: by nohup
            loop.add_signal_handler(number, act)


@contextmanager
def stopped_by_signals(run: CapacityRun) -> Iterator[None]:
    """Let signals end a run."""
    on_signals(partial(run.stop, "interrupt", "signal"))
    yield  # The handlers stay: a second Ctrl-C must not lose the result while the load ends.


class Stops:
    """What ends a run from outside: `interrupts`, and replicas that come or go."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._run: CapacityRun | None = None

    @contextmanager
    def of(self, run: CapacityRun) -> Iterator[None]:
        """Let them end this run."""
        self._run = run
        with self._interrupts(run):
            yield

    def replicas_changed(self, _: str) -> None:
        """End the run, if it has begun: what was measured is of two servers."""
        if self._run is not None:
            self._run.stop("guard", REPLICAS_CHANGED)
