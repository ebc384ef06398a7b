"""Seconds of arithmetic in a process of its own: the event loop that stamps canaries shares no interpreter with it, and
what its libraries take of memory (numpy and scipy: 70 MB) goes with it.

In: the name of a function and what it takes, or an object that stays there and is asked again and again; out: what it
returns. `python -m probe.runtime.helper_process` is the other side: it reads pickled questions from its standard
input and writes pickled answers to its standard output. Both ends are ours.
"""

import asyncio
import importlib
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Event, Lock, Timer
from typing import Any, Self

from probe.core.errors import KneewatchError
from probe.core.text import one_line

_NICE = 10  # measuring goes first
_SECONDS = 300.0
# What is asked of the other side: a function's result, to keep it there, or a method of what is kept.
_CALL, _KEEP, _ASK = "call", "keep", "ask"


class HelperError(KneewatchError):
    """The other process failed."""


class HelperProcess:
    """The other process; use it as a context, which ends it. Its methods wait for the answer: not for an event loop,
    but for a thread beside it. They raise AsideError where the process fails or takes five minutes.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "probe.runtime.helper_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )
        # Who is cancelled while a thread of his waits for an answer may ask from another one.
        self._one_question = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was still to be sent
                if pipe is not None:
                    pipe.close()

    def call(self, name: str, *args: object) -> Any:  # noqa: ANN401 - whatever that function returns
        """What the function of that name ("package.module:function") returns, which is never imported here."""
        return self._answer(_CALL, name, args)

    def keep(self, name: str, *args: object) -> None:
        """Keeps what that function returns on the other side, for `ask`."""
        self._answer(_KEEP, name, args)

    def ask(self, method: str, *args: object) -> Any:  # noqa: ANN401 - whatever that method returns
        """What the method of the object that is kept returns."""
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
                failed, answer = pickle.load(answers)  # noqa: S301 - from a process that we started
        except (EOFError, OSError):
            why = f"took longer than {_SECONDS:g} s" if late.is_set() else f"ended ({self._process.wait()})"
            raise HelperError(f"{name} {why}") from None
        except (pickle.PickleError, AttributeError, TypeError, ImportError) as error:
            self._process.kill()
            raise HelperError(f"{name}: {one_line(str(error))}") from None
        finally:
            timer.cancel()
        if failed:
            raise HelperError(f"{name}: {answer}")
        return answer


async def run_in_helper(name: str, *args: object) -> Any:  # noqa: ANN401 - whatever that function returns
    """What the function of that name returns, in a process for this one call. Raises AsideError."""
    with HelperProcess() as other:  # where we are cancelled, it ends, and with it the thread
        return await asyncio.to_thread(other.call, name, *args)


def main() -> None:
    """The other side: until ours has gone."""
    os.nice(_NICE)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library may print is no answer
    kept: object = None
    while True:
        try:
            what, name, args = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started us
        except EOFError:
            return
        try:
            found = (getattr(kept, name) if what == _ASK else _function(name))(*args)
            kept, found = (found, None) if what == _KEEP else (kept, found)
            answer = pickle.dumps((False, found))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side has to know
            answer = pickle.dumps((True, one_line(f"{type(error).__name__}: {error}")))
        answers.write(answer)
        answers.flush()


def _function(name: str) -> Any:  # noqa: ANN401
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main()
