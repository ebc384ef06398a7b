"""`kneewatch plan` as its tests call it: results, their files, and what was printed."""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from example_records import result

from probe.cli.main import main
from probe.core.result import Capacity, CapacityResult, RunContext
from probe.report.result_json import dumps

MEASURED = Capacity("verified", 10.0, lower=9.0, upper=11.0, output_tokens_per_second=1280.0, limiting="ttft")
CONTEXT = RunContext(
    workload={"name": "short-chat", "api": "completions", "prompt_tokens": 256, "output_tokens": 128},
    objectives={"name": "chat", "ttft": {"ratio": 0.95, "within_s": 0.5}},
    engine="vllm",
    version="0.32.0",
    gpu="NVIDIA H100",
    flags={"tensor_parallel_size": "2"},
    flag_sources={"tensor_parallel_size": "pod"},
)


def plan_result(**values: Any) -> CapacityResult:
    one = result(model="llama", capacity=MEASURED)
    return replace(one, **{"context": CONTEXT, **values})


def kneewatch_plan(*arguments: str | Path) -> tuple[int, str, str]:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, pytest.raises(SystemExit) as ended:
        main(["plan", *map(str, arguments)])
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def result_file(folder: Path, one: CapacityResult, name: str = "result.json") -> Path:
    file = folder / name
    file.write_text(dumps(one))
    return file


def planned(folder: Path, one: CapacityResult, *options: str) -> str:
    status, out, err = kneewatch_plan(result_file(folder, one), *(options or ("--peak", "40")))
    assert (status, err) == (0, "")
    return out


def refused(*arguments: str | Path) -> str:
    status, out, err = kneewatch_plan(*arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    return line
