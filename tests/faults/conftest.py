"""Fixtures of the fault tests. They start the programs and servers of tests/integration."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from both_loops import run
from shared_servers import no_hang, sim, tiny

__all__ = ["no_hang", "run", "sim", "tiny"]
