"""A result as JSON: the same after a round trip, and the shape that is promised."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from example_records import WALL_S, no_knee, record, result, spec, step
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.result import Capacity, Cost, Roofline, Stopped
from probe.core.step import Arrivals, Distribution, Pattern, ServerPeaks, StepPlan
from probe.report.result_json import dumps, loads, record_json, unmeasured_json

_NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(rps=_NUMBERS, p95=_NUMBERS, peak=_NUMBERS, words=st.text(st.characters(codec="utf-8")))
def test_a_result_is_the_same_after_a_round_trip(
    rps: float | None, p95: float | None, peak: float | None, words: str
) -> None:
    odd = replace(step(), ttft_s=Distribution(count=1, p95=p95), server=ServerPeaks(waiting_peak=peak), reason=words)
    one = result(
        target=words,
        steps=[odd, step(8)],
        capacity=Capacity("empirical", rps, reason=words, roofline=Roofline(words, sure=True, step_s=rps)),
        stopped=Stopped("guard", words),
    )
    assert loads(dumps(one)) == one
    assert loads(dumps(one, indent=1)) == one


def test_it_has_the_keys_that_readers_rely_on() -> None:
    written = json.loads(dumps(result()))
    assert set(written) == {
        *("schema", "id", "target", "model", "started", "context", "steps", "capacity", "cost", "stopped", "confirms"),
        *("users", "first_failure", "prior_forecast", "provenance"),
    }
    assert written["schema"] == "kneewatch.result/1"
    assert written["started"].startswith("2026-09-21T")
    (first, _) = written["steps"]
    assert {"plan", "valid", "reason", "seconds", "requests", "throughput_rps", "ttft_s", "server"} <= set(first)
    assert first["plan"]["loop"] == "closed"
    assert set(first["ttft_s"]) == {
        "count", "mean", "p50", "p95", "p99", "max", "p95_interval", "p99_interval",
        "p50_interval", "p90",
    }  # fmt: skip
    assert {"mode", "requests_per_second", "lower", "upper", "knee_concurrency", "limiting", "reason"} <= set(
        written["capacity"]
    )


def test_it_is_json_also_where_a_number_is_none() -> None:
    one = replace(result(capacity=no_knee()), cost=Cost(0, 0, 0.0, 0.0))
    assert "NaN" not in dumps(one)
    assert "Infinity" not in dumps(replace(one, cost=Cost(1, 1, math.inf, math.nan)))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 1}'])
def test_json_that_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        loads(text)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", '"inf"', '"NaN"'])
@pytest.mark.fault(
    "SG3",
    "A stored result, or a file of one, has NaN, infinity or 1e999 in any place",
    area="Disk",
    users_see="one line where it is read; the monitor leaves it out",
    stays="the other results; `report.html` and the pages",
)
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    text = dumps(replace(result(capacity=no_knee()), cost=Cost(1, 1, 12.5, 0.0)))
    assert loads(text).cost.seconds == 12.5
    with pytest.raises(ValidationError, match="expected finite numbers"):
        loads(text.replace("12.5", number))


def test_a_result_from_before_there_was_a_provenance_still_loads() -> None:
    old = json.loads(dumps(result()))
    del old["provenance"]
    for one in old["steps"]:
        del one["server"]["prefix_hit_ratio"], one["gpu"]["utilization_peak"], one["gpu"]["gpus"]
        del one["ttft_s"]["p90"], one["ttft_s"]["p50_interval"]
    assert loads(json.dumps(old)) == result()


def test_a_result_from_before_there_were_flags_second_runs_and_rooflines_still_loads() -> None:
    old = json.loads(dumps(result()))
    del old["confirms"], old["context"]["flags"]
    del old["capacity"]["bottleneck_gain"], old["capacity"]["roofline"]
    assert loads(json.dumps(old)) == result()


def test_a_result_that_calls_rising_arrivals_ramp_loads_and_keeps_its_baseline() -> None:
    today = replace(step(), plan=StepPlan(512, 15.0, loop="open", arrivals=Arrivals(Pattern.RISING, 2.0)))
    one = result(steps=[today])
    one = replace(one, context=replace(one.context, workload={**one.context.workload, "arrivals": "rising"}))
    older = dumps(one).replace('"rising"', '"ramp"')
    assert older.count('"ramp"') == 2
    assert loads(older) == one


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


def test_an_unknown_tpot_has_its_reason() -> None:
    held = record_json(record(gap_s=0.0))
    assert (held["tpot_s"], held["itl_max_s"]) == (None, None)
    assert held["tpot_unknown"] == "100 % of the tokens came together with the first one"
    assert record_json(record())["tpot_unknown"] is None
    late = record(events=replace(record().events, first_visible=1))
    assert record_json(late)["first_visible_s"] == pytest.approx(0.11)


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
