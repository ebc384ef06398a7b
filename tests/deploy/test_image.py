"""What makes the image small, without an image: on a made-up environment, and on what Kneewatch imports."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def script(deploy: Path) -> Path:
    return deploy / "image/slim.sh"


@pytest.fixture(scope="module")
def deleted(script: Path) -> list[str]:
    """Return the import names of the packages that the script deletes."""
    (parts,) = re.findall(r"^for part in (.*?);", script.read_text().replace("\\\n", " "), flags=re.MULTILINE)
    return [part.replace("/", ".") for part in parts.split()]


def test_no_module_imports_a_deleted_package(deleted: list[str]) -> None:
    """Every module but those for vLLM's own process is imported, and the only use of scipy is made, while those
    packages cannot be found.
    """
    assert "scipy.stats" in deleted
    program = f"""
        import importlib, pkgutil, sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name in {deleted!r}:
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Absent())
        count = 0
        for top in ("probe", "exporters", "dashboards", "alerts"):
            package = importlib.import_module(top)
            for module in pkgutil.walk_packages(package.__path__, top + "."):
                if not module.name.endswith("__main__") and not module.name.startswith("exporters.vllm_plugin."):
                    importlib.import_module(module.name)
                    count += 1
        from scipy.optimize import least_squares
        for loss in ("linear", "soft_l1", "huber", "cauchy", "arctan"):
            fit = least_squares(lambda x: (x - 2.0) * [1.0, 3.0], [1.0, 0.5], bounds=(0, 9), loss=loss, x_scale="jac")
            assert abs(fit.x - 2).max() < 1e-3
        print(count)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.mark.usefixtures("c_compiler")  # strip, of the binutils that come with it
def test_the_script_leaves_what_runs_and_takes_what_does_not(script: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=60)
    python = tmp_path / "env/bin/python"
    (site,) = (tmp_path / "env/lib").glob("python3.*/site-packages")
    kept = ["scipy/optimize/a.py", "scipy.libs/liba.so.1", "numpy/py.typed", "pygments/lexers/a.py", "probe/a.py"]
    gone = [
        "scipy/stats/a.py",
        "numpy/tests/a.py",
        "numpy/x/tests/data/a.txt",
        "uvloop/a.pyx",
        "a.pyi",
        "lib/a.a",
        "a/a.h",
    ]
    for name in [*kept, *gone]:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("")
    untouchable = site / "scipy.libs/liba.so.1"
    untouchable.write_bytes(b"not for strip")
    done = subprocess.run([script, python], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    left = {str(file.relative_to(site)) for file in site.rglob("*") if file.is_file()}
    compiled = {name for name in left if name.endswith(".pyc")}
    assert left - compiled == set(kept)
    assert {Path(name).parts[0] for name in compiled} == {"scipy", "probe"}, "ours and theirs, but pygments' lexers"
    assert untouchable.read_bytes() == b"not for strip"
