"""A disk that is full: nothing that was measured is lost, and a person reads one line."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import yaml
from kneewatch_command import COMMAND, Finished, kneewatch
from monitor import Monitor, Sim, answers
from process import Process, eventually

from probe.runtime.kept_program import free_port

_QUICK = (
    "--concurrency",
    "1",
    "--requests-per-step",
    "2",
    "--confirm-seconds",
    "0",
    "--prompt-tokens",
    "8",
    "--output-tokens",
    "3",
)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a filesystem of 64 KiB in which one page is left."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        with (folder / "filler").open("wb") as filler:
            filler.write(b"x" * 15 * 4096)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("option", ["-o", "--html"])
@pytest.mark.fault(
    "C18",
    "the disk is full when `ramp -o` or `--html` writes",
    area="Disk",
    users_see="the result on standard output, then one line with file and reason; status 2",
    stays="the result; the file that has room",
)
def test_a_ramp_on_a_full_disk_prints_its_result(tiny: Sim, full_disk: Path, option: str) -> None:
    file = full_disk / "result"
    done = kneewatch("ramp", "--base-url", tiny.base_url, *_QUICK, option, file)
    assert "Cost:" in done.out
    _is_one_line(done, f"{option} {file}: cannot be written (No space left on device)")


@pytest.mark.fault("C18")
def test_a_ramp_writes_the_file_that_has_room(tiny: Sim, full_disk: Path, tmp_path: Path) -> None:
    full, fits = full_disk / "result.html", tmp_path / "result.json"
    done = kneewatch("ramp", "--base-url", tiny.base_url, *_QUICK, "--html", full, "-o", fits)
    _is_one_line(done, f"--html {full}: cannot be written")
    assert json.loads(fits.read_text())["schema"] == "kneewatch.result/1"


@pytest.mark.parametrize("command", ["alerts", "dashboards"])
@pytest.mark.fault(
    "DI18",
    "the disk is full when `alerts` or `dashboards` write",
    area="Disk",
    users_see="one line with directory and reason; status 2",
    stays="the files of before",
)
def test_generated_files_on_a_full_disk(full_disk: Path, tmp_path: Path, command: str) -> None:
    config = tmp_path / "kneewatch.yml"
    config.write_text("targets: [{name: a, base_url: http://127.0.0.1:9}]\n")
    _is_one_line(kneewatch(command, "-c", config, "-o", full_disk), f"-o {full_disk}: cannot be written (No space left")
    assert [each.name for each in full_disk.iterdir()] == ["filler"]


@pytest.mark.parametrize(
    "arguments", [("config", "schema"), ("sim", "--list"), ("--help",), ("check",), ("alerts", "-o", "-")]
)
@pytest.mark.fault(
    "K02",
    "standard output is a file on a full disk",
    area="Disk",
    users_see="one line; status 2",
    stays="-",
)
def test_standard_output_on_a_full_disk(tiny: Sim, arguments: tuple[str, ...]) -> None:
    more = ("--base-url", tiny.base_url) if arguments == ("check",) else ()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments, *more], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    _is_one_line(Finished(done.returncode, "", done.stderr), "standard output cannot be written (No space left")


# The store.


@pytest.mark.fault(
    "C13",
    "pages of the store are damaged when the monitor starts",
    area="Disk",
    users_see="one log line: the file was renamed to `...damaged-TIME`, and a new one is used",
    stays="canaries, scrapes, pages; the damaged file, to be repaired by hand",
)
def test_a_monitor_starts_with_a_damaged_store(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE canaries (filler TEXT)")
        db.executemany("INSERT INTO canaries VALUES (?)", [("x" * 1000,)] * 40)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with Monitor(_config("http://127.0.0.1:9", path), tmp_path) as monitor:
        assert 'target="a"' in monitor.page("/metrics")
    assert "Traceback" not in monitor.output
    assert monitor.output.count("the store is damaged and was set aside") == 1
    assert len([*tmp_path.glob("kneewatch.db.damaged-*")]) == 1
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM results").fetchone() == (0,)


@pytest.mark.parametrize("kind", ["notes", "another program's", "missing folder", "read-only folder", "full disk"])
@pytest.mark.fault(
    "K05",
    "`store.path` is another program's file, its directory is missing or read-only, or the disk is full at the start",
    area="Disk",
    users_see="one line; status 2",
    stays="the file",
)
def test_a_monitor_without_a_place_for_its_store_says_so_in_one_line(
    tmp_path: Path, full_disk: Path, kind: str
) -> None:
    path = tmp_path / "kneewatch.db"
    if kind == "notes":
        path.write_text("These are my notes. " * 400)
    elif kind == "another program's":
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE results (what TEXT)")
    else:
        folder = {"missing folder": tmp_path / "missing", "read-only folder": Path("/proc"), "full disk": full_disk}
        path = folder[kind] / "kneewatch.db"
    config = tmp_path / "kneewatch.yml"
    config.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", **_config("http://127.0.0.1:9", path)}))
    _is_one_line(kneewatch("run", "-c", config), f"store.path: {path} cannot be used as a store (")


# Ends after a capacity run, which begins at once, and SIGTERM.
_MONITOR = """
import asyncio, sys
from pathlib import Path
from probe.config.config_file import load_config
from probe.core.clock import SystemClock
from probe.monitor.app import App
from probe.runtime.logs import configure_logs

configure_logs()
app = App(load_config(Path(sys.argv[1])), SystemClock())

async def main():
    monitor = asyncio.create_task(app.run(asyncio.Event()))
    while not app.statuses()[0].up:
        await asyncio.sleep(0.02)
    app.measure_capacity_in("a", 0.0)
    await monitor

asyncio.run(main())
"""


@pytest.mark.alone
@pytest.mark.fault(
    "C19",
    "another process locks the store when a run ends",
    area="Disk",
    users_see="one log line; the result on pages and series",
    stays="pages and canaries on time; the result is written within a minute of the file being free",
)
def test_a_store_that_another_process_locks_holds_up_nothing_and_loses_no_result(tiny: Sim, tmp_path: Path) -> None:
    path, port = tmp_path / "kneewatch.db", free_port()
    config = tmp_path / "kneewatch.yml"
    capacity = {"mode": "verify", "concurrency": [1], "step": "1s", "schedule": {"cron": "0 0 29 2 *"}}
    config.write_text(yaml.safe_dump({"listen": f"127.0.0.1:{port}", **_config(tiny.base_url, path, capacity)}))
    process = Process([sys.executable, "-c", _MONITOR, str(config)], tmp_path / "run.log")
    try:
        eventually(path.exists, within_s=30, what="a store")
        process.ready(lambda: answers(f"http://127.0.0.1:{port}/-/healthy"), within_s=30)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            slowest_s = 0.0
            end = time.monotonic() + 60
            while "results cannot be stored" not in process.tail():
                assert time.monotonic() < end, process.tail()
                before = time.monotonic()
                assert answers(f"http://127.0.0.1:{port}/-/healthy")
                slowest_s = max(slowest_s, time.monotonic() - before)
                time.sleep(0.05)
            assert slowest_s < 2.5, "SQLite waits 5 s for a lock"
            (run,) = httpx.get(f"http://127.0.0.1:{port}/api/v1/runs", trust_env=False).json()
            other.execute("ROLLBACK")
        assert process.terminate() == 0
    finally:
        process.kill()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT id FROM results").fetchall() == [(run["id"],)]


def _config(url: str, store: Path, capacity: dict[str, object] | None = None) -> dict[str, object]:
    canary = {"every": "1s", "workload": "short"}
    target = {"name": "a", "base_url": url, "canary": canary, **({"capacity": capacity} if capacity else {})}
    workloads = {"short": {"prompt_tokens": 8, "output_tokens": 3}}
    return {"store": {"path": str(store)}, "workloads": workloads, "targets": [target]}


def _is_one_line(done: Finished, words: str) -> None:
    assert done.status == 2, done.err
    assert done.err.startswith(f"kneewatch: {words}"), done.err
    assert len(done.err.splitlines()) == 1, done.err
