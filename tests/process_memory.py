"""The memory that a program and its children have taken."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 2**20


def peak(pid: int) -> int:
    """Return the most memory that a process has had resident, in bytes; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def children(pid: int) -> list[int]:
    """Return the process and all below it."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in found for one in children(int(child)))]


@contextmanager
def peaks_below() -> Iterator[dict[int, int]]:
    """Collect the peak of each process that this one starts, by process id. Complete when the block ends."""
    found: dict[int, int] = {}
    before = set(children(os.getpid()))
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            for pid in set(children(os.getpid())) - before:
                found[pid] = max(found.get(pid, 0), peak(pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
