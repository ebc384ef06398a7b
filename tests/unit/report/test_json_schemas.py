"""The printed schemas fit what is written, key for key."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from example_records import no_knee, result
from typer.testing import CliRunner

from probe.capacity.model.knobs import Knob
from probe.cli.main import app
from probe.cli.planning import Peak, plan_replicas
from probe.cli.result_commands import PlanOptions
from probe.core.snapshot import UserLoad
from probe.report.json_schemas import file_schema
from probe.report.replica_plan import plan_json
from probe.report.result_json import dumps
from probe.report.tune_record import BASE, SKIPPED, KnobDecision, TunedValue, TuneRecord, tune_json

KNOB = Knob("max_num_seqs", 16.0, 8.0, -0.4, -0.45, -0.35)


def _result() -> dict[str, Any]:
    written: dict[str, Any] = json.loads(dumps(result()))
    return written


def _plan() -> dict[str, Any]:
    lengths = {"tokens": [1.0, 500.0], "shares": [0.0, 1.0]}
    workload = {"name": "short", "api": "completions", "prompt_tokens": lengths, "output_tokens": lengths}
    one = replace(result(), context=replace(result().context, workload=workload))
    peak = Peak(UserLoad(40.0, 5120.0), "a test")
    plans = [plan_replicas("it", one, peak, PlanOptions("20%", 1, gpu_hour_price=price)) for price in (None, 2.0)]
    return {"schema": "kneewatch.plan/1", "plans": [plan_json(replace(plan, knobs=[KNOB])) for plan in plans]}


def _tune() -> dict[str, Any]:
    values = (
        TunedValue("16", BASE, result=result(), file="01-base.json"),
        TunedValue("8", SKIPPED, KNOB, reason="predicted to lose clearly"),
        TunedValue("32", "unclear", replace(KNOB, after=32.0), result(capacity=no_knee())),
    )
    record = TuneRecord(datetime(2026, 11, 24, tzinfo=UTC), "kneewatch tune", 0.05, {"max_num_seqs": "16"})
    return tune_json(replace(record, decisions=(KnobDecision("max_num_seqs", values),)))


def _closed(part: Any) -> Any:
    """Return the schema in which an object has no key that is not named."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    closed = {key: _closed(value) for key, value in part.items()}
    return {**closed, "additionalProperties": False} if isinstance(part.get("properties"), dict) else closed


@pytest.mark.parametrize(("name", "written"), [("result", _result()), ("plan", _plan()), ("tune", _tune())])
def test_what_is_written_fits_its_schema_key_for_key(name: str, written: dict[str, Any]) -> None:
    schema = file_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json.dumps(written)), _closed(schema))
    fits = jsonschema.Draft202012Validator(schema).is_valid
    assert fits({**written, "of_a_later_version": 1})
    assert not fits({**written, "schema": f"kneewatch.{name}/2"})
    assert not any(fits({key: written[key] for key in written if key != gone}) for gone in schema["required"])


def test_the_command_prints_each_and_the_configurations_without_a_name() -> None:
    for name in ("result", "plan", "tune"):
        assert json.loads(CliRunner().invoke(app, ["config", "schema", name]).stdout) == file_schema(name)
    assert "targets" in json.loads(CliRunner().invoke(app, ["config", "schema"]).stdout)["properties"]
    assert CliRunner().invoke(app, ["config", "schema", "other"]).exit_code == 2
