"""One request as JSON."""

import json
from datetime import UTC, datetime

import pytest
from example_records import WALL_S, record, spec

from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.report.record_json import record_json, unmeasured_json


def test_latencies_in_seconds_and_what_the_server_counted() -> None:
    written = record_json(record(ttft_s=0.1, gap_s=0.01))
    assert written["outcome"] == "ok"
    assert written["ttft_s"] == pytest.approx(0.1)
    assert written["tpot_s"] == pytest.approx(0.01)
    assert written["e2e_s"] == pytest.approx(0.12)
    assert (written["prompt_tokens"], written["output_tokens"]) == (8, 3)
    assert written["detail"] is None


@pytest.mark.parametrize("one", [record(outcome=Outcome.TIMEOUT), record(asked=spec(output_tokens=1))])
def test_undefined_latencies_are_null_and_not_zero(one: object) -> None:
    written = record_json(one)  # type: ignore[arg-type]
    assert written["tpot_s"] is None
    json.dumps(written, allow_nan=False)


def test_the_prompt_stays_out() -> None:
    assert "1003" not in json.dumps(record_json(record()))


def test_the_moment_is_one_that_programs_read() -> None:
    written = record_json(record())["at"]
    assert datetime.fromisoformat(written) == datetime.fromtimestamp(WALL_S, UTC)


def test_an_unmeasured_record_has_the_same_keys_and_the_reason() -> None:
    written = unmeasured_json(TargetError("http://a: cannot be reached", Outcome.UNREACHABLE), WALL_S)
    assert written.keys() == record_json(record()).keys()
    assert (written["outcome"], written["detail"]) == ("unreachable", "http://a: cannot be reached")
    assert written["ttft_s"] is None
    json.dumps(written, allow_nan=False)
