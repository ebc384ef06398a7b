"""What commands print besides results: error lines, JSON, and the names of written files; and the standard streams."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import typer

from probe.core.errors import KneewatchError

NAME = "kneewatch"


def print_error(error: KneewatchError, about: str = "") -> None:
    with suppress(OSError):  # the terminal has gone, or the disk behind it is full
        for line in str(error).splitlines():
            typer.echo(f"{NAME}: {about}{line}", err=True)


def open_closed_streams() -> None:
    """Open on /dev/null the standard streams that the caller has closed.

    Otherwise a socket or a file would get their descriptor, and be sent what is printed.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            _to_null(descriptor)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def discard_output() -> None:
    """Drop what standard output could not be sent. Python would try again at exit, and report the error."""
    _to_null(sys.stdout.fileno())


def _to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)


def print_written(files: Sequence[Path]) -> None:
    for file in files:
        typer.echo(f"wrote {file}")


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
