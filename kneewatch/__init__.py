"""The only name that an installed Kneewatch has in its environment.

The wheel has the packages of the repository (probe, exporters, dashboards, alerts) in `kneewatch/_packages`, where they
cannot collide with others of these names (docs/adr/0022). In a checkout they are next to this folder, already on the
path.
"""

import os
import signal
import sys
from pathlib import Path

_PACKAGES = Path(__file__).parent / "_packages"


def use_packages(folder: Path = _PACKAGES) -> None:
    """Make the packages importable, in this process and in those that it starts. Do nothing in a checkout."""
    if not folder.is_dir():
        return
    name = str(folder)
    sys.path[:] = [name, *(each for each in sys.path if each != name)]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([name, *(each for each in inherited if each not in {"", name})])


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["run"]:  # it reloads at SIGHUP, and does not end by one that comes before it can
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    use_packages()
    try:
        from probe.cli.main import main as run  # noqa: PLC0415 - importable only now
    except KeyboardInterrupt:
        sys.exit(130)
    run()
