"""The wheel in an empty environment, beside another distribution that has a package named `probe`."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe import __version__

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))
PIPX = "pipx==1.18.4"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    build = [
        UV,
        "build",
        "--quiet",
        "--wheel",
        "--python",
        sys.executable,
        "--out-dir",
        str(folder / "dist"),
        str(ROOT),
    ]
    subprocess.run(build, check=True, timeout=400)
    (made,) = (folder / "dist").glob("*.whl")
    return made


def test_without_a_compiler_it_is_for_any_machine_and_says_so(tmp_path: Path) -> None:
    build = [UV, "build", "--wheel", "--python", sys.executable, "--out-dir", str(tmp_path), str(ROOT)]
    done = subprocess.run(
        build, env=os.environ | {"CC": "no-such-compiler"}, capture_output=True, text=True, timeout=200, check=True
    )
    assert "simulator: interpreted" in done.stdout + done.stderr
    (made,) = tmp_path.glob("*.whl")
    assert made.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(made).namelist() if name.endswith(".so")]


@pytest.fixture(scope="module")
def site(wheel: Path, folder: Path) -> Path:
    """Return the site-packages of an environment with a foreign `probe` and `exporters`, and with the wheel."""
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, str(folder / "env")], check=True, timeout=60)
    (packages,) = (folder / "env/lib").glob("python3.*/site-packages")
    for name in ("probe", "exporters"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("IS_FOREIGN = True\n")
    install = [UV, "pip", "install", "--quiet", "--python", str(folder / "env/bin/python"), str(wheel)]
    subprocess.run([*install, "--constraint", str(ROOT / "constraints.txt")], check=True, timeout=300)
    return packages


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """Return a working directory with a module that has one of our names."""
    (tmp_path / "probe.py").write_text("raise SystemExit('the probe.py of the working directory was run')\n")
    return tmp_path


def run(site: Path, cwd: Path, *command: str, path: str = "") -> str:
    """Run a program of the environment and return what it prints."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = outside | ({"PYTHONPATH": path} if path else {})
    done = subprocess.run(
        [str(site.parents[2] / "bin" / command[0]), *command[1:]],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_one_name_in_its_environment(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert sorted(top for top in tops if not top.endswith(".dist-info")) == ["kneewatch"]


def test_other_packages_of_its_names_are_undisturbed(site: Path, tmp_path: Path) -> None:
    code = """import kneewatch, probe, exporters; assert probe.IS_FOREIGN and exporters.IS_FOREIGN
try: import dashboards
except ModuleNotFoundError: print("ok")"""
    assert run(site, tmp_path, "python", "-c", code) == "ok\n"


@pytest.mark.parametrize("command", [("kneewatch",), ("python", "-m", "kneewatch")])
def test_it_runs_as_a_command_and_as_a_module(site: Path, workplace: Path, command: tuple[str, ...]) -> None:
    told = run(site, workplace, *command, "--version")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert told.startswith(f"kneewatch {__version__}")
    assert not head or f"({head[:12]}" in told, "the commit of the build"
    assert told.endswith("simulator: compiled\n"), "there is a compiler, and Python.h"
    assert '"$defs"' in run(site, workplace, *command, "config", "schema")


@pytest.fixture
def server(site: Path, workplace: Path) -> Iterator[str]:
    command = [str(site.parents[2] / "bin/kneewatch"), "sim", "--profile", "tiny", "--port", "0"]
    with subprocess.Popen(command, cwd=workplace, stdout=subprocess.PIPE, text=True) as sim:
        assert sim.stdout is not None
        yield sim.stdout.readline().split()[-1]
        sim.terminate()


def test_uvx_examines_a_server_with_it(wheel: Path, workplace: Path, server: str) -> None:
    """In an environment that is thrown away."""
    run_once = [UV, "tool", "run", "--quiet", "--python", sys.executable, "--from", str(wheel)]
    doctor = ["kneewatch", "doctor", "--base-url", server, "--seconds", "15"]
    done = subprocess.run([*run_once, *doctor], cwd=workplace, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Healthy:" in done.stdout


def test_pipx_installs_it(wheel: Path, workplace: Path, server: str, tmp_path: Path) -> None:
    homes = {f"PIPX_{name}": str(tmp_path / name.lower()) for name in ("HOME", "BIN_DIR", "MAN_DIR")}
    install = [UV, "tool", "run", "--quiet", PIPX, "install", "--python", sys.executable, str(wheel)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | homes
    done = subprocess.run(install, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check = [str(tmp_path / "bin_dir/kneewatch"), "check", "--base-url", server]
    done = subprocess.run(
        check, cwd=workplace, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_helper_and_worker_processes_find_the_packages(site: Path, workplace: Path, server: str) -> None:
    levels = "--workers 2 --concurrency 8 --step-seconds 5 --output-tokens 32 --confirm-seconds 0"
    ramp = ("ramp", "--base-url", server, *levels.split())
    assert "Capacity:" in run(site, workplace, "kneewatch", *ramp)
    code = """import kneewatch; kneewatch.use_packages()
from probe.runtime.helper_process import HelperProcess
with HelperProcess() as helper: print(helper.call("probe.core.text:one_line", "found"))"""
    assert run(site, workplace, "python", "-P", "-c", code) == "found\n"


def test_the_demo_runs(site: Path, workplace: Path) -> None:
    assert "A mock vLLM server" in run(site, workplace, "kneewatch", "demo", "--seconds", "5", "--port", "0")


def test_a_ray_node_can_import_the_actor(site: Path, tmp_path: Path) -> None:
    """Ray pickles its class by its name, and imports that in a process which has not begun as ours."""
    code = """import sys; from kneewatch.ray_relay import WorkerRelay; import pickle; assert "ray" not in sys.modules
from probe.load.ray_driver import WorkerRelay as sent; assert sent is WorkerRelay
print(pickle.dumps(sent).hex())"""
    pickled = run(site, tmp_path, "python", "-c", code).strip()
    load = f"import pickle; print(pickle.loads(bytes.fromhex('{pickled}')).__name__)"
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import probe.load.worker'], check=True)"
    assert run(site, tmp_path, "python", "-c", f"{load}; {start}") == "WorkerRelay\n"


def test_vllm_loads_the_plugin_and_nothing_else(site: Path, tmp_path: Path) -> None:
    loggers = tmp_path / "vllm/v1/metrics/loggers.py"
    loggers.parent.mkdir(parents=True)
    loggers.write_text("class StatLoggerBase: pass\n")
    code = """import sys; from importlib.metadata import entry_points; before = list(sys.path)
(point,) = entry_points(group="vllm.stat_logger_plugins"); print(point.load().__name__)
assert sys.path == before and not {"probe", "exporters"} & sys.modules.keys()"""
    assert run(site, tmp_path, "python", "-c", code, path=str(tmp_path)) == "StepStatLogger\n"


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_debian_package_has_it_with_paths_of_the_machine_that_installs_it(wheel: Path, tmp_path: Path) -> None:
    quick = os.environ | {"DPKG_DEB_COMPRESSOR_TYPE": "none"}
    subprocess.run([ROOT / "deploy/debian/build.sh", UV, wheel, tmp_path], check=True, timeout=300, env=quick)
    (package,) = tmp_path.glob("kneewatch_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "root"], check=True, timeout=60)
    home = tmp_path / "root/opt/kneewatch"
    assert [file.name for file in (home / "bin").iterdir() if not file.is_symlink()] == ["kneewatch"]
    assert (home / "bin/kneewatch").read_text().startswith("#!/opt/kneewatch/bin/python")
    texts = [file for file in home.rglob("*") if file.is_file() and file.suffix in {"", ".cfg", ".json", ".py"}]
    assert not [file for file in texts if "/tmp/tmp." in file.read_text(errors="replace")], "where it was built"  # noqa: S108
    assert (tmp_path / "root/etc/kneewatch/kneewatch.yml").stat().st_mode & 0o777 == 0o640
    told = subprocess.run(
        [home / "bin/python", "-m", "kneewatch", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout.startswith(f"kneewatch {__version__}")
