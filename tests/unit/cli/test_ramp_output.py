"""Where `kneewatch ramp` writes its result as JSON."""

from pathlib import Path

import pytest

from probe.cli.ramp import address_and_file, json_output
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
        (None, ["result.json"], False, "unexpected argument result.json; ramp takes a URL and options"),
        (None, ["result.json", "b"], True, "unexpected argument b"),
        (FILE, [], True, "--json, -o: expected one of them"),
    ],
)
def test_what_is_neither_is_one_line(out: Path | None, extra: list[str], *, as_json: bool, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        json_output(out, extra, as_json=as_json)


def test_the_file_of_json_is_told_from_the_url_in_any_order() -> None:
    url, file = "http://localhost:8000", "result.json"
    assert address_and_file([url, file], as_json=True) == (url, [file])
    assert address_and_file([file, url], as_json=True) == (url, [file])
    assert address_and_file([None], as_json=True) == (None, [])
    assert address_and_file([file], as_json=True) == (None, [file])
    # Without --json there is no file, and a wrong address is said to be one.
    assert address_and_file(["localhost"], as_json=False) == ("localhost", [])


@pytest.mark.parametrize("word", ["localhost", "localhost:8000", "gpu-1:8000/v1", "[::1]:8000", "localhost/v1"])
def test_an_address_without_http_is_no_file(word: str) -> None:
    """It would be written, and the load go to the server of a variable."""
    with pytest.raises(ConfigError, match="is it a server"):
        address_and_file([word], as_json=True)
