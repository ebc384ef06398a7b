"""Whatever ends a tuning, a server that goes on is left with the setting that was chosen so far."""

import asyncio
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from example_records import result
from threaded_server import threaded_server

from probe.cli import tune_run
from probe.cli.tune_knobs import knobs_of
from probe.cli.tune_run import TuneRun
from probe.cli.tuned_server import AppliedServer, Readiness
from probe.cli.tuning import settings_of
from probe.core.errors import ConfigError
from probe.core.result import Capacity, CapacityResult
from probe.report.progress import ProgressView
from probe.report.tune_record import TuneRecord
from probe.runtime import event_loop

pytestmark = pytest.mark.slow
_KNOBS = knobs_of(["max_num_seqs=32,8"])


class _Silent:
    """A view that shows nothing."""

    console = property(lambda self: self)

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _tune(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, measured: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Tune a server whose settings a script applies. Return the values that it was given, in order."""
    apply, applied, out = folder / "apply.sh", folder / "applied", folder / "out"
    apply.write_text(f'#!/bin/sh\n{script}\necho "$1" >> {applied}\n')
    apply.chmod(0o755)
    out.mkdir()

    async def measure(_: object, __: object, ___: object, settings: dict[str, str]) -> CapacityResult:
        measured(settings["max_num_seqs"])
        rps = 10.0
        return result(capacity=Capacity("verified", rps, lower=9.9, upper=10.1, output_tokens_per_second=1.0))

    monkeypatch.setattr(tune_run, "_measured", measure)
    record = TuneRecord(datetime.now(UTC), "kneewatch tune", 0.05, settings_of(_KNOBS))
    with threaded_server(lambda request, _: request.answer(200, b"", "text/plain")) as url:
        server = AppliedServer([[str(apply), "{value}"]], Readiness(f"{url}/health", 10.0))
        run = TuneRun(_KNOBS, server, cast(Any, None), cast(Any, None), cast(Any, None), out, measure_all=True)
        try:
            event_loop.run(tune_run._tuned(run, record, cast(ProgressView, _Silent())))
        except ConfigError:
            assert not out.exists()
    return applied.read_text().split()


@pytest.mark.fault(
    "DI31",
    "The folder of a tuning's record goes, or its disk is full",
    area="Disk",
    users_see="one line, exit 2, and which setting the server has",
    stays="the server has the base again",
)
def test_a_record_that_cannot_be_written_leaves_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def disk_goes(value: str) -> None:
        if value == "8":
            shutil.rmtree(tmp_path / "out")

    assert _tune(tmp_path, monkeypatch, "", disk_goes) == ["32", "8", "32"]
    assert "The server has max_num_seqs=32." in capsys.readouterr().err


@pytest.mark.fault(
    "SI40",
    "Ctrl-C, once or again and again, while `tune --apply` restores the server",
    area="Signals",
    users_see="the restore ends first",
    stays="the server has the base again",
)
def test_no_signal_interrupts_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(value: str) -> None:
        if value == "8":
            for after_s in (0.05, 0.5, 0.6):
                threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT)).start()
            raise asyncio.CancelledError  # as the first one does

    slow_restore = f'[ "$1" = 32 ] && [ -s {tmp_path}/applied ] && sleep 1'
    assert _tune(tmp_path, monkeypatch, slow_restore, interrupt) == ["32", "8", "32"]
    said = capsys.readouterr().err
    assert said.count("Setting the server to max_num_seqs=32, for at most 20 s; nothing interrupts that") > 1
    assert said.splitlines()[-1] == "The server has max_num_seqs=32."


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ZeroDivisionError(), SystemExit(1)])
@pytest.mark.fault(
    "SG4",
    "A full disk, a bug, or a reader of the output that has gone ends `tune --apply`",
    area="Signals",
    users_see="which setting the server has; the record has what ended it",
    stays="the server has the base again",
)
def test_whatever_ends_it_the_server_has_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    def broken(value: str) -> None:
        if value == "8":
            raise error

    with pytest.raises(type(error)):
        _tune(tmp_path, monkeypatch, "", broken)
    assert (tmp_path / "applied").read_text().split() == ["32", "8", "32"]
    assert "The server has max_num_seqs=32." in capsys.readouterr().err
    assert type(error).__name__ in json.loads((tmp_path / "out" / "decision.json").read_text())["ended_by"]


def test_a_restore_that_fails_is_said_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(value: str) -> None:
        if value == "8":
            (tmp_path / "apply.sh").write_text("#!/bin/sh\nexit 3\n")
            raise asyncio.CancelledError

    assert _tune(tmp_path, monkeypatch, "", broken) == ["32", "8"]
    said = capsys.readouterr().err
    assert "ended with status 3" in said
    assert "the server may have another setting than max_num_seqs=32; apply that yourself" in said
