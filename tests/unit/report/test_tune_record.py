"""The record of a tuning is safe Markdown, also of what a server or a command says."""

from dataclasses import replace
from datetime import UTC, datetime

from example_records import no_knee, result

from probe.capacity.model.knobs import Knob
from probe.core.result import Capacity
from probe.report.tune_markdown import tune_markdown
from probe.report.tune_record import BASE, SKIPPED, KnobDecision, TunedValue, TuneRecord, tune_json

BASE_RUN = replace(result(capacity=Capacity("verified", 10.0, 9.6, 10.4, limiting="ttft")), model="m | <b>[x](y)")
LOST = Knob("max_num_seqs", 16.0, 8.0, -0.4, -0.45, -0.35)


def _record(**values: object) -> TuneRecord:
    rows = (
        TunedValue("16", BASE, result=BASE_RUN, file="01-base.json"),
        TunedValue("8", SKIPPED, LOST, reason="predicted to lose clearly, at most -35%"),
        TunedValue("32", "unclear", replace(LOST, after=32.0, reason="<i>"), result(capacity=no_knee("`x` | y"))),
    )
    decision = KnobDecision("max_num_seqs", rows)
    record = TuneRecord(datetime(2026, 11, 24, tzinfo=UTC), "kneewatch tune | x", 0.05, {"max_num_seqs": "16"})
    return replace(record, decisions=(decision,), **values)  # type: ignore[arg-type]


def test_what_a_server_says_is_no_markup() -> None:
    text = tune_markdown(_record())
    assert "# Tuning of m \\| &lt;b>\\[x](y)" in text
    assert "| 32 | unclear | none: `x` \\| y |" in text
    assert "kneewatch tune \\| x" in text


def test_a_value_that_was_not_measured_has_its_hypothesis_and_its_reason() -> None:
    text = tune_markdown(_record())
    assert "- 8: max_num_seqs 16 -> 8: -40 % (-45 to -35 %); not measured, a clear loss" in text
    assert "| 8 | not measured | - | - | -40 % (-45 to -35 %) |" in text


def test_a_record_without_an_answer_says_so() -> None:
    text = tune_markdown(_record(ended_by="interrupt"))
    assert "**Not decided, the best known is max_num_seqs 16.** Ended by: interrupt." in text
    assert tune_json(_record())["decided"] is False


def test_json_has_what_each_value_was_predicted_to_give_and_gave() -> None:
    (knob,) = tune_json(_record())["knobs"]
    base, lost, unclear = knob["values"]
    assert (base["requests_per_second"], base["file"], base["change"]["ratio"]) == (10.0, "01-base.json", None)
    assert (lost["predicted"]["upper"], lost["result"]) == (-0.35, None)
    assert unclear["requests_per_second"] is None
