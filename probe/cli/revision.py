"""The commit that this Kneewatch was made from."""

import subprocess
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_GIT_S = 5.0


def commit() -> str | None:
    """Return the commit that was noted at the build (hatch_build.py), else that of the checkout, else None.

    `-dirty` follows it where files of the checkout differ.
    """
    with suppress(OSError, ModuleNotFoundError):
        return files("kneewatch").joinpath("commit.txt").read_text(encoding="ascii").strip()
    if not (_ROOT / ".git").exists():
        return None
    ask = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_GIT_S, check=False)  # noqa: S603
        return done.stdout.strip() or None
    return None
