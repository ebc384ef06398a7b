"""Hatchling's hook: what a build adds to the files of the repository. Also `make .venv`'s compiler of the simulator.

Wheel and sdist contain the commit that they are built from, for `kneewatch --version`. It is that of the checkout, or
KNEEWATCH_COMMIT where there is no .git (deploy/Dockerfile). A wheel that is built from an sdist takes over the sdist's.

A wheel contains the simulator compiled by mypyc beside its sources (docs/adr/0036), and is then for one Python and
machine, if there is a C compiler and Python's headers. Otherwise it is for all, and says so. KNEEWATCH_COMPILE: `no`
builds the wheel for all, `require` makes it an error that nothing can be compiled.

`python hatch_build.py` compiles for the checkout. What is compiled is kept in the user's cache, by its sources.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    BuildHookInterface = Any
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    except ImportError:  # run as a script

        class BuildHookInterface(list):
            """Stands for hatchling's."""


_FILE = "kneewatch/commit.txt"
_COMMIT = r"[0-9a-f]{7,40}(-dirty)?"
_SIMULATOR = "probe/simulator"
_IN_WHEEL = f"kneewatch/_packages/{_SIMULATOR}/compiled"
_LEFT_OUT = ("__init__", "cost", "traffic")  # dataclasses, which are pickled
_COMPILE = os.environ.get("KNEEWATCH_COMPILE", "")
_COMPILER = ("mypy==2.4.1", "setuptools>=77")
_COMPILE_S = 600


class CompileError(Exception):
    """The simulator cannot be compiled here."""


class BuildHook(BuildHookInterface[Any]):
    """Adds `kneewatch/commit.txt`, if a commit is known, and the compiled simulator."""

    def dependencies(self) -> list[str]:
        """Return what compiles, where anything can."""
        return [] if _why_not() else [*_COMPILER]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files, outside the checkout."""
        self._folder = tempfile.TemporaryDirectory()
        if version == "editable":
            return
        if self.target_name == "wheel":
            self._compile(build_data)
        if Path(self.root, _FILE).exists():
            return
        commit = os.environ.get("KNEEWATCH_COMMIT") or _of_checkout(self.root)
        if re.fullmatch(_COMMIT, commit):
            file = Path(self._folder.name, "commit.txt")
            file.write_text(f"{commit}\n")
            build_data["force_include"][str(file)] = _FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the files again."""
        self._folder.cleanup()

    def _compile(self, build_data: dict[str, Any]) -> None:
        try:
            found = compiled(Path(self.root))
        except CompileError as error:
            if _COMPILE == "require":
                raise
            self.app.display_warning(f"simulator: interpreted, and forecasts take six times as long: {error}")
            return
        build_data["force_include"] |= {str(file): f"{_IN_WHEEL}/{file.name}" for file in found.iterdir()}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compiled(root: Path) -> Path:
    """Return a folder with the simulator of these sources compiled, from the user's cache if it is there.

    CompileError where that cannot be done.
    """
    if (why := _why_not()) is not None:
        raise CompileError(why)
    sys.path.insert(0, str(root))
    from probe.simulator import digest, stamp  # noqa: PLC0415 - importable only now

    sources = digest(root / _SIMULATOR)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kneewatch")
    kept = cache / f"{sources[:16]}-{_COMPILER[0]}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not stamp(kept).exists():
        with tempfile.TemporaryDirectory() as folder:
            ask = [sys.executable, __file__, str(root), folder]
            done = subprocess.run(ask, capture_output=True, text=True, timeout=_COMPILE_S, check=False)  # noqa: S603
            if done.returncode:
                raise CompileError((done.stderr.strip() or done.stdout.strip() or "?").splitlines()[-1])
            made = Path(folder, "made", _SIMULATOR)
            stamp(made).write_text(sources)
            cache.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(dir=cache))
            shutil.copytree(made, beside, dirs_exist_ok=True)
            beside.chmod(0o755)
            shutil.rmtree(kept, ignore_errors=True)
            beside.rename(kept)
    return kept


def _why_not() -> str | None:
    """Return why nothing can be compiled here, or None."""
    if _COMPILE == "no":
        return "KNEEWATCH_COMPILE=no"
    if sys.implementation.name != "cpython":
        return "the Python is not CPython"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        return f"there is no C compiler ({compiler.split()[0]})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"there is no {sysconfig.get_path('include')}/Python.h (Debian: python3-dev)"
    return None


def _run_mypyc(root: Path, folder: Path) -> None:
    """Compile into `folder`/made. In a process of its own, which mypyc ends on errors."""
    from mypyc.build import mypycify  # noqa: PLC0415 - only where it compiles
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    for name in ("probe", "pyproject.toml"):  # nothing is written into the checkout, and no path of it into the result
        source = root / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    os.chdir(folder)
    files = [str(file.relative_to(folder)) for file in sorted((folder / _SIMULATOR).glob("*.py"))]
    wanted = [file for file in files if Path(file).stem not in _LEFT_OUT]
    modules = mypycify(
        ["--ignore-missing-imports", "--follow-imports=silent", *wanted],
        group_name=f"{_SIMULATOR.replace('/', '.')}.all",
        opt_level="2",
        debug_level="0",
        target_dir=str(folder / "c"),
    )
    command = build_ext(Distribution({"ext_modules": modules}))
    command.build_lib, command.build_temp = str(folder / "made"), str(folder / "temp")
    command.ensure_finalized()
    command.run()


def _of_checkout(root: str) -> str:
    """Return the commit of a checkout, marked if files differ from it; nothing if it is none."""
    if not Path(root, ".git").exists():
        return ""  # else git would take the commit of a repository around it
    ask = ["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False).stdout.strip()  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _compile_checkout() -> None:
    """Put the compiled simulator into the checkout, or say why not."""
    root = Path(__file__).resolve().parent
    place = root / _SIMULATOR / "compiled"
    try:
        found = compiled(root)
    except CompileError as error:
        if _COMPILE == "require":
            raise
        print(f"simulator: interpreted, as {error}")  # noqa: T201
        return
    place.mkdir(exist_ok=True)
    last = next(file.name for file in found.glob("*.sha256"))
    for name in (last, *(file.name for file in found.iterdir() if file.name != last)):
        (place / name).unlink(missing_ok=True)  # a process that runs keeps its own
    for file in sorted(found.iterdir(), key=lambda file: file.name == last):  # the stamp says that all are there
        shutil.copy(file, place / file.name)


if __name__ == "__main__":
    if sys.argv[1:]:
        _run_mypyc(*map(Path, sys.argv[1:]))
    else:
        _compile_checkout()
