"""Logs in both formats: one entry is one line, whatever a server says."""

import asyncio
import fcntl
import gc
import json
import logging
import os
import sys
import threading
from pathlib import Path

import pytest
import structlog

from probe.core.redactor import SECRETS
from probe.runtime.logs import LogOutput, configure_logs

HOSTILE = "bad\n2026-01-01 [error] forged \x1b[2J\x9b31m\u202e end"


def _logged(capsys: pytest.CaptureFixture[str], **values: object) -> str:
    configure_logs()
    structlog.get_logger().error("an event", **values)
    assert not sys.stderr.isatty()
    return capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.fault(
    "SE33",
    "Terminal escapes and line breaks in what is logged, tracebacks included, with `--log-format text`",
    area="Security",
    users_see="escaped, further lines indented; colours only on a terminal",
    stays="no forged entry, no obeyed escape",
)
def test_text_of_a_server_is_neither_obeyed_by_a_terminal_nor_taken_for_another_entry(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KNEEWATCH_LOG_FORMAT", form)
    for values in ({"detail": HOSTILE}, {"changed": [HOSTILE]}, {"exc_info": ValueError(HOSTILE)}):
        text = _logged(capsys, **values)
        assert "forged" in text
        assert text.replace("\n", "").isprintable(), "no escapes, and no colours where there is no terminal"
        first, *more = text.splitlines()
        assert "an event" in first
        assert all(line.startswith("    ") for line in more)
        if form == "json":
            assert json.loads(first)["event"] == "an event"
            assert more == []


@pytest.mark.fault(
    "SE52",
    "A secret in an exception, a traceback, a list, or what another library logs",
    area="Security",
    users_see="`(hidden)` in its place",
    stays="the rest of the line",
)
def test_no_value_of_a_line_has_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    SECRETS.add("sk-LOG-TOKEN-1234")
    words = "you sent sk-LOG-\nTOKEN-1234"
    for values in (
        {"detail": words},
        {"changed": [{"a": words}]},
        {"exc_info": ValueError(words)},
        {"of": Path(words)},
    ):
        text = _logged(capsys, **values)
        assert "(hidden)" in text
        assert "TOKEN" not in text
    logging.getLogger("httpx").warning("sent %s", words)
    assert json.loads(capsys.readouterr().err)["event"] == "sent you sent (hidden)"


@pytest.mark.fault(
    "SE53",
    "A failed TLS handshake or another exception that nobody retrieves; a warning of a library",
    area="Security",
    users_see="one JSON line, once a minute",
    stays="no traceback between the lines of the log",
)
def test_what_other_libraries_log_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()

    async def lose_twice() -> None:
        for _ in range(2):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(ConnectionError("certificate verify failed"))
            del future
            gc.collect()

    asyncio.run(lose_twice())
    logging.getLogger("a.library").error("%d of", "no number")
    lost, other = map(json.loads, capsys.readouterr().err.splitlines())
    assert lost["event"] == "Future exception was never retrieved"
    assert (lost["level"], lost["logger"]) == ("warning", "asyncio")
    assert lost["detail"] == "ConnectionError: certificate verify failed"
    assert (other["event"], other["level"]) == ("%d of", "error")


@pytest.mark.fault(
    "ST20",
    "Standard error is a pipe that nobody reads, and full",
    area="Starvation",
    users_see="`kneewatch_log_lines_lost_total`, and a line with their number once somebody reads again",
    stays="nothing waits; whole lines before and after",
)
def test_a_pipe_that_nobody_reads_loses_lines_and_holds_nobody() -> None:
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(reads, "rb", buffering=0) as reader, os.fdopen(writes, "w") as stream:
        output = LogOutput(stream)

        def write() -> None:
            for number in range(100):
                output.write(f"{number} {'x' * 198}\n")
            output.write(f"{'y' * 9000}\n")

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        writer.join(10)
        assert not writer.is_alive(), "it waits for a reader"
        assert not output.is_ready()
        written = reader.read(65536).decode().splitlines()
        assert output.lost == 101 - len(written)
        assert [line.split()[0] for line in written] == [str(number) for number in range(len(written))]
        assert output.is_ready()
        output.write(f"{'z' * 9000}\n")  # more than there is room for: its beginning is a line of its own
        reader.read(65536)
        output.write("whole\n")
        assert reader.read(65536).decode() == "\nwhole\n"


@pytest.mark.parametrize("gone", ["a full disk", "a reader that has gone"])
def test_a_line_that_cannot_be_written_is_counted(gone: str) -> None:
    if gone == "a full disk":
        stream = open("/dev/full", "w")  # noqa: SIM115, PTH123
    else:
        reads, writes = os.pipe()
        os.close(reads)
        stream = os.fdopen(writes, "w")
    output = LogOutput(stream)
    output.write("a line\n")
    assert output.lost == 1
    stream.close()
