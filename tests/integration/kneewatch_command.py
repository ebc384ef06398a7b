"""The installed command `kneewatch`, as a user runs it."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from process import CLIENT_CORE, Process, pinned

_SCRIPT = Path(sys.executable).with_name("kneewatch")
# Without an installation its module form, which is the same; `make test` always has the script.
# Where it says that it was itself too late to judge.
LATE = re.compile(r"client[_ ]bound|Kneewatch itself was up to")
COMMAND = [str(_SCRIPT)] if _SCRIPT.exists() else [sys.executable, "-m", "probe"]

# What long commands say of themselves every few seconds (report/progress.py): no error.
PROGRESS = re.compile(r"^(?!kneewatch: ).*: [0-9]+( of [0-9]+)? s\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended by itself."""

    status: int
    out: str
    err: str


def kneewatch(*arguments: str | Path, within_s: float = 120.0) -> Finished:
    """Run the command to its end, on the clients' core. Raises subprocess.TimeoutExpired."""
    command = pinned([*COMMAND, *map(str, arguments)], CLIENT_CORE)
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=within_s, stdin=subprocess.DEVNULL
    )
    return Finished(done.returncode, done.stdout, PROGRESS.sub("", done.stderr))


def measured(*arguments: str | Path, within_s: float = 120.0) -> Finished:
    """Run the command up to five times, until it is not client-bound: a busy machine stalls now and then."""
    for _ in range(5):
        done = kneewatch(*arguments, within_s=within_s)
        if not LATE.search(done.out + done.err):
            break
    return done


def start_kneewatch(*arguments: str | Path, log: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start the command as a process, on the clients' core. `env`: variables beside those of the test run."""
    return Process(pinned([*COMMAND, *map(str, arguments)], CLIENT_CORE), log, env=env)
