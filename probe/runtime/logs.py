"""Logs: JSON lines in a container, readable text on a terminal; always on standard error.

KNEEWATCH_LOG_LEVEL and KNEEWATCH_LOG_FORMAT choose otherwise, for this process and those that it starts.
"""

import io
import logging
import os
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict

LEVEL, FORMAT = "KNEEWATCH_LOG_LEVEL", "KNEEWATCH_LOG_FORMAT"


class _Unfailing(io.TextIOBase):
    """Standard error without its errors: a full disk or a reader that has gone must not stop what is logged."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _printable(_: object, __: str, entry: EventDict) -> EventDict:
    """Escape what a terminal would obey, and indent further lines: a server's words may be in any text."""
    for key, value in entry.items():
        if isinstance(value, str):
            lines = ("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in value.split("\n"))
            entry[key] = "\n    ".join(["", *lines] if key == "exception" else lines).removeprefix("\n")
    return entry


def configure_logs(*, quiet: bool = False) -> None:
    """Configure structlog for the process. `quiet`: warnings and errors only, unless a level is chosen."""
    level = os.environ.get(LEVEL) or ("warning" if quiet else "info")
    has_colors = sys.stderr.isatty()
    is_text = os.environ.get(FORMAT) == "text" or (os.environ.get(FORMAT) != "json" and has_colors)
    # A plain traceback: the pretty one shows the values of local variables, among them keys.
    readable = structlog.dev.ConsoleRenderer(colors=has_colors, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([_printable, readable] if is_text else [structlog.processors.JSONRenderer()]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Unfailing(sys.stderr))),
    )
