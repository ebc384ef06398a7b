"""The inputs that fuzzing has found for each parser of foreign bytes, again."""

import pytest
from fuzz.fuzz_parsers import CORPUS, MAX_BYTES, PARSERS, inputs

NAMES = [
    "stream", "metrics", "gpus", "http_sd", "file_sd", "prometheus", "kubernetes", "authorization",
    "command_line", "startup_flags", "request_times",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_kept_input_is_a_value_or_an_expected_error(name: str) -> None:
    kept = inputs(name)
    assert kept
    assert all(len(data) <= MAX_BYTES for data in kept)
    for data in kept:
        try:
            PARSERS[name](data)
        except BaseException as error:
            error.add_note(f"with {data!r}")
            raise


def test_each_parser_has_a_corpus_and_each_corpus_a_parser() -> None:
    assert [*PARSERS] == NAMES
    assert {path.stem for path in CORPUS.iterdir()} == PARSERS.keys()
