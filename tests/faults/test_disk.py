"""A disk that is full: nothing that was measured is lost, and a person reads one line."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kneewatch_command import COMMAND, Finished, kneewatch
from monitor import Sim

_QUICK = ("--concurrency", "1", "--requests-per-step", "2", "--prompt-tokens", "8", "--output-tokens", "3")


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


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_ramp_on_a_full_disk_prints_its_result(tiny: Sim, full_disk: Path, option: str) -> None:
    file = full_disk / "result"
    done = kneewatch("ramp", "--base-url", tiny.base_url, *_QUICK, option, file)
    assert "Cost:" in done.out
    _is_one_line(done, f"{option} {file}: cannot be written (No space left on device)")


def test_a_ramp_writes_the_file_that_has_room(tiny: Sim, full_disk: Path, tmp_path: Path) -> None:
    full, fits = full_disk / "result.html", tmp_path / "result.json"
    done = kneewatch("ramp", "--base-url", tiny.base_url, *_QUICK, "--html", full, "--json", fits)
    _is_one_line(done, f"--html {full}: cannot be written")
    assert json.loads(fits.read_text())["schema"] == "kneewatch.result/1"


@pytest.mark.parametrize("command", ["alerts", "dashboards"])
def test_generated_files_on_a_full_disk(full_disk: Path, tmp_path: Path, command: str) -> None:
    config = tmp_path / "kneewatch.yml"
    config.write_text("targets: [{name: a, base_url: http://127.0.0.1:9}]\n")
    _is_one_line(kneewatch(command, "-c", config, "-o", full_disk), f"-o {full_disk}: cannot be written (No space left")


@pytest.mark.parametrize("arguments", [("config", "schema"), ("sim", "--list"), ("--help",), ("check",)])
def test_standard_output_on_a_full_disk(tiny: Sim, arguments: tuple[str, ...]) -> None:
    more = ("--base-url", tiny.base_url) if arguments == ("check",) else ()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments, *more], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    _is_one_line(Finished(done.returncode, "", done.stderr), "standard output cannot be written (No space left")


def _is_one_line(done: Finished, words: str) -> None:
    assert done.status == 2, done.err
    assert done.err.startswith(f"kneewatch: {words}"), done.err
    assert len(done.err.splitlines()) == 1, done.err
