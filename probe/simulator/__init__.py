"""vLLM's scheduler in virtual time.

The modules are Python, and may lie compiled in `compiled/` too (hatch_build.py), which is eight times as fast and
gives the same results to the last bit (docs/adr/0036). The compiled ones are used where they are of exactly these
sources, for this Python and machine; KNEEWATCH_SIMULATOR=interpreted leaves them alone.
"""

import os
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_SOURCES = Path(__file__).parent
_COMPILED = _SOURCES / "compiled"


def digest(sources: Path = _SOURCES) -> str:
    """Return a digest of the modules' sources."""
    found = sha256()
    for file in sorted(sources.glob("*.py")):
        found.update(b"%s %d\n" % (file.name.encode(), file.stat().st_size))
        found.update(file.read_bytes())
    return found.hexdigest()


def stamp(compiled: Path = _COMPILED) -> Path:
    """Return the file with the digest of the sources that were compiled for this Python and machine."""
    return compiled / f"sources{EXTENSION_SUFFIXES[0]}.sha256"


def _kind() -> str:
    """Return how the modules run."""
    try:
        is_compiled = os.environ.get("KNEEWATCH_SIMULATOR") != "interpreted" and stamp().read_text() == digest()
    except OSError:
        is_compiled = False
    return "compiled" if is_compiled else "interpreted"


KIND = _kind()
if KIND == "compiled":
    __path__.insert(0, str(_COMPILED))
