"""`kneewatch tune` behind its options: the runs with their progress, the signals that end them, the record's files."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from probe.capacity.run.request import RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.cli.commands import ramp_target
from probe.cli.output import print_error
from probe.cli.stops import on_signals
from probe.cli.tune_knobs import KnobValues, server_flags
from probe.cli.tuned_server import Settings, StartError, TunedServer
from probe.cli.tuning import INTERRUPTED, InterruptedTuningError, TuneObservers, Tuning, predicted_in_helper
from probe.config.capacity import CONFIGURATION
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError, KneewatchError
from probe.core.result import CapacityResult, Phase
from probe.monitor.startup_flags import with_flags
from probe.report.files import write_file
from probe.report.progress import ProgressView, following
from probe.report.result_text import capacity_words
from probe.report.tune_markdown import tune_markdown
from probe.report.tune_record import TuneRecord, tune_json
from probe.runtime import event_loop
from probe.runtime.descriptors import raise_descriptor_limit

MARKDOWN, JSON = "decision.md", "decision.json"


@dataclass(frozen=True, slots=True)
class TuneRun:
    """What is tuned: knobs of a server, by these capacity runs, and the folder of the record."""

    knobs: Sequence[KnobValues]
    server: TunedServer
    config: Config
    target: TargetConfig
    request: RunRequest
    folder: Path
    measure_all: bool = False


class Interruption:
    """What ends a tuning from outside: a signal stops the run that is under way, or else cancels the task."""

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self._task = task
        self._run: CapacityRun | None = None
        self.has_come = False

    def come(self) -> None:
        """End it. Only the first time counts: a server is being stopped meanwhile."""
        if self.has_come:
            return
        self.has_come = True
        if self._run is not None:
            self._run.stop(INTERRUPTED, "signal")
        else:
            self._task.cancel()

    @contextmanager
    def of_run(self, run: CapacityRun) -> Iterator[None]:
        """Stop this run while the block lasts."""
        self._run = run
        try:
            yield
        finally:
            self._run = None


def tune(run: TuneRun, record: TuneRecord, *, on_stderr: bool) -> TuneRecord:
    """Run it, and return the record; that so far, if a signal ends it. The folder has it after each step.

    Raises ConfigError where the folder cannot be written, and TargetError where the base cannot be measured.
    """
    raise_descriptor_limit()
    write_record(run.folder, record)
    with following(on_stderr=on_stderr) as follow:
        return event_loop.run(_tuned(run, record, follow))


def write_record(folder: Path, record: TuneRecord) -> None:
    """Write both files of the record. Raises ConfigError."""
    import json

    write_file(folder / MARKDOWN, tune_markdown(record), "--out")
    write_file(folder / JSON, json.dumps(tune_json(record), indent=1) + "\n", "--out")


def make_folder(folder: Path) -> None:
    """Create the folder for a record. Raises ConfigError, also for one that has a record."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_used = (folder / JSON).exists()
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be created ({error.strerror}); choose another folder") from None
    if is_used:
        raise ConfigError(f"--out {folder}: has the record of another tuning; choose another folder")


async def _tuned(run: TuneRun, record: TuneRecord, follow: ProgressView) -> TuneRecord:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - within a coroutine there is one
    interruption = Interruption(task)
    on_signals(interruption.come)
    note = partial(_note, follow)
    observers = TuneObservers(partial(write_record, run.folder), note, lambda: interruption.has_come)
    measure = partial(_measured, run, interruption, follow)
    tuning = Tuning(run.server, measure, predicted_in_helper, record, run.folder, observers)
    try:
        await tuning.run(run.knobs, measure_all=run.measure_all)
    except (InterruptedTuningError, asyncio.CancelledError):
        task.uncancel()
        tuning.record = replace(tuning.record, ended_by=INTERRUPTED)
    except KneewatchError as error:
        tuning.record = replace(tuning.record, ended_by=str(error))
        raise
    finally:
        write_record(run.folder, tuning.record)
        await _restore(run, tuning.record.settings)
    return tuning.record


async def _restore(run: TuneRun, settings: Settings) -> None:
    """Leave a server that goes on with the settings chosen so far."""
    try:
        await run.server.restore(settings, run.folder / "last.log")
    except StartError as error:
        print_error(error)


async def _measured(
    run: TuneRun, interruption: Interruption, follow: ProgressView, settings: Settings
) -> CapacityResult:
    result = await ramp_target(
        run.config,
        stated(run.target, settings),
        run.request,
        SystemClock(),
        follow.step,
        on_phase=follow.phase,
        on_broken=print_error,
        interrupts=interruption.of_run,
    )
    if result.stopped.by != INTERRUPTED:
        words = capacity_words(result.capacity) or f"no capacity: {result.capacity.reason}"
        follow.console.print(f"  {words}; {result.capacity.mode}", markup=False)
    return result


def stated(target: TargetConfig, settings: Mapping[str, str]) -> TargetConfig:
    """Return the target with these settings as flags of its server."""
    return with_flags(target, server_flags(settings), CONFIGURATION)


def _note(follow: ProgressView, words: str) -> None:
    follow.phase(Phase(words))
    follow.console.print(words, markup=False)
