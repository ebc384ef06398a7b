"""A helper process for seconds of computation: it does not block the event loop that stamps canaries, and the memory of
its libraries (numpy) is freed when it ends.

In: the name of a function and its arguments, or of a method of an object kept in the process. Out: the result. The
process runs `python -m probe.runtime.helper_process`, which reads pickled requests from its standard input and writes
pickled answers to its standard output. Both ends are Kneewatch's own.
"""

import asyncio
import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from threading import Event, Lock, Thread, Timer
from time import sleep
from typing import Any, Protocol, Self

from probe.core.errors import KneewatchError
from probe.core.text import one_line

_NICE = 10  # measurements have priority
_SECONDS = 300.0
_LATE_S = 10  # after that time the process ends itself, also if nobody is there to end it
_LOOK_S = 0.5
# Requests: call a function, keep its result in the process, or call a method of the kept object.
_CALL, _KEEP, _ASK = "call", "keep", "ask"


class HelperError(KneewatchError):
    """The helper process failed."""


class HelperProcess:
    """A helper process, which ends with its context. Its methods block until the answer is there: call them from a
    thread, not from the event loop. They raise HelperError if the process fails or takes five minutes.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "probe.runtime.helper_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )
        self.cpu_s = 0.0  # that it had taken at its last answer
        # A cancelled caller may ask again from another thread while its first one still waits.
        self._one_question = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # unsent data
                if pipe is not None:
                    pipe.close()

    def call(self, name: str, *args: object) -> Any:  # noqa: ANN401 - whatever that function returns
        """Call the function "package.module:function", which is not imported here, and return its result."""
        return self._answer(_CALL, name, args)

    def call_and_keep(self, name: str, *args: object) -> None:
        """Call the function and keep its result in the helper process, for `ask`."""
        self._answer(_KEEP, name, args)

    def ask(self, method: str, *args: object) -> Any:  # noqa: ANN401 - whatever that method returns
        """Call a method of the kept object and return its result."""
        return self._answer(_ASK, method, args)

    def _answer(self, *question: object) -> Any:  # noqa: ANN401
        name, late = question[1], Event()
        calls, answers = self._process.stdin, self._process.stdout
        assert calls is not None  # noqa: S101 - it was opened
        assert answers is not None  # noqa: S101

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = Timer(_SECONDS, give_up)
        timer.daemon = True
        timer.start()
        try:
            with self._one_question:
                calls.write(pickle.dumps(question))
                calls.flush()
                failed, answer, self.cpu_s = pickle.load(answers)  # noqa: S301 - from a process started here
        except (EOFError, OSError):
            why = f"took longer than {_SECONDS:g} s" if late.is_set() else _end_words(self._process.wait())
            raise HelperError(f"the helper process {why} (computing {name})") from None
        except (pickle.PickleError, AttributeError, TypeError, ImportError) as error:
            self._process.kill()
            raise HelperError(f"{name}: {one_line(str(error))}") from None
        finally:
            timer.cancel()
        if failed:
            raise HelperError(f"{name}: {answer}")
        return answer


def _end_words(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by signal {-status}; look for an out-of-memory kill in the machine's log"


class Compute(Protocol):
    """Calls a function, as `HelperProcess.call` does, for an event loop."""

    async def __call__(self, name: str, *args: object) -> Any: ...  # noqa: ANN401 - whatever that function returns


class KeptHelper:
    """A helper process that is started when there is something to compute, and kept for more until `close`.

    `cpu_s`: the CPU time of its processes; of one that was ended while it computed, the time that went by.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._process: HelperProcess | None = None

    async def compute(self, name: str, *args: object) -> Any:  # noqa: ANN401 - whatever that function returns
        """Call the function and return its result. Raise HelperError. One call at a time.

        The process ends if that fails, and if the caller is cancelled.
        """
        began_s = time.monotonic()
        process = self._process = self._process or HelperProcess()
        before_s = process.cpu_s
        try:
            found = await asyncio.to_thread(process.call, name, *args)
        except BaseException:  # a caller's end ends the process, and with it the thread
            self.cpu_s += time.monotonic() - began_s
            self.close()
            raise
        self.cpu_s += process.cpu_s - before_s
        return found

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                pass


async def run_in_helper(name: str, *args: object) -> Any:  # noqa: ANN401 - whatever that function returns
    """Call the function in a helper process of its own and return its result. Raise HelperError."""
    helper = KeptHelper()
    try:
        return await helper.compute(name, *args)
    finally:
        helper.close()


def _end_with(parent: int) -> None:
    """End this process when the one that started it has gone, also in the middle of a computation.

    PR_SET_PDEATHSIG would kill it when the thread that started it ends.
    """
    while os.getppid() == parent:
        sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Answer requests until the other end closes."""
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    os.nice(_NICE)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not mix with the answers
    kept: object = None
    while True:
        try:
            what, name, args = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent process
        except EOFError:
            return
        signal.alarm(int(_SECONDS) + _LATE_S)
        try:
            found = (getattr(kept, name) if what == _ASK else _function(name))(*args)
            kept, found = (found, None) if what == _KEEP else (kept, found)
            answer = pickle.dumps((False, found, time.process_time()))
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            answer = pickle.dumps((True, one_line(f"{type(error).__name__}: {error}"), time.process_time()))
        signal.alarm(0)
        answers.write(answer)
        answers.flush()


def _function(name: str) -> Any:  # noqa: ANN401
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main()
