"""Result files of `kneewatch ramp --json`, and of other benchmarks for `compare`, `table` and `roofline`.

A file of another program is recognised by its keys, and its reader makes a Measurement. Every ConfigError is one
line with the file and the fix.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from probe.capacity.trend.measurement import Measurement, of_result
from probe.core.errors import ConfigError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.result import CapacityResult
from probe.core.text import one_line
from probe.report import (
    aiperf_file,
    bench_file,
    bench_text,
    genai_perf_file,
    guidellm_file,
    inference_perf_file,
    llmperf_file,
)
from probe.report.result_json import loads

_SCHEMA = "kneewatch.result/1"
_EXPECTED = (
    "expected the file of `kneewatch ramp --json`, vllm bench serve, sglang.bench_serving, guidellm, aiperf, "
    "genai-perf, inference-perf or llmperf"
)
# vllm bench --save-detailed writes each latency: ten thousand requests of a thousand tokens.
_LIMITS = JsonLimits(max_bytes=256 * 2**20, max_values=20_000_000)
_MAX_LINES = 1000  # results that a benchmark has appended to one file
_LARGEST = 1e300
_SUFFIXES = (".json", ".jsonl")
_MAX_FILES = 1000  # of a folder

Documents = Sequence[Mapping[str, Any]]
# How a program's documents are recognised, and read as a measurement.
_READERS: tuple[tuple[Callable[[Documents], bool], Callable[[str, Documents], Measurement]], ...] = (
    (bench_file.is_bench, bench_file.measurement),
    (guidellm_file.is_guidellm, guidellm_file.measurement),
    (aiperf_file.is_aiperf, aiperf_file.measurement),
    (genai_perf_file.is_genai_perf, genai_perf_file.measurement),
    (inference_perf_file.is_inference_perf, inference_perf_file.measurement),
    (llmperf_file.is_llmperf, llmperf_file.measurement),
)


def read_measured(file: Path) -> Measurement:
    """Return the measurement in a file. Raises ConfigError."""
    found = read_any(file)
    return of_result(str(file), found) if isinstance(found, CapacityResult) else found


def read_any(file: Path) -> CapacityResult | Measurement:
    """Return the result of Kneewatch in a file, or the measurement of another benchmark. Raises ConfigError."""
    documents, text = _read(file)
    if "schema" in documents[0] and len(documents) == 1:
        return _own_result(file, documents[0], text)
    for is_its, measurement in _READERS:
        if is_its(documents):
            try:
                return measurement(str(file), documents)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
                raise ConfigError(f"{file}: invalid, {one_line(repr(error))}; run the benchmark again") from None
    raise ConfigError(f"{file}: not a result; {_EXPECTED}")


def read_result(file: Path) -> CapacityResult:
    """Return the result of `kneewatch ramp --json` in a file. Raises ConfigError."""
    documents, text = _read(file)
    if len(documents) != 1 or "schema" not in documents[0]:
        raise ConfigError(f"{file}: not a result; expected the file of `kneewatch ramp --json`")
    return _own_result(file, documents[0], text)


def result_files(path: Path) -> list[Path]:
    """Return the file, or the result files in a folder in the order of their names. Raises ConfigError for none."""
    if not path.is_dir():
        return [path]
    try:
        found = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES and each.is_file())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a folder of result files") from None
    if not found or len(found) > _MAX_FILES:
        raise ConfigError(f"{path}: expected a folder of 1 to {_MAX_FILES} result files (*.json), got {len(found)}")
    return found


def paired_files(base: Path, new: Path) -> tuple[list[tuple[Path, Path]], list[Path]]:
    """Return the two files, or the pairs of files of one name in two folders, and those without a partner.

    Raises ConfigError.
    """
    if base.is_dir() != new.is_dir():
        raise ConfigError(f"{base} and {new}: expected two files or two folders, got one of each")
    if not base.is_dir():
        return [(base, new)], []
    before, after = ({file.name: file for file in result_files(folder)} for folder in (base, new))
    found = [(file, after[name]) for name, file in before.items() if name in after]
    if not found:
        raise ConfigError(f"{base} and {new}: expected files of the same name in both, got none; name them alike")
    return found, [file for name, file in {**after, **before}.items() if not (name in before and name in after)]


def _read(file: Path) -> tuple[Documents, bytes]:
    """Return the JSON objects in a file, one or one a line, or printed, and its text. Raises ConfigError."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_LIMITS.max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); {_EXPECTED}") from None
    if bench_text.is_bench_text(told := text.decode("utf-8", "replace")):
        return bench_text.documents(told), text
    try:
        documents = _documents(text)
    except ForeignJsonError as error:
        raise ConfigError(f"{file}: {error}; {_EXPECTED}") from None
    if not all(isinstance(each, dict) for each in documents):
        raise ConfigError(f"{file}: not a result; {_EXPECTED}")
    return documents, text


def _documents(text: bytes) -> Documents:
    try:
        return [read_json(text, _LIMITS)]
    except ForeignJsonError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        # Only "Extra data" is a document with another one after it, and only a benchmark writes one on each line.
        if "Extra data" not in str(error) or not 1 < len(lines) <= _MAX_LINES:
            raise
        return [read_json(line, _LIMITS) for line in lines]


def _own_result(file: Path, data: Mapping[str, Any], text: bytes) -> CapacityResult:
    if (schema := data["schema"]) != _SCHEMA:
        raise ConfigError(
            f"{file}: schema {one_line(str(schema))} is not supported, expected {_SCHEMA}; use another version"
        )
    if not _fits_floats(data):
        raise ConfigError(f"{file}: invalid, a number in it has more than 300 digits; write the file again")
    try:
        return loads(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["", *map(str, first["loc"])]).replace(".", " ", 1)
        words = one_line(first["msg"].removeprefix("Value error, "))
        raise ConfigError(f"{file}: invalid{where}: {words}; write the file again") from None


def _fits_floats(value: object) -> bool:
    """Report whether a float can hold each whole number of a document."""
    if isinstance(value, dict | list):
        return all(map(_fits_floats, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or abs(value) <= _LARGEST
