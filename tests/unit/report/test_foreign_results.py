"""Result files that no run has written: whatever a value is, each command says one line or goes on."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_records import result

from probe.capacity.trend.compare import compare
from probe.cli.planning import Peak, plan_replicas
from probe.cli.result_commands import PlanOptions
from probe.core.errors import ConfigError
from probe.core.result import CapacityResult
from probe.core.snapshot import UserLoad
from probe.report.bench_json import bench_lines
from probe.report.comparison import comparison_json, comparison_table, comparison_words
from probe.report.measured_file import read_measured, read_result
from probe.report.replica_plan import plan_json, plan_markdown, plan_words
from probe.report.result_columns import GpuPrice
from probe.report.result_json import dumps
from probe.report.result_table import as_csv, as_markdown, capacity_table, result_section, step_table

GONE = object()
HOSTILE: tuple[object, ...] = (
    GONE, None, 0, -1, 10**400, 1e308, math.nan, math.inf, "", "x\n\x1b[2J<b>|" * 50, [], {}, [{}],
)  # fmt: skip
PEAK = Peak(UserLoad(40.0, 5120.0), "a test")
LENGTH = {"tokens": [1.0, 500.0], "shares": [0.0, 1.0]}


def _whole() -> dict[str, Any]:
    one = result()
    workload = {"name": "short", "api": "completions", "prompt_tokens": LENGTH, "output_tokens": LENGTH}
    context = replace(one.context, workload=workload, flags={"max_num_seqs": "8"}, flag_sources={"max_num_seqs": "pod"})
    written: dict[str, Any] = json.loads(dumps(replace(one, context=context)))
    return written


def _places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value is; of a list only its first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from _places(each, (*path, key))


def _with(whole: dict[str, Any], path: tuple[Any, ...], value: object) -> str:
    changed = json.loads(json.dumps(whole))
    at = changed
    for key in path[:-1]:
        at = at[key]
    if value is GONE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(changed)


def _use(file: Path) -> None:
    """Do with the file what commands do. Raises ConfigError."""
    one = read_result(file)
    for table in (capacity_table([one]), step_table([one])):
        lines = as_markdown(table).splitlines()
        assert all(line.isprintable() and "<b>" not in line for line in lines)
        as_csv(table)
    section = result_section(one, GpuPrice(2.0))
    assert all(line.isprintable() and "<b>" not in line for line in section.splitlines())
    bench_lines([one])
    measured = read_measured(file)
    found = compare(measured, measured, 0.05)
    comparison_words(found)
    comparison_table(found, measured, measured, with_same=True)
    comparison_json(found, measured, measured, 0.05)
    _plan(file, one)


def _plan(file: Path, one: CapacityResult) -> None:
    plan = plan_replicas(str(file), one, PEAK, PlanOptions("20%", 1, gpu_hour_price=2.0))
    assert all(line.isprintable() for line in plan_words(plan).splitlines())
    assert "<b>" not in plan_markdown(plan)
    plan_json(plan)


def _refusal(file: Path) -> str:
    """Return the line that refuses the file; "" if it is taken."""
    try:
        _use(file)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.long
@pytest.mark.fault(
    "TP3",
    "A result file in which any one value is missing, of another type, infinite, negative, or of 400 digits",
    area="Truth",
    users_see="one line with the file, exit 2, or a plan, table and comparison without it",
    stays="no traceback",
)
def test_a_value_that_no_run_can_have_written_is_one_line_or_harmless(tmp_path: Path) -> None:
    whole, file, refused = _whole(), tmp_path / "result.json", 0
    places = list(_places(whole))
    for path in places:
        for value in HOSTILE:
            file.write_text(_with(whole, path, value))
            try:
                line = _refusal(file)
            except Exception as error:  # noqa: BLE001 - that there is none is what is tested
                pytest.fail(f"{path} = {value!r}: {error!r}")
            refused += bool(line)
            assert not line or line.startswith(f"{file}: "), (path, value)
            assert not line or line.isprintable(), (path, value)
    assert len(places) > 100
    assert refused > len(places), "most places refuse most values"
