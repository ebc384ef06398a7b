"""The decision record of `kneewatch tune` in Markdown. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from probe.capacity.model.knobs import Knob
from probe.capacity.trend.compare import change_of
from probe.core.result import CapacityResult
from probe.report.figures import cell, number, percent, promises, table
from probe.report.provenance_text import provenance_lines
from probe.report.replica_plan import gain_words, knob_setting
from probe.report.result_json import objectives_of
from probe.report.result_text import capacity_words
from probe.report.tune_record import (
    AGAIN,
    BASE,
    SKIPPED,
    KnobDecision,
    TunedValue,
    TuneRecord,
    kv_peak,
    preemptions,
    tokens_per_joule,
)
from probe.report.workload_text import workload_lines


def tune_markdown(record: TuneRecord) -> str:
    """Return the record in Markdown."""
    first = next(record.results, None)
    answer = _answer(record, is_measured=first is not None)
    ended = f" Ended by: {cell(record.ended_by)}." if record.ended_by is not None else ""
    lines = [f"# Tuning of {cell(first.model if first else 'a server')}", "", f"**{cell(answer)}.**{ended}", ""]
    for each in record.decisions:
        lines += _decision_lines(record, each)
    return "\n".join([*lines, *_conditions(record, first)])


def _answer(record: TuneRecord, *, is_measured: bool) -> str:
    if not is_measured:
        return "Not decided: no value has been measured"
    chosen = ", ".join(f"{name} {value}" for name, value in record.settings.items())
    return f"Chosen: {chosen}" if record.is_decided else f"Not decided, the best known is {chosen}"


def plan_words(decisions: Sequence[KnobDecision]) -> str:
    """Return the hypotheses alone, for a terminal."""
    return "\n".join(f"  {_hypothesis(one)}" for each in decisions for one in each.values if one.predicted is not None)


def _change_words(base: CapacityResult, new: CapacityResult) -> str:
    """Return the measured change of capacity with its ends."""
    change, lower, upper = change_of(base, new)
    if change is None:
        return "-"
    ends = f" ({_signed(lower)} to {_signed(upper)} %)" if lower is not None and upper is not None else ""
    return f"{_signed(change)} %{ends}"


def _decision_lines(record: TuneRecord, decision: KnobDecision) -> list[str]:
    base = decision.base.result
    hypotheses = [f"- {cell(_hypothesis(one))}" for one in decision.values if one.predicted is not None]
    rows = [_row(record, base, one) for one in decision.values]
    head = _HEAD if record.price is None else (*_HEAD, _PRICE)
    rejected = [f"- {cell(f'{one.value}: {_rejection(decision, one)}')}" for one in _rejected(decision)]
    return [
        f"## {cell(decision.name)}: {cell(decision.chosen or 'not decided')}",
        "",
        cell(decision.why or "Not all values have been measured."),
        "",
        "Hypothesis, by the simulated copy of the base's server (intervals hold in nine cases of ten):",
        "",
        *(hypotheses or ["- none"]),
        "",
        f"Measured{_by_gpu(record)}; a change up to {percent(record.tolerance)} counts as the same:",
        "",
        *table(head, rows),
        "",
        *(["Rejected:", "", *rejected, ""] if rejected else []),
    ]


_HEAD = (
    "value", "verdict", "capacity", "change", "predicted", "how known", "limited by", "output tok/s", "KV peak",
    "preemptions", "tok/J", "result",
)  # fmt: skip


_PRICE = "per million output tokens"


def _by_gpu(record: TuneRecord) -> str:
    return "" if record.price is None else " and compared by capacity per GPU, so by the price of a token"


def _row(record: TuneRecord, base: CapacityResult | None, one: TunedValue) -> tuple[str, ...]:
    predicted = "" if one.predicted is None else _short_gain(one.predicted)
    found = one.result
    if found is None:
        cost = () if record.price is None else ("",)
        return (one.value, one.verdict, "", "", predicted, *[""] * 6, one.reason or "", *cost)
    capacity = found.capacity
    change = "" if base is None or base is found else _change_words(base, found)
    return (
        one.value,
        one.verdict,
        capacity_words(capacity) or f"none: {capacity.reason}",
        change,
        predicted,
        f"{capacity.mode}{_held(base, one)}",
        capacity.limiting or capacity.bottleneck or "",
        number(capacity.output_tokens_per_second),
        percent(kv_peak(found)),
        number(preemptions(found)),
        number(tokens_per_joule(found)),
        one.file or found.id,
        *(() if record.price is None else (number(record.token_price(found)),)),
    )


def _held(base: CapacityResult | None, one: TunedValue) -> str:
    """Return whether the measured change overlaps the predicted interval."""
    told = one.predicted
    if base is None or one.result is None or told is None or told.lower is None or told.upper is None:
        return ""
    change, lower, upper = change_of(base, one.result)
    if change is None:
        return ""
    low, high = (change if lower is None else lower), (change if upper is None else upper)
    return ", as predicted" if low <= told.upper and high >= told.lower else ", not as predicted"


def _hypothesis(one: TunedValue) -> str:
    if one.predicted is None:
        return ""
    skipped = "; not measured, a clear loss" if one.verdict == SKIPPED else ""
    setting = one.predicted.name if one.predicted.before is None else knob_setting(one.predicted)
    return f"{one.value}: {setting}: {gain_words(one.predicted)}{skipped}"


def _short_gain(knob: Knob) -> str:
    return "unknown" if knob.gain is None else gain_words(knob)


def _rejected(decision: KnobDecision) -> Iterator[TunedValue]:
    if decision.chosen is not None:
        yield from (one for one in decision.values if one.value != decision.chosen and one.verdict != AGAIN)


def _rejection(decision: KnobDecision, one: TunedValue) -> str:
    if one.reason is not None:
        return one.reason
    if one.verdict == BASE:
        return "the base; the chosen value is clearly better"
    change = _change_words(decision.base.result, one.result) if decision.base.result and one.result else ""
    return f"{one.verdict}{f', {change}' if change not in ('', '-') else ''}"


def _conditions(record: TuneRecord, first: CapacityResult | None) -> list[str]:
    results = list(record.results)
    seconds, tokens = sum(one.cost.seconds for one in results), sum(one.cost.tokens for one in results)
    rows = [("Started", f"{record.started:%Y-%m-%d %H:%M} UTC"), ("Command", record.command)]
    if first is not None:
        context = first.context
        flags = ", ".join(f"{name}={value}" for name, value in context.flags.items())
        rows += [("Server", f"{context.engine} {context.version}{f' on {context.gpu}' if context.gpu else ''}")]
        rows += [("Flags of the base", flags or "none known"), ("Valid for", f"workload {_lengths(context.workload)}")]
        rows += [*workload_lines(context.workload), ("Objectives", promises(objectives_of(context.objectives)))]
        rows += [(label, words) for label, words in provenance_lines(first) if label != "Made by"]
    rows += [("Cost", f"{len(results)} complete capacity runs, {number(seconds)} s and {tokens:,} tokens of load")]
    return ["## Conditions", "", *table(("", "value"), rows), ""]


def _lengths(workload: Mapping[str, object]) -> str:
    lengths = [workload.get(name) for name in ("prompt_tokens", "output_tokens")]
    plain = f" ({lengths[0]} + {lengths[1]} tokens)" if all(isinstance(each, int) for each in lengths) else ""
    return f"{workload['name']}{plain} only"


def _signed(ratio: float | None) -> str:
    return "?" if ratio is None else f"{ratio * 100:+.0f}"
