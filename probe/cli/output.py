"""What commands print besides results: error lines, JSON, and the names of written files."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from probe.core.errors import KneewatchError

NAME = "kneewatch"


def print_error(error: KneewatchError, about: str = "") -> None:
    for line in str(error).splitlines():
        typer.echo(f"{NAME}: {about}{line}", err=True)


def print_written(files: Sequence[Path]) -> None:
    for file in files:
        typer.echo(f"wrote {file}")


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
