"""Watches from a thread whether the event loop goes on, and says what held it where it stood.

The loop beats; the thread looks twice a second for when it last did. After a second without a beat it tells two causes
apart by processor time: `held`, where the loop's thread computed or waited in one call (a lock, a hung disk), or
another thread kept Python's lock (the GIL) from it; and `starved`, where the process got no processor: a busy machine,
a container's limit, a process or machine that was stopped.

A call that keeps the GIL keeps this thread waiting, too. It runs as soon as that call has ended, while the loop's
thread is still in the function that made it: Python hands the GIL over there.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from probe.core.text import one_line

Cause = Literal["held", "starved"]
CAUSES: tuple[Cause, ...] = ("held", "starved")
STOOD_S = 1.0
_BEAT_S, _LOOK_S, _MARGIN_S = 0.25, 0.5, 0.01
_HALF, _QUARTER = 0.5, 0.25
_FRAMES, _LONGEST = 5, 400
_OF_THREAD = 6  # CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED, of Linux' include/linux/posix-timers.h


@dataclass(frozen=True, slots=True)
class Use:
    """What the process has used until a moment, in seconds."""

    at_s: float
    computed_s: float  # by the loop's thread
    waited_s: float  # by it, for a processor; 0 if unknown
    process_s: float  # computed by all threads


@dataclass(frozen=True, slots=True)
class Stall:
    """A loop that stood for some seconds. `by`: the functions, innermost first, or words."""

    cause: Cause
    seconds: float
    by: str
    has_ended: bool = True


def judged(before: Use, now: Use, own_late_s: float, stack: str, others: Callable[[], str]) -> Stall:
    """Return what held a loop that last ran at `before`.

    `own_late_s`: by how much the watching thread itself was woken late. `stack`: where the loop's thread is; `others`:
    where the busiest of the other threads is.
    """
    seconds = now.at_s - before.at_s
    computed, used = now.computed_s - before.computed_s, now.process_s - before.process_s
    where = f", the loop's part of it in {stack}" if computed > _QUARTER * seconds else ""
    starved = Stall("starved", seconds, f"the process got {used:.1f} s of a processor in {seconds:.1f} s{where}")
    if now.waited_s - before.waited_s > _HALF * seconds:
        return starved
    if computed > _HALF * seconds:
        return Stall("held", seconds, stack)
    if own_late_s > _HALF * seconds:  # no thread of Python ran but, at most, one
        return Stall("held", seconds, others()) if used - computed > _HALF * seconds else starved
    return Stall("held", seconds, f"{stack}, which waits")


class LoopWatch:
    """The watch of the running event loop, for a context."""

    def __init__(self, tell: Callable[[Stall], None], *, told_after_s: float = 5.0) -> None:
        """Take `tell`: called in the watch's thread once for each time that the loop has stood for a second, when it
        goes on, or after `told_after_s` if it still stands.
        """
        self._tell, self._told_after_s = tell, told_after_s
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.current_thread()
        self._last = _used(self._loop_thread)  # at the last beat
        self._next: asyncio.TimerHandle | None = None
        self._others_s: dict[threading.Thread, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._next is not None:
            self._next.cancel()

    def _beat(self) -> None:
        self._last = _used(self._loop_thread)
        self._next = self._loop.call_later(_BEAT_S, self._beat)

    def _watch(self) -> None:
        stood: tuple[Use, Stall] | None = None  # the last beat before the loop stood, and why it did
        told, wait_s, looked_s = None, STOOD_S, time.monotonic()
        while not self._ended.wait(wait_s):
            last, now = self._last, _used(self._loop_thread)
            own_late_s, looked_s = now.at_s - looked_s - wait_s, now.at_s
            if stood is not None and last is not stood[0]:  # it goes on
                self._told(replace(stood[1], seconds=last.at_s - stood[0].at_s))
                stood = None
            age_s = now.at_s - last.at_s
            if stood is None and last is not told and age_s >= STOOD_S:
                stood = last, judged(last, now, own_late_s, self._stack(self._loop_thread), self._busiest)
            if stood is not None and age_s >= self._told_after_s:
                self._told(replace(stood[1], seconds=age_s, has_ended=False))
                told, stood = last, None
            self._note_others()
            wait_s = _LOOK_S if age_s >= STOOD_S else STOOD_S - age_s + _MARGIN_S

    def _told(self, stall: Stall) -> None:
        with suppress(Exception):  # whatever it is: the watch goes on
            self._tell(stall)

    def _note_others(self) -> None:
        self._others_s = {each: _computed_s(each) for each in threading.enumerate()}

    def _busiest(self) -> str:
        """Return which other thread has computed most since the last look, and where it is."""
        own = (self._loop_thread, self._thread)
        used = {each: _computed_s(each) - self._others_s.get(each, 0) for each in threading.enumerate()}
        busiest = max((each for each in used if each not in own), key=used.__getitem__, default=None)
        return (
            f"the thread {busiest.name}: {self._stack(busiest)}"
            if busiest is not None
            else "another thread, which has ended"
        )

    @staticmethod
    def _stack(thread: threading.Thread) -> str:
        """Return where a thread is, innermost first."""
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - documented
        places: list[str] = []
        while frame is not None and len(places) < _FRAMES:
            places.append(f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")
            frame = frame.f_back
        return one_line(" in ".join(places) or "unknown", _LONGEST)


def _used(thread: threading.Thread) -> Use:
    """Return what a thread and its process have used until now. Takes some 20 us."""
    return Use(time.monotonic(), _computed_s(thread), _waited_s(thread), time.process_time())


def _computed_s(thread: threading.Thread) -> float:
    """Return the processor time of a thread: by Linux' clock of its number, which may have ended meanwhile."""
    try:
        return time.clock_gettime(~(thread.native_id or 0) << 3 | _OF_THREAD)
    except OSError:
        return 0.0


def _waited_s(thread: threading.Thread) -> float:
    """Return for how long a thread was ready to run without a processor; 0 if unknown. See core/clock.py."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_bytes().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
