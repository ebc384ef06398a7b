"""How SIGINT (Ctrl-C), SIGTERM and SIGHUP end a command: at any moment, within two seconds, without a traceback.

    a signal --> EndedBySignal in the main thread; in an event loop, its command is cancelled, or does what it chose
    nothing of that after UNREAD_S --> what waits for a reader of the output is printed nowhere
    not ended after END_S more (PATIENT_S for what a command chose, if that has not begun) --> the process ends at once

SIGHUP stays ignored below nohup. Child processes end by themselves: helper_process.py, kept_program.py.
"""

import asyncio
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UNREAD_S, END_S, PATIENT_S = 0.4, 1.5, 10.0
_MISSED_S = 0.1


class EndedBySignal(BaseException):
    """A signal ends the command, whose exit status is `status`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.status = 128 + number


class _Ending:
    """The signals of this process. `act`: what they do in the event loop that runs; None: there is none."""

    def __init__(self) -> None:
        self.act: Callable[[], None] | None = None
        self.is_chosen = False  # what they do, by the command
        self._number: int | None = None  # the first one that came
        self._watch: threading.Timer | None = None

    @property
    def has_come(self) -> bool:
        return self._number is not None

    def come(self, number: int, _: object = None) -> None:
        """Handle a signal."""
        is_first = self._number is None
        self._number = self._number or number
        if self._watch is None:
            self._start(UNREAD_S, self._unread)
        if self.act is not None:
            self.act()
        elif is_first:
            raise EndedBySignal(number)

    def has_acted(self) -> None:
        """Leave the command the time that it takes."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def check(self) -> None:
        """Raise EndedBySignal if a signal came that the command has not acted on."""
        if self._number is not None and self._watch is not None:
            raise EndedBySignal(self._number)

    def forget(self) -> None:
        self.has_acted()
        self._number = None

    def _start(self, after_s: float, then: Callable[[], None]) -> None:
        self._watch = threading.Timer(after_s, then)
        self._watch.daemon = True
        self._watch.start()

    def _unread(self) -> None:
        """Send what nobody reads nowhere, and have a thread that waits for its reader try again."""
        self._start(PATIENT_S if self.is_chosen else END_S, self._end)
        _, writable, _ = select.select([], [1, 2], [], 0)
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in {1, 2} - set(writable):
            os.dup2(null, stream)
        os.close(null)
        for thread in threading.enumerate():
            if thread.ident is not None and thread is not threading.current_thread():
                with suppress(OSError):  # it has ended
                    signal.pthread_kill(thread.ident, self._number or signal.SIGTERM)

    def _end(self) -> None:
        os._exit(128 + (self._number or 0))


_ending = _Ending()


@contextmanager
def heeded() -> Iterator[None]:
    """Have signals end what the block does, by EndedBySignal. After it, they do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    is_outermost = _ending.come not in before.values()
    with ExitStack() as held:
        if is_outermost:
            held.enter_context(_none_missed())
        try:
            for number, handler in before.items():
                if number is not signal.SIGHUP or handler is not signal.SIG_IGN:
                    signal.signal(number, _ending.come)
            yield
        finally:
            held.close()  # before a signal would end the process
            for number, handler in before.items():
                signal.signal(number, handler)
            if is_outermost:
                _ending.forget()


@contextmanager
def _none_missed() -> Iterator[None]:
    """Send a signal again that came just before the main thread began to wait: Python's handler would never run."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    lock, is_over = threading.Lock(), threading.Event()

    def watch() -> None:
        while number := os.read(read, 1):
            is_over.wait(_MISSED_S)
            with lock:
                if number[0] in _SIGNALS and not is_over.is_set() and not _ending.has_come:
                    signal.pthread_kill(threading.main_thread().ident or 0, number[0])
        os.close(read)

    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            is_over.set()
        signal.set_wakeup_fd(before)
        os.close(write)


@contextmanager
def heeded_by_loop() -> Iterator[None]:
    """Have signals end the event loop that the block runs. Raises EndedBySignal, unless the command chose otherwise."""
    with heeded():
        try:
            yield
        except BaseException:
            _ending.check()
            raise
        finally:
            _ending.act, _ending.is_chosen = None, False
        _ending.check()


def cancel_on_signals() -> None:
    """Have signals cancel the running task. Call in an event loop of `heeded_by_loop`."""
    if threading.current_thread() is not threading.main_thread():
        return
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - within a coroutine there is one
    _ending.act = lambda: _call(loop, task.cancel)


@contextmanager
def acting_on_signals(act: Callable[[], None]) -> Iterator[None]:
    """Have signals do this in the running loop while the block lasts."""
    with heeded():
        before = _ending.act, _ending.is_chosen
        act_on_signals(act)
        try:
            yield
        finally:
            _ending.act, _ending.is_chosen = before


def act_on_signals(act: Callable[[], None]) -> None:
    """Have signals do this instead, from now on in the running loop; again for each one. It may take longer then."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()

    def acted() -> None:
        _ending.has_acted()
        act()

    _ending.act, _ending.is_chosen = lambda: _call(loop, acted), True


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(what)
