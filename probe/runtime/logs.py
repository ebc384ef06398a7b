"""Logs: JSON lines in a container, readable on a terminal; always on standard error."""

import io
import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog


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


def configure_logs(*, quiet: bool = False) -> None:
    """Configure structlog for the process. `quiet`: warnings and errors only."""
    terminal = sys.stderr.isatty()
    # A plain traceback: the pretty one shows the values of local variables, among them keys.
    readable = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    render = readable if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if terminal else [structlog.processors.format_exc_info]),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING if quiet else logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
