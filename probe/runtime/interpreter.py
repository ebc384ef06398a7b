"""Settings of the Python interpreter that keep the event loop responsive."""

import gc
import sys

# Allocations between two garbage collections. With Python's default of 700, a metrics page of two hundred targets
# causes a hundred collections, every tenth of which scans the whole heap.
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
