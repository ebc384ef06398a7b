"""Logs: JSON lines in a container, readable text on a terminal; always on standard error, and without secrets.

What other libraries log and what nobody caught is in the same form, a line each. A reader of standard error that does
not read loses lines, and holds up nothing.

KNEEWATCH_LOG_LEVEL and KNEEWATCH_LOG_FORMAT choose otherwise, for this process and those that it starts.
"""

import io
import logging
import os
import select
import stat
import sys
import threading
import time
from contextlib import suppress
from traceback import extract_tb, format_exception
from types import TracebackType
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict

from probe.core.redactor import SECRETS
from probe.core.text import one_line

LEVEL, FORMAT = "KNEEWATCH_LOG_LEVEL", "KNEEWATCH_LOG_FORMAT"
# A pipe or socket that can be written to at all takes this much at once (PIPE_BUF).
_AT_ONCE = 4096
_AGAIN_S, _MOST_TOLD = 60.0, 256
_LONGEST = 64 * 1024  # of a value in a line; a traceback has a few KB


class LogOutput(io.TextIOBase):
    """Standard error that neither fails nor waits.

    A full disk and a reader that has gone lose lines, and so does a pipe that is full because nobody reads it.
    `lost` counts them. The stream itself stays blocking: other processes may write to it, too.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lost = 0
        self._stream, self._lock = stream, threading.Lock()
        self._is_cut = False  # the last line has no end
        self._file = _descriptor(stream)
        self._has_end = self._file is None or stat.S_ISREG(os.fstat(self._file).st_mode)

    def write(self, text: str) -> int:
        """Write a line with its end, or as much of it as there is room for."""
        with self._lock:
            if self._file is None:
                with suppress(OSError, ValueError):
                    self._stream.write(text)
            else:
                self._write(f"\n{text}" if self._is_cut else text, self._file)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def is_ready(self) -> bool:
        """Return whether a line can be written now."""
        return self._file is None or self._has_end or _has_room(self._file)

    def _write(self, text: str, file: int) -> None:
        rest = memoryview(text.encode("utf-8", "backslashreplace"))
        length = len(rest)
        try:
            while rest and (self._has_end or _has_room(file)):
                rest = rest[os.write(file, rest[:_AT_ONCE]) :]
        except OSError:
            pass
        if rest:
            self.lost += 1
        if len(rest) < length:
            self._is_cut = bool(rest)


def _descriptor(stream: TextIO) -> int | None:
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError):  # closed, or an object of a test
        return None


def _has_room(file: int) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(0))


def _printable(_: object, __: str, entry: EventDict) -> EventDict:
    """Escape what a terminal would obey, and indent further lines: a server's words may be in any text."""
    for key, value in entry.items():
        if isinstance(value, str):
            lines = ("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in value.split("\n"))
            entry[key] = "\n    ".join(["", *lines] if key == "exception" else lines).removeprefix("\n")
    return entry


def _without_secrets(_: object, __: str, entry: EventDict) -> EventDict:
    """Hide secrets in all values."""
    return {key: _hidden(value) for key, value in entry.items()}


def _hidden(value: object) -> object:
    if isinstance(value, dict):
        return {key: _hidden(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hidden(inner) for inner in value]
    return value if isinstance(value, int | float | None) else SECRETS.hide_text(str(value)[:_LONGEST])


class _OtherLogs(logging.Handler):
    """Takes what other libraries log, such as asyncio's word on an exception that nobody has retrieved.

    It is a line each, and the same one is told once a minute: a failed connection may be tried twice a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[tuple[str, ...], float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's message that does not fit its values
            message = str(record.msg)
        words = one_line(message.partition("\n")[0])  # asyncio adds the objects, with their addresses in memory
        error = record.exc_info[1] if record.exc_info else None
        detail = "" if error is None else error_words(error)
        now_s, line = time.monotonic(), (record.name, words, detail)
        if now_s - self._told_s.get(line, -_AGAIN_S) < _AGAIN_S:
            return
        if len(self._told_s) >= _MOST_TOLD:
            self._told_s.clear()
        self._told_s[line] = now_s
        level = logging.WARNING if isinstance(error, OSError) else record.levelno  # a connection that broke
        structlog.get_logger().log(level, words, logger=record.name, **({"detail": detail} if detail else {}))


def error_words(error: BaseException) -> str:
    """Return an exception in a line, with the place where it was raised."""
    words = f"{type(error).__name__}: {error}".removesuffix(": ")
    last = extract_tb(error.__traceback__)[-1:]
    return one_line(words) + "".join(f" ({os.path.basename(each.filename)}:{each.lineno})" for each in last)  # noqa: PTH119


def configure_logs(*, quiet: bool = False) -> LogOutput:
    """Configure the logs of the process, and return where they go. `quiet`: warnings and errors only, unless a level is
    chosen.
    """
    level = os.environ.get(LEVEL) or ("warning" if quiet else "info")
    has_colors = sys.stderr.isatty()
    is_text = os.environ.get(FORMAT) == "text" or (os.environ.get(FORMAT) != "json" and has_colors)
    # A plain traceback: the pretty one shows the values of local variables, among them keys.
    readable = structlog.dev.ConsoleRenderer(colors=has_colors, exception_formatter=structlog.dev.plain_traceback)
    output = LogOutput(sys.stderr)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _without_secrets,
            *([_printable, readable] if is_text else [structlog.processors.JSONRenderer()]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", output)),
    )
    logging.basicConfig(handlers=[_OtherLogs()], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable
    return output


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what ends a command as Python does, without secrets."""
    sys.stderr.write(SECRETS.hide_text("".join(format_exception(kind, error, trace))))


def _uncaught_in_thread(args: Any) -> None:  # noqa: ANN401 - of threading, a tuple of its own
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread is not None else ""
        structlog.get_logger().error("a thread broke", thread=name, exc_info=args.exc_value)


def _unraisable(args: Any) -> None:  # noqa: ANN401 - of sys, a tuple of its own
    if args.exc_value is not None:
        structlog.get_logger().error(args.err_msg or "exception ignored", detail=error_words(args.exc_value))
