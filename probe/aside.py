"""Seconds of arithmetic in a process of its own: the event loop that stamps canaries shares no interpreter with it, and
what its libraries take of memory (numpy and scipy: 70 MB) goes with it.

In: the name of a function and what it takes; out: what it returns. `python -m probe.aside` is the other side: it reads
one pickled call from its standard input and writes the pickled answer to its standard output. Both ends are ours.
"""

import asyncio
import importlib
import os
import pickle
import sys
from typing import Any

from probe.errors import KneewatchError
from probe.words import one_line

_NICE = 10  # measuring goes first
_SECONDS = 300.0


class AsideError(KneewatchError):
    """The other process failed, with what it said last."""


async def aside(name: str, *args: object) -> Any:  # noqa: ANN401 - whatever that function returns
    """What the function of that name ("package.module:function") returns, which is never imported here.

    Raises AsideError where the process fails or takes five minutes.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "probe.aside"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            answer, said = await process.communicate(pickle.dumps((name, args)))
    except TimeoutError:
        raise AsideError(f"{name} took longer than {_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = said.decode("utf-8", "replace").splitlines() or [f"exit status {process.returncode}"]
        raise AsideError(f"{name}: {one_line(lines[-1])}")
    return pickle.loads(answer)  # noqa: S301 - from a process that we started


def main() -> None:
    """The other side."""
    os.nice(_NICE)
    name, args = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started us
    module, _, function = name.partition(":")
    sys.stdout.buffer.write(pickle.dumps(getattr(importlib.import_module(module), function)(*args)))


if __name__ == "__main__":
    main()
