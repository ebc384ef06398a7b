"""What `kneewatch tune` does: for each setting predict, measure its values one after the other, and decide.

In: a server that takes other settings, and a capacity run. Out: a decision record, passed to an observer after each
step. No parsing, no printing. The base is measured before and after the values of a setting; a chosen value is the
base of the next setting.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from probe.capacity.model.knobs import Knob, withheld_knobs
from probe.capacity.trend.compare import UNCLEAR, best, has_drifted, is_clear_loss, verdict_beside
from probe.cli.tune_knobs import KnobValues, still_has, twin_knob
from probe.cli.tuned_server import Settings, StartError, TunedServer
from probe.core.errors import TargetError
from probe.core.result import CapacityResult
from probe.report.files import write_file
from probe.report.result_json import dumps
from probe.report.tune_record import AGAIN, BASE, FAILED, SKIPPED, WAITING, KnobDecision, TunedValue, TuneRecord
from probe.report.tune_record import settings_of as settings_in

Measure = Callable[[Settings], Awaitable[CapacityResult]]
Predict = Callable[[CapacityResult, Sequence[Knob]], Awaitable[Sequence[Knob]]]
_NO_NAME, _MAX_NAME = re.compile(r"[^A-Za-z0-9_.+-]"), 100  # of a value in a file's name
INTERRUPTED, FAILED_RUN = "interrupt", "error"


class InterruptedTuningError(Exception):
    """The tuning was stopped in a capacity run, or before one; the record has what was measured."""


@dataclass(frozen=True, slots=True)
class TuneObservers:
    """Callbacks of a tuning. `on_record`: each new state of the record; `on_note`: what is done now.

    `is_over`: asked before each measurement; True ends the tuning.
    """

    on_record: Callable[[TuneRecord], None]
    on_note: Callable[[str], None]
    is_over: Callable[[], bool] = lambda: False


class Tuning:
    """One tuning. `record` is its state at any time."""

    def __init__(
        self,
        server: TunedServer,
        measure: Measure,
        predict: Predict,
        record: TuneRecord,
        folder: Path,
        observers: TuneObservers,
    ) -> None:
        """Prepare. `record.settings` are the base's settings; results and the servers' output go into the folder."""
        self.record = record
        self._server, self._measure, self._predict = server, measure, predict
        self._folder, self._observers = folder, observers
        self._count = 0

    async def run(self, knobs: Sequence[KnobValues], *, measure_all: bool = False) -> TuneRecord:
        """Tune the settings one after the other. Raises TargetError where the base cannot be measured.

        `measure_all`: also the values that are predicted to lose clearly. Raises InterruptedTuningError.
        """
        base = BaseRun(*await self._measured(self.record.settings, "base"))
        for knob in knobs:
            base = await self._tune(knob, base, measure_all=measure_all)
        return self.record

    async def _tune(self, knob: KnobValues, base: "BaseRun", *, measure_all: bool) -> "BaseRun":
        """Decide one setting, and return the base of the next one."""
        before, others = knob.values[0], knob.values[1:]
        decision = KnobDecision(knob.name, (TunedValue(before, BASE, result=base.result, file=base.file),))
        self._observers.on_note(f"{knob.name}: predicting")
        for one in await predictions(knob, base.result, self._predict, None if measure_all else self.record.tolerance):
            decision = decision.with_value(one)
        self._note(decision)
        for value in others:
            planned = next(one for one in decision.values if one.value == value)
            if planned.verdict != SKIPPED:
                decision = decision.with_value(await self._value(knob, planned, base.result))
                self._note(decision)
        again = await self._base_again(decision)
        bases = [base.result, *([again.result] if again is not None and again.result is not None else [])]
        if again is not None:
            decision = decision.with_value(again)
        decision = decided(decision, bases, self.record)
        self._note(decision)
        winner = next(one for one in decision.values if one.value == (decision.chosen or before))
        self.record = replace(self.record, settings={**self.record.settings, **settings_in(knob.name, winner.value)})
        self._observers.on_record(self.record)
        latest = again if again is not None and winner.value == before and again.result is not None else winner
        return BaseRun(latest.result or base.result, latest.file or base.file)

    async def _value(self, knob: KnobValues, planned: TunedValue, base: CapacityResult) -> TunedValue:
        settings = {**self.record.settings, **settings_in(knob.name, planned.value)}
        try:
            result, file = await self._measured(settings, f"{knob.name}-{planned.value}")
        except StartError as error:
            return replace(planned, verdict=FAILED, reason=str(error))
        except TargetError as error:
            return replace(planned, verdict=UNCLEAR, reason=str(error))
        if (shown := still_has(knob, planned.value, result)) is not None:
            reason = f"the server was not changed: its metrics say {shown}"
            return replace(planned, verdict=UNCLEAR, file=file, reason=reason)
        compared = self.record.compared
        verdict = verdict_beside([compared(base)], compared(result), self.record.tolerance)
        return replace(planned, verdict=verdict, result=result, file=file)

    async def _base_again(self, decision: KnobDecision) -> TunedValue | None:
        """Measure the base again, if there is anything to compare it with."""
        if all(one.result is None for one in decision.values[1:]):
            return None
        try:
            result, file = await self._measured(self.record.settings, "base-again")
        except TargetError as error:
            return TunedValue(decision.base.value, AGAIN, reason=str(error))
        return TunedValue(decision.base.value, AGAIN, result=result, file=file)

    async def _measured(self, settings: Settings, title: str) -> tuple[CapacityResult, str]:
        if self._observers.is_over():
            raise InterruptedTuningError
        self._count += 1
        stem = f"{self._count:02}-{_NO_NAME.sub('_', title)[:_MAX_NAME]}"
        self._observers.on_note(f"{title}: {', '.join(f'{name} {value}' for name, value in settings.items())}")
        async with self._server.serving(settings, self._folder / f"{stem}.log"):
            result = await self._measure(settings)
        file = self._folder / f"{stem}.json"
        write_file(file, dumps(result, indent=1) + "\n", "--out")
        if result.stopped.by == INTERRUPTED:
            raise InterruptedTuningError
        return result, file.name

    def _note(self, decision: KnobDecision) -> None:
        before = tuple(each for each in self.record.decisions if each.name != decision.name)
        self.record = replace(self.record, decisions=(*before, decision))
        self._observers.on_record(self.record)


@dataclass(frozen=True, slots=True)
class BaseRun:
    """The capacity of the server with the settings chosen so far, and the file of its result."""

    result: CapacityResult
    file: str | None


async def predictions(
    knob: KnobValues, base: CapacityResult, predict: Predict, tolerance: float | None
) -> list[TunedValue]:
    """Return the values but the base, each with what the twin predicts; those that lose clearly are skipped.

    `tolerance`: None skips nothing.
    """
    stored = base.capacity.fitted_server
    flags = base.context.flags
    asked = [twin_knob(knob.name, knob.values[0], value, stored, flags) for value in knob.values[1:]]
    open_ones = [each for each in asked if each.reason is None]
    told = dict(zip(map(id, open_ones), await predict(base, open_ones), strict=True)) if open_ones else {}
    found = []
    for value, each in zip(knob.values[1:], asked, strict=True):
        gain = told.get(id(each), each)
        is_lost = tolerance is not None and is_clear_loss(gain.upper, tolerance)
        reason = f"predicted to lose clearly, at most {gain.upper:+.0%}" if is_lost and gain.upper is not None else None
        found.append(TunedValue(value, SKIPPED if is_lost else WAITING, gain, reason=reason))
    return found


def decided(decision: KnobDecision, measured: Sequence[CapacityResult], record: TuneRecord) -> KnobDecision:
    """Return the decision: a verdict on each measurement, compared with those of the base, and the conclusion."""
    before, tolerance = decision.base, record.tolerance
    bases = [record.compared(each) for each in measured]
    values = tuple(
        replace(one, verdict=verdict_beside(bases, record.compared(one.result), tolerance))
        if one.result is not None and one.verdict not in (BASE, AGAIN)
        else one
        for one in decision.values
    )
    judged = replace(decision, values=values)
    if before.result is None or before.result.capacity.requests_per_second is None:
        return replace(judged, why="Unclear: the base has no capacity to compare with.")
    if has_drifted(bases, tolerance):
        return replace(judged, why=f"Unclear: {before.value} gave another capacity when it was measured again.")
    again = next((one for one in values if one.verdict == AGAIN), None)
    if again is not None and (again.result is None or again.result.stopped.by == FAILED_RUN):
        return replace(judged, why=f"Unclear: {before.value} could not be measured again.")
    tried = [one for one in values if one.verdict not in (BASE, AGAIN)]
    winner = best(
        {one.value: one.verdict for one in tried},
        {one.value: record.compared(one.result) for one in tried if one.result is not None},
    )
    if winner is not None:
        better = "clearly better" if record.price is None else "clearly cheaper for a token"
        return replace(judged, chosen=winner, why=f"{winner} is {better} than {before.value}, measured twice.")
    unclear = [one.value for one in tried if one.verdict == UNCLEAR]
    if unclear:
        words = (
            f"Unclear: {', '.join(unclear)} may be better or worse than {before.value}; measure longer (--max-seconds)."
        )
        return replace(judged, why=words)
    return replace(judged, chosen=before.value, why=f"{before.value} stays: no other value is better.")


async def predicted_in_helper(base: CapacityResult, knobs: Sequence[Knob]) -> Sequence[Knob]:
    """Return the knobs with their gains, computed in another process, which a signal can end."""
    from probe.runtime.helper_process import HelperError, run_in_helper

    try:
        found: Sequence[Knob] = await run_in_helper("probe.cli.planning:predicted_in_json", dumps(base), list(knobs))
    except HelperError as error:
        return withheld_knobs(knobs, str(error))
    return found


def settings_of(knobs: Sequence[KnobValues]) -> Mapping[str, str]:
    """Return the settings of the base."""
    return {name: value for knob in knobs for name, value in settings_in(knob.name, knob.values[0]).items()}
