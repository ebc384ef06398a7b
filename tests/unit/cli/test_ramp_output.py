"""Where `kneewatch ramp` writes its result as JSON."""

from pathlib import Path

import pytest

from probe.cli.ramp import json_output
from probe.core.errors import ConfigError
from probe.report.files import STDOUT

FILE = Path("result.json")


@pytest.mark.parametrize(
    ("out", "extra", "as_json", "written"),
    [
        (None, [], False, None),
        (FILE, [], False, FILE),
        (STDOUT, [], False, STDOUT),
        (None, [], True, STDOUT),
        (None, ["result.json"], True, FILE),  # as it was before -o
        (None, ["-"], True, STDOUT),
    ],
)
def test_the_result_is_printed_or_written(
    out: Path | None, extra: list[str], *, as_json: bool, written: Path | None
) -> None:
    assert json_output(out, extra, as_json=as_json) == written


@pytest.mark.parametrize(
    ("out", "extra", "as_json", "words"),
    [
        (None, ["result.json"], False, "unexpected argument result.json; ramp takes options only"),
        (None, ["result.json", "b"], True, "unexpected argument b"),
        (FILE, [], True, "--json, -o: expected one of them"),
    ],
)
def test_what_is_neither_is_one_line(out: Path | None, extra: list[str], *, as_json: bool, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        json_output(out, extra, as_json=as_json)
