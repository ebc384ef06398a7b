"""Settings of the process: its file descriptors, and what keeps the event loop responsive."""

import gc
import resource
import sys


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors to the most that privileges allow.

    The usual soft limit, 1024, is low for the sake of programs that call select(2), which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS refuses "unlimited"; a sandbox may refuse any change
            return


# Allocations between two garbage collections. With Python's default of 700, a metrics page of two hundred targets
# causes a hundred collections, and every tenth scans the whole heap.
_GC_THRESHOLD = 10_000
# How long a thread that renders a page may keep the event loop waiting. With Python's default of 5 ms, a token's time
# stamp could be that late.
_SWITCH_S = 0.0005


def tune_interpreter() -> None:
    """Keep garbage collections and other threads from blocking the event loop for long. Call when all is set up."""
    # Objects that exist now live as long as the process: exempt them from collection, which blocks the loop.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    sys.setswitchinterval(_SWITCH_S)
