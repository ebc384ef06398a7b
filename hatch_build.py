"""Hatchling's hook: wheel and sdist contain the commit that they are built from, for `kneewatch --version`.

The commit is that of the checkout, or KNEEWATCH_COMMIT where there is no .git (deploy/Dockerfile). A wheel that is
built from an sdist takes over the sdist's.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FILE = "kneewatch/commit.txt"
_COMMIT = r"[0-9a-f]{7,40}(-dirty)?"


class CommitHook(BuildHookInterface[Any]):
    """Adds `kneewatch/commit.txt` to the archive; none where no commit is known."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file, outside the checkout."""
        self._folder = tempfile.TemporaryDirectory()
        if version == "editable" or Path(self.root, _FILE).exists():
            return
        commit = os.environ.get("KNEEWATCH_COMMIT") or _of_checkout(self.root)
        if re.fullmatch(_COMMIT, commit):
            file = Path(self._folder.name, "commit.txt")
            file.write_text(f"{commit}\n")
            build_data["force_include"][str(file)] = _FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the file again."""
        self._folder.cleanup()


def _of_checkout(root: str) -> str:
    """Return the commit of a checkout, marked if files differ from it; nothing if it is none."""
    if not Path(root, ".git").exists():
        return ""  # else git would take the commit of a repository around it
    ask = ["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False).stdout.strip()  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
