"""The course of a tuning: what is measured in which order, skipped, rejected and chosen. Servers are simulated."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from example_records import no_knee, result
from simulated_servers import CHAT, FAST, profile, promise, twin_of

from probe.capacity.model.knobs import Knob
from probe.capacity.model.twin import find_capacity
from probe.cli.planning import predicted_knobs
from probe.cli.tune_knobs import knobs_of
from probe.cli.tuned_server import StartError
from probe.cli.tuning import InterruptedTuningError, TuneObservers, Tuning, settings_of
from probe.core.fitted_server import FittedServer
from probe.core.result import Capacity, CapacityResult, RunContext, Stopped
from probe.report.result_columns import GpuPrice
from probe.report.tune_markdown import tune_markdown
from probe.report.tune_record import TuneRecord, tune_json
from probe.simulator.cost import scaled

OBJECTIVES = promise(0.5, 0.1)


@dataclass
class _Server:
    """A server that notes with which settings it was had, and does not start with some."""

    broken: Sequence[str] = ()
    served: list[dict[str, str]] = field(default_factory=list)
    is_up: bool = False

    @asynccontextmanager
    async def serving(self, settings: Mapping[str, str], log: Path) -> AsyncIterator[None]:
        assert not self.is_up
        self.served.append(dict(settings))
        if any(value in self.broken for value in settings.values()):
            raise StartError(f"the server ended with status 1 before it was ready ({log})")
        self.is_up = True
        try:
            yield
        finally:
            self.is_up = False

    async def restore(self, settings: Mapping[str, str], log: Path) -> None: ...


def _found(rps: float, half: float = 0.04) -> CapacityResult:
    capacity = Capacity("verified", rps, lower=rps * (1 - half), upper=rps * (1 + half), output_tokens_per_second=1.0)
    return result(capacity=capacity)


async def _nothing(_: CapacityResult, knobs: Sequence[Knob]) -> Sequence[Knob]:
    return [replace(knob, reason="unknown here") for knob in knobs]


def _tuned(
    folder: Path,
    knobs: Sequence[str],
    measure: Callable[[Mapping[str, str]], CapacityResult],
    server: _Server | None = None,
    *,
    predict: Callable[[CapacityResult, Sequence[Knob]], Awaitable[Sequence[Knob]]] = _nothing,
    is_over: Callable[[], bool] = lambda: False,
    together: bool = False,
    price: GpuPrice | None = None,
    **options: Any,
) -> tuple[TuneRecord, _Server]:
    """Tune a server in virtual time, and return the record and the server."""
    had = server or _Server()

    async def run(settings: Mapping[str, str]) -> CapacityResult:
        assert had.is_up
        return measure(settings)

    asked = knobs_of(knobs, together=together)
    record = TuneRecord(datetime.now(UTC), "kneewatch tune", 0.05, settings_of(asked), price=price)
    observers = TuneObservers(lambda _: None, lambda _: None, is_over)
    tuning = Tuning(had, run, predict, record, folder, observers)
    try:
        asyncio.run(tuning.run(asked, **options))
    except InterruptedTuningError:
        return replace(tuning.record, ended_by="interrupt"), had
    return tuning.record, had


def _of(numbers: Mapping[str, float]) -> Callable[[Mapping[str, str]], CapacityResult]:
    return lambda settings: _found(numbers[settings["max_num_seqs"]])


def _verdicts(record: TuneRecord, at: int = 0) -> list[tuple[str, str]]:
    return [(one.value, one.verdict) for one in record.decisions[at].values]


def test_the_base_is_measured_first_and_last_and_the_better_value_is_chosen(tmp_path: Path) -> None:
    record, server = _tuned(tmp_path, ["max_num_seqs=16,8,32"], _of({"16": 10.0, "8": 6.0, "32": 15.0}))
    assert [each["max_num_seqs"] for each in server.served] == ["16", "8", "32", "16"]
    assert _verdicts(record) == [("16", "base"), ("8", "worse"), ("32", "better"), ("16", "base again")]
    assert (record.decisions[0].chosen, record.settings, record.is_decided) == ("32", {"max_num_seqs": "32"}, True)
    assert sorted(file.name for file in tmp_path.glob("*.json")) == [
        "01-base.json", "02-max_num_seqs-8.json", "03-max_num_seqs-32.json", "04-base-again.json",
    ]  # fmt: skip


def test_a_machine_that_gives_another_answer_the_second_time_decides_nothing(tmp_path: Path) -> None:
    numbers = iter((10.0, 15.0, 13.0))
    record, _ = _tuned(tmp_path, ["max_num_seqs=16,32"], lambda _: _found(next(numbers)))
    assert _verdicts(record)[1] == ("32", "unclear")
    assert (record.decisions[0].chosen, record.is_decided) == (None, False)
    assert "16 gave another capacity when it was measured again" in tune_markdown(record)


def test_a_base_that_cannot_be_measured_again_decides_nothing(tmp_path: Path) -> None:
    failed = replace(result(capacity=no_knee("the run failed")), stopped=Stopped("error", "worker_lost"))
    results = iter((_found(10.0), _found(15.0), failed))
    record, _ = _tuned(tmp_path, ["max_num_seqs=16,32"], lambda _: next(results))
    assert record.decisions[0].why == "Unclear: 16 could not be measured again."


def test_a_value_must_beat_the_base_both_times(tmp_path: Path) -> None:
    numbers = iter((10.0, 11.0, 10.45))
    record, _ = _tuned(tmp_path, ["max_num_seqs=16,32"], lambda _: _found(next(numbers)))
    assert _verdicts(record)[1] == ("32", "unclear")
    assert "Unclear: 32 may be better or worse than 16" in record.decisions[0].why


def test_the_base_stays_where_nothing_is_better(tmp_path: Path) -> None:
    record, _ = _tuned(tmp_path, ["max_num_seqs=16,8,32"], _of({"16": 10.0, "8": 6.0, "32": 10.2}))
    assert (record.decisions[0].chosen, record.settings) == ("16", {"max_num_seqs": "16"})
    assert "- 8: worse, -40 % (-45 to -35 %)" in tune_markdown(record)


def test_a_value_with_which_the_server_does_not_start_is_rejected_with_its_reason(tmp_path: Path) -> None:
    record, server = _tuned(
        tmp_path, ["max_num_seqs=16,4096,32"], _of({"16": 10.0, "32": 15.0}), _Server(broken=["4096"])
    )
    assert _verdicts(record)[1:3] == [("4096", "did not start"), ("32", "better")]
    assert "- 4096: the server ended with status 1 before it was ready" in tune_markdown(record)
    assert len(server.served) == 4


def test_settings_are_tuned_one_after_the_other_each_from_what_was_chosen_before(tmp_path: Path) -> None:
    def measure(settings: Mapping[str, str]) -> CapacityResult:
        rps = {"16": 10.0, "32": 15.0}[settings["max_num_seqs"]]
        return _found(rps * (1.3 if settings["max_num_batched_tokens"] == "8192" else 1.0))

    record, server = _tuned(tmp_path, ["max_num_seqs=16,32", "max_num_batched_tokens=2048,8192"], measure)
    assert [tuple(each.values()) for each in server.served] == [
        ("16", "2048"), ("32", "2048"), ("16", "2048"), ("32", "8192"), ("32", "2048"),
    ]  # fmt: skip
    assert record.settings == {"max_num_seqs": "32", "max_num_batched_tokens": "8192"}


def test_two_settings_together_are_measured_in_pairs(tmp_path: Path) -> None:
    def measure(settings: Mapping[str, str]) -> CapacityResult:
        is_good = settings["max_num_seqs"] == "32" and settings["max_num_batched_tokens"] == "8192"
        return _found(15.0 if is_good else 10.0)

    knobs = ["max_num_seqs=16,32", "max_num_batched_tokens=2048,8192"]
    record, server = _tuned(tmp_path, knobs, measure, together=True)
    assert [tuple(each.values()) for each in server.served] == [
        ("16", "2048"), ("16", "8192"), ("32", "2048"), ("32", "8192"), ("16", "2048"),
    ]  # fmt: skip
    assert record.settings == {"max_num_seqs": "32", "max_num_batched_tokens": "8192"}
    assert record.is_decided
    assert "Chosen: max_num_seqs 32, max_num_batched_tokens 8192" in tune_markdown(record)
    assert "02-max_num_seqs+max_num_batched_tokens-16+8192.json" in [file.name for file in tmp_path.iterdir()]


@pytest.mark.fault(
    "TU140",
    "A setting takes more GPUs and gives more capacity, but less of it for each",
    area="Truth",
    users_see="with `--gpu-hour-price` the value with the cheaper token is chosen, with its price in the record",
    stays="without a price, capacity decides",
)
def test_with_a_price_the_cheaper_token_is_better_not_the_higher_capacity(tmp_path: Path) -> None:
    def measure(settings: Mapping[str, str]) -> CapacityResult:
        gpus = settings["tensor_parallel_size"]
        found = _found({"1": 10.0, "2": 16.0}[gpus])
        capacity = replace(found.capacity, output_tokens_per_second=1000.0 * {"1": 1.0, "2": 1.6}[gpus])
        return replace(found, capacity=capacity, context=replace(found.context, flags=dict(settings)))

    knob = ["tensor_parallel_size=1,2"]
    assert _tuned(tmp_path, knob, measure)[0].settings == {"tensor_parallel_size": "2"}
    record, _ = _tuned(tmp_path, knob, measure, price=GpuPrice(3.6))
    assert record.settings == {"tensor_parallel_size": "1"}
    text = tune_markdown(record)
    assert "compared by capacity per GPU" in text
    rows = [line for line in text.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert [row.split(" | ")[-1].strip(" |") for row in rows] == ["1", "1.25", "1"]  # 3.6 / 3600 s / 1000 tokens/s
    values = tune_json(record)["knobs"][0]["values"]
    assert [value["price_per_million_output_tokens"] for value in values] == pytest.approx([1.0, 1.25, 1.0])


def test_an_interrupt_leaves_the_record_so_far(tmp_path: Path) -> None:
    def measure(settings: Mapping[str, str]) -> CapacityResult:
        found = _found(10.0)
        return found if settings["max_num_seqs"] == "16" else replace(found, stopped=Stopped("interrupt", "signal"))

    record, server = _tuned(tmp_path, ["max_num_seqs=16,32,64"], measure)
    assert _verdicts(record) == [("16", "base"), ("32", "to be measured"), ("64", "to be measured")]
    assert (server.is_up, record.is_decided) == (False, False)
    assert "Ended by: interrupt" in tune_markdown(record)


def test_an_interrupt_of_the_first_run_leaves_a_record_that_names_no_best_value(tmp_path: Path) -> None:
    interrupted = replace(_found(10.0), stopped=Stopped("interrupt", "signal"))
    record, _ = _tuned(tmp_path, ["max_num_seqs=16,32"], lambda _: interrupted)
    text = tune_markdown(record)
    assert "**Not decided: no value has been measured.** Ended by: interrupt." in text
    assert "0 complete capacity runs" in text


def test_a_result_that_was_complete_when_the_interrupt_came_is_in_the_record(tmp_path: Path) -> None:
    server = _Server()
    record, _ = _tuned(
        tmp_path,
        ["max_num_seqs=16,32,64"],
        _of({"16": 10.0, "32": 15.0}),
        server,
        is_over=lambda: len(server.served) == 2,
    )
    assert _verdicts(record) == [("16", "base"), ("32", "better"), ("64", "to be measured")]
    assert (record.ended_by, record.is_decided) == ("interrupt", False)


def _fitted(seqs: int) -> CapacityResult:
    """Return what a search would find of a server whose model is exact, with these concurrent sequences."""
    known = profile(FAST, max_num_seqs=seqs)
    rps = find_capacity(twin_of(known, CHAT), OBJECTIVES, 5.0, seeds=(0,), requests=1500)
    fitted = FittedServer(
        step_cost=asdict(FAST),
        step_costs_without=tuple(asdict(scaled(FAST, factor)) for factor in (0.99, 1.0, 1.01)),
        kv_tokens=float(known.usable_blocks * known.block_size),
        max_num_seqs=seqs,
        max_num_batched_tokens=2048,
        is_chunk_known=True,
        largest_batch=float(seqs),
    )
    capacity = Capacity("verified", rps, rps * 0.96, rps * 1.04, fitted_server=fitted)
    context = RunContext(workload=asdict(CHAT), objectives=asdict(OBJECTIVES))
    return replace(result(capacity=capacity), context=context)


@pytest.mark.long
def test_a_value_that_the_twin_predicts_to_lose_is_not_measured(tmp_path: Path) -> None:
    async def predict(base: CapacityResult, knobs: Sequence[Knob]) -> Sequence[Knob]:
        return predicted_knobs(base, knobs)

    record, server = _tuned(
        tmp_path, ["max_num_seqs=12,6,24"], lambda had: _fitted(int(had["max_num_seqs"])), predict=predict
    )
    assert [each["max_num_seqs"] for each in server.served] == ["12", "24", "12"]
    assert _verdicts(record)[1:3] == [("6", "not measured"), ("24", "better")]
    lost, gained = record.decisions[0].values[1:3]
    assert lost.predicted is not None
    assert lost.predicted.upper is not None
    assert lost.predicted.upper < -0.05
    assert gained.predicted is not None
    assert gained.predicted.lower is not None
    assert gained.predicted.lower > 0.2
    text = tune_markdown(record)
    assert "- 6: predicted to lose clearly, at most -" in text
    assert ", as predicted" in text
    written = json.loads(json.dumps(tune_json(record)))
    assert written["schema"] == "kneewatch.tune/1"
    assert [each["verdict"] for each in written["knobs"][0]["values"]] == [
        "base", "not measured", "better", "base again",
    ]  # fmt: skip
