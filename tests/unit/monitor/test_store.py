"""The history of results: whole, bounded, there after a restart; and unusable files are said at the start."""

import asyncio
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from example_records import WALL_S, no_knee, result, step

from probe.capacity.trend.fingerprint import capacity_sample
from probe.core.errors import ConfigError
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import UserLoad
from probe.monitor import store as store_module
from probe.monitor.store import Store
from probe.report.result_json import dumps

KEPT = 2200


@contextmanager
def _store(path: Path | None = None) -> Iterator[Store]:
    store = Store(path)
    try:
        yield store
    finally:
        store.close()


def test_a_result_is_there_again_after_a_restart_exactly_as_it_was(tmp_path: Path) -> None:
    kept = result(steps=(step(4), step(8, reason="cut_short")), stopped=Stopped("guard", "queue"))
    with _store(tmp_path / "kneewatch.db") as store:
        store.add(kept)
    with _store(tmp_path / "kneewatch.db") as store:
        assert store.get(kept.id) == kept
        assert store.latest() == [kept]
        assert store.latest_knees("a") == [kept]


def test_without_a_path_nothing_is_written_and_stores_are_apart() -> None:
    with _store() as one, _store() as two:
        one.add(result())
        assert two.latest() == []


def test_results_come_newest_first_of_one_target_or_of_all() -> None:
    with _store() as store:
        for i, target in enumerate(["a", "b", "a", "b"]):
            store.add(result(result_id=str(i), target=target, started_s=WALL_S + (i * 7) % 4))
        newest_first = [r.id for r in store.latest()]
        assert newest_first == ["1", "2", "3", "0"]
        assert [r.id for r in store.latest("b")] == ["1", "3"]
        assert [r.id for r in store.latest(limit=2)] == ["1", "2"]
        assert store.latest("nobody") == []


@pytest.mark.fault(
    "SE22",
    "SQL in the ID of a run",
    area="Security",
    users_see="404",
    stays="-",
)
def test_an_unknown_id_is_none_and_no_sql() -> None:
    with _store() as store:
        store.add(result())
        assert store.get("nope") is None
        assert store.get("' OR '1'='1") is None
        assert store.latest("a' --") == []


def test_the_last_knee_is_the_newest_result_that_found_one() -> None:
    with _store() as store:
        assert store.latest_knees("a") == []
        store.add(result(result_id="old", started_s=WALL_S))
        store.add(result(result_id="knee", started_s=WALL_S + 1))
        store.add(result(result_id="none", started_s=WALL_S + 2, capacity=no_knee()))
        store.add(result(result_id="other", target="b", started_s=WALL_S + 3))
        (found,) = store.latest_knees("a")
        assert found.id == "knee"


def test_a_forecast_does_not_hide_what_was_measured_before_it() -> None:
    forecast = Capacity(mode="forecast", requests_per_second=20.0)
    verified = Capacity(mode="verified", requests_per_second=18.0)
    with _store() as store:
        store.add(result(result_id="empirical", started_s=WALL_S))
        store.add(result(result_id="verified", started_s=WALL_S + 1, capacity=verified))
        store.add(result(result_id="old forecast", started_s=WALL_S + 2, capacity=forecast))
        store.add(result(result_id="forecast", started_s=WALL_S + 3, capacity=forecast))
        assert [found.id for found in store.latest_knees("a")] == ["verified", "forecast"]
        bounded = Capacity(mode="forecast", requests_per_second=6.0, lower=5.0, upper=7.0)
        store.add(result(result_id="bounded", started_s=WALL_S + 4, capacity=bounded))
        none_held = step(4, broken=("ttft",))
        none_held = replace(none_held, users=UserLoad(requests_per_second=0.0))
        store.add(result(result_id="none held", started_s=WALL_S + 5, capacity=no_knee(), steps=(none_held,)))
        assert [found.id for found in store.latest_knees("a")] == ["verified", "forecast", "bounded", "none held"]


@pytest.mark.fault(
    "ME10",
    "Years of results",
    area="Memory",
    users_see="the newest 2,200 of each target",
    stays="the store is bounded",
)
def test_the_history_of_a_target_is_bounded_and_another_target_keeps_its_own() -> None:
    with _store() as store:
        store.add(result(result_id="b", target="b", started_s=1.0))
        text = dumps(result())
        rows = [(f"r{i}", "a", WALL_S + i, text) for i in range(KEPT + 50)]
        store._db.executemany("INSERT INTO results VALUES (?, ?, ?, ?)", rows)
        store.add(result(result_id="newest", started_s=WALL_S + 10**6))
        (count,) = store._db.execute("SELECT count(*) FROM results WHERE target = 'a'").fetchone()
        assert count == KEPT
        assert store.get("newest") is not None
        assert store.get("r0") is None
        assert store.get("b") is not None


@pytest.mark.parametrize("content", [b"this is not a database, but it is long enough to be one" * 20, b"\x7fELF" * 999])
@pytest.mark.fault(
    "DI3",
    "The store's path is another file",
    area="Disk",
    users_see="one line, exit 2",
    stays="the file is left alone",
)
def test_a_file_that_is_no_store_is_a_configuration_error_and_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        Store(path)
    (line,) = str(raised.value).splitlines()
    assert line.startswith("store.path: ")
    assert str(path) in line
    assert path.read_bytes() == content


@pytest.mark.parametrize("path", ["missing/kneewatch.db", "."])
@pytest.mark.fault(
    "DI5",
    "The store's folder is missing, or its path is a folder",
    area="Disk",
    users_see="one line",
    stays="-",
)
def test_a_place_that_cannot_hold_a_store_is_a_configuration_error(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.path"):
        Store(tmp_path / path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_store_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    with _store(path) as store:
        store.add(result())
    path.chmod(0o444)
    with pytest.raises(ConfigError, match=r"store\.path"):
        Store(path)


@pytest.mark.fault(
    "DI4",
    "The store's path is the database of another program",
    area="Disk",
    users_see="one line, exit 2",
    stays="-",
)
def test_the_database_of_another_program_is_a_configuration_error(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE results (what TEXT)")
        other.commit()
    with pytest.raises(ConfigError, match=r"store\.path"):
        Store(path)


@pytest.mark.parametrize("text", ["{}", "not json", '{"schema": "kneewatch.result/99"}'])
@pytest.mark.fault(
    "DI6",
    "A row of the store that cannot be read",
    area="Disk",
    users_see="it is left out",
    stays="the other results",
)
def test_a_row_that_cannot_be_read_hides_itself_alone(tmp_path: Path, text: str) -> None:
    """A row of another version, say: the monitor has to start, and its pages have to show the rest."""
    with _store(tmp_path / "kneewatch.db") as store:
        store.add(result(result_id="good", started_s=WALL_S))
        store._db.execute("INSERT INTO results VALUES ('odd', 'a', ?, ?)", (WALL_S + 1, text))
        assert [r.id for r in store.latest()] == ["good"]
        (found,) = store.latest_knees("a")
        assert found.id == "good"
        assert store.get("odd") is None


@pytest.mark.parametrize("tokens", ['"text"', "12e456", "{}", "[1]", "null", "-5"])
@pytest.mark.fault("DI7b")
def test_tokens_that_no_run_can_have_spent_are_left_out(tmp_path: Path, tokens: str) -> None:
    with _store(tmp_path / "kneewatch.db") as store:
        store.add(result(result_id="good", started_s=WALL_S))
        odd = f'{{"cost": {{"tokens": {tokens}}}}}'
        store._db.execute("INSERT INTO results VALUES ('odd', 'a', ?, ?)", (WALL_S + 1, odd))
        assert store.tokens_since("a", 0.0) == 57_600


def test_tokens_of_runs_are_summed_from_a_time_on(tmp_path: Path) -> None:
    """It outlives a restart, and a row of another version is no reason to spend more."""
    path = tmp_path / "kneewatch.db"
    with _store(path) as store:
        assert store.tokens_since("a", 0.0) == 0
        for i in range(4):
            store.add(result(result_id=str(i), started_s=WALL_S + i))
        store.add(result(result_id="b", target="b"))
        store.add(result(result_id="none", started_s=WALL_S + 9, capacity=no_knee()))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE results SET result = '{' WHERE id = '3'")
        db.execute("UPDATE results SET result = json_remove(result, '$.context') WHERE id = '2'")
    with _store(path) as store:
        assert store.tokens_since("a", WALL_S + 1) == 3 * 57_600
        assert store.tokens_since("a", WALL_S + 100) == 0
        assert store.tokens_since("b", 0.0) == 57_600


def test_figures_come_oldest_first_without_runs_that_found_none() -> None:
    with _store() as store:
        store.add(result(result_id="2", started_s=WALL_S + 2))
        store.add(result(result_id="1", started_s=WALL_S + 1, steps=[step()] * 3))
        store.add(result(result_id="none", started_s=WALL_S + 3, capacity=no_knee()))
        store.add(result(result_id="other", target="b"))
        for i, text in enumerate(["{}", "not json", "3"]):
            store._db.execute("INSERT INTO results VALUES (?, 'a', ?, ?)", (f"odd{i}", WALL_S, text))
        assert [found.run for found in store.capacity_samples("a")] == ["1", "2"]
        assert store.capacity_samples("a")[0] == capacity_sample(result(result_id="1", started_s=WALL_S + 1))
        assert store.capacity_samples("nobody") == []


# A file that is damaged, locked or full.


def _filled(path: Path) -> None:
    """Write results until the file has some pages."""
    with _store(path) as store:
        for i in range(40):
            store.add(result(result_id=str(i), started_s=WALL_S + i, steps=(step(4), step(8))))


@pytest.mark.parametrize("damage", ["zeroed page", "random header", "torn", "zeros"])
@pytest.mark.fault("C13")
def test_a_store_whose_head_is_lost_is_set_aside_too(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "kneewatch.db"
    _filled(path)
    whole = path.read_bytes()
    content = {
        "zeroed page": bytes(4096) + whole[4096:],
        "random header": random.Random(5).randbytes(100) + whole[100:],
        "torn": whole[:10],
        "zeros": bytes(len(whole)),
    }[damage]
    path.write_bytes(content)
    with _store(path) as store:
        assert store.latest() == []
    (kept,) = tmp_path.glob("kneewatch.db.damaged-*")
    assert kept.read_bytes() == content


def test_a_store_of_a_later_version_is_read_and_written_by_name(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    _filled(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE results ADD COLUMN later TEXT")
        db.execute("ALTER TABLE forecast_errors ADD COLUMN later TEXT")
    with _store(path) as store:
        store.add(result(result_id="new", started_s=WALL_S + 99))
    with _store(path) as store:
        assert store.latest(limit=1)[0].id == "new"


def test_a_copy_that_was_made_while_it_was_written_can_be_put_in_its_place(tmp_path: Path) -> None:
    """As docs/operations.md says."""
    path = tmp_path / "kneewatch.db"
    with _store(path) as store:
        store.add(result(result_id="kept"))
        store.save()
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            source.backup(copy)
        store.add(result(result_id="later"))
    for each in tmp_path.glob("kneewatch.db*"):
        each.unlink()
    (tmp_path / "copy.db").rename(path)
    with _store(path) as store:
        assert [each.id for each in store.latest()] == ["kept"]


@pytest.mark.fault("C13")
def test_a_damaged_store_is_set_aside_and_a_new_one_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kneewatch.db"
    _filled(path)
    content = bytearray(path.read_bytes())
    content[4096:-4096] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(content)
    with _store(path) as store:
        assert store.latest() == []
        store.add(result(result_id="new"))
    with _store(path) as store:
        assert [each.id for each in store.latest()] == ["new"]
    (kept,) = tmp_path.glob("kneewatch.db.damaged-*")
    assert kept.read_bytes() == content
    (line,) = capsys.readouterr().out.splitlines()
    assert "the store is damaged and was set aside" in line
    assert str(kept) in line


@pytest.mark.fault(
    "K04",
    "pages of the store are damaged while it is used",
    area="Disk",
    users_see="one log line; the pages show the results since; no scheduled run begins, as the tokens spent are "
    "unknown (`budget_spent`)",
    stays="everything else",
)
def test_a_store_that_is_damaged_while_it_is_used_hides_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kneewatch.db"
    _filled(path)
    with _store(path) as store:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (path.stat().st_size - 4096))
        store._db.execute("PRAGMA shrink_memory")  # of the pages that it has read
        store.add(result(result_id="new"))
        assert [each.id for each in store.latest()] == ["new"]
        assert store.get("3") is None
        assert store.tokens_since("a", 0.0) is None, "unknown, and not none"
    assert capsys.readouterr().out.count("stored results cannot be read") == 1


@pytest.mark.fault(
    "K06",
    "the monitor was killed while it wrote to the store",
    area="Disk",
    users_see="-",
    stays="results up to the kill, from the write-ahead log",
)
def test_the_write_ahead_log_of_a_killed_process_is_read(tmp_path: Path) -> None:
    path, killed = tmp_path / "kneewatch.db", tmp_path / "killed.db"
    with _store(path) as store:
        store.add(result(result_id="last"))
        store.save()
        for end in ("", "-wal"):
            Path(f"{killed}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    assert Path(f"{killed}-wal").stat().st_size > 0
    with _store(killed) as store:
        assert [each.id for each in store.latest()] == ["last"]


@pytest.mark.fault("C19")
def test_a_result_is_read_before_it_is_written_and_written_once_the_file_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kneewatch.db"
    monkeypatch.setattr(store_module, "_AGAIN_S", 0.01)
    monkeypatch.setattr(store_module, "_WAIT_S", 0.01)

    async def run(store: Store) -> None:
        saving = asyncio.create_task(store.keep_saving())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            store.add(result(result_id="new", target="b"))
            async with asyncio.timeout(10):
                while not failed:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert [each.id for each in store.latest("b")] == ["new"]
            assert store.get("new") is not None
            assert store.tokens_since("b", 0.0) == 57_600
            assert len(store.capacity_samples("b")) == 1
            other.execute("ROLLBACK")
            async with asyncio.timeout(10):
                while not other.execute("SELECT id FROM results WHERE target = 'b'").fetchall():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)

    _filled(path)
    failed: list[str] = []
    store = Store(path, failed.append)
    asyncio.run(run(store))
    assert failed == ["b"]
    assert store.tokens_since("b", 0.0) == 57_600, "counted once"
    store.close()


def test_results_that_wait_for_the_file_keep_their_steps_only_while_they_are_few(tmp_path: Path) -> None:
    with _store(tmp_path / "kneewatch.db") as store:
        for i in range(60):
            store.add(result(result_id=str(i), started_s=WALL_S + i, steps=(step(4),)))
        assert [bool(each.steps) for each in store.latest(limit=60)] == [True] * 50 + [False] * 10


@pytest.mark.fault(
    "DI110",
    "A store is copied while it is in use, and put back after the volume was lost, as operations.md says",
    area="Disk",
    users_see="-",
    stays="all results up to the copy",
)
def test_the_documented_copy_of_a_store_in_use_is_whole_and_can_be_put_back(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/operations.md"
    (command,) = re.findall(r"'(import sqlite3; .*)'\n", page.read_text())
    path, copy = tmp_path / "kneewatch.db", tmp_path / "copy.db"
    command = command.replace("/var/lib/kneewatch/kneewatch.db", str(path)).replace("/tmp/copy.db", str(copy))  # noqa: S108
    with _store(path) as store:
        store.add(result(result_id="before"))
    with _store(path) as store:
        subprocess.run([sys.executable, "-c", command], check=True, timeout=60)
        store.add(result(result_id="after", started_s=WALL_S + 1))
    path.unlink()
    path.write_bytes(copy.read_bytes())
    for rest in ("-wal", "-shm"):
        path.with_name(path.name + rest).unlink(missing_ok=True)
    with _store(path) as store:
        assert [kept.id for kept in store.latest()] == ["before"]
        store.add(result(result_id="later", started_s=WALL_S + 2))
        assert [kept.id for kept in store.latest()] == ["later", "before"]
