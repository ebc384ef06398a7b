"""`kneewatch trace`: foreign traces and logs to Kneewatch's own, without text."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def trace(
    file: Annotated[Path, typer.Argument(help="The trace to read, in any of the formats of `ramp --trace`.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write it to this file in Kneewatch's format.")
    ] = None,
) -> None:
    """Describe a recorded trace, and write it as times, lengths and common beginnings, without any text.

    Exit status: 0 done, 2 could not read or write it.
    """
    from probe.load.trace_file import read_trace, trace_lines
    from probe.report.files import write_file
    from probe.report.trace_text import trace_words

    found = read_trace(file, "FILE")
    if out is not None:
        write_file(out, "".join(trace_lines(found)), "-o")
    sys.stdout.write(f"{trace_words(found)}\n")
