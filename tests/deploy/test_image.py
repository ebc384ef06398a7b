"""What makes the image small, without an image: on a made-up environment."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def script(deploy: Path) -> Path:
    return deploy / "image/slim.sh"


@pytest.mark.usefixtures("c_compiler")  # strip, of the binutils that come with it
def test_the_script_leaves_what_runs_and_takes_what_does_not(script: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=60)
    python = tmp_path / "env/bin/python"
    (site,) = (tmp_path / "env/lib").glob("python3.*/site-packages")
    kept = ["numpy/linalg/a.py", "numpy.libs/liba.so.1", "numpy/py.typed", "pygments/lexers/a.py", "probe/a.py"]
    gone = [
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
    untouchable = site / "numpy.libs/liba.so.1"
    untouchable.write_bytes(b"not for strip")
    done = subprocess.run([script, python], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    left = {str(file.relative_to(site)) for file in site.rglob("*") if file.is_file()}
    compiled = {name for name in left if name.endswith(".pyc")}
    assert left - compiled == set(kept)
    assert {Path(name).parts[0] for name in compiled} == {"numpy", "probe"}, "ours and theirs, but pygments' lexers"
    assert untouchable.read_bytes() == b"not for strip"
