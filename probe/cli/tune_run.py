"""`kneewatch tune` behind its options: the runs with their progress, the signals that end them, the record's files."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import typer

from probe.capacity.model.knobs import Knob
from probe.capacity.run.request import RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.cli.check import with_timeout
from probe.cli.command_line import secrets_in
from probe.cli.options import check_address, configuration, duration_of, timeout_of
from probe.cli.output import print_error, print_json
from probe.cli.parameters import LengthOptions, ObjectiveOptions, ServerOptions
from probe.cli.planning import predicted_knobs
from probe.cli.ramp import note_short_limits, ramp_target
from probe.cli.ramp_command import RampOptions, run_request
from probe.cli.targets import one_target
from probe.cli.tune_command import TuneOptions
from probe.cli.tune_knobs import KnobValues, check_base, has_place, in_effect, server_flags, with_settings
from probe.cli.tuned_server import AppliedServer, Readiness, Settings, StartedServer, TunedServer, words_of
from probe.cli.tuning import (
    INTERRUPTED,
    InterruptedTuningError,
    TuneObservers,
    Tuning,
    predicted_in_helper,
    predictions,
    settings_of,
)
from probe.config.capacity import CONFIGURATION
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError, KneewatchError
from probe.core.file_output import append_to_file
from probe.core.redactor import SECRETS
from probe.core.result import CapacityResult, Phase
from probe.core.text import one_line
from probe.core.vllm_command import vllm_flags
from probe.monitor.startup_flags import with_flags
from probe.report.figures import number
from probe.report.files import write_file
from probe.report.measured_file import read_result
from probe.report.progress import ProgressView, following
from probe.report.result_text import capacity_words, no_capacity_words
from probe.report.tune_markdown import plan_words, tune_markdown
from probe.report.tune_record import SKIPPED, KnobDecision, TuneRecord, tune_json
from probe.runtime import event_loop
from probe.runtime.ending import act_on_signals
from probe.runtime.kept_program import free_port
from probe.runtime.process import raise_descriptor_limit

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
        self._restoring: str | None = None

    def is_over(self, restoring: str) -> None:
        """Interrupt nothing from now on: the server is being restored, which these words say."""
        self._restoring = restoring

    def interrupt(self) -> None:
        """End it. Only the first time counts: a server is being stopped meanwhile."""
        if self._restoring:
            _say(self._restoring)
        if self.has_come or self._restoring is not None:
            return
        self.has_come = True
        if self._run is not None:
            self._run.stop(INTERRUPTED, "signal")
        else:
            self._task.cancel()

    @contextmanager
    def during(self, run: CapacityRun) -> Iterator[None]:
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
    note_short_limits(run.config, run.target, run.request)
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
    act_on_signals(interruption.interrupt)
    note = partial(_note, follow)
    observers = TuneObservers(partial(write_record, run.folder), note, lambda: interruption.has_come)
    measure = partial(_measured, run, interruption, follow)
    tuning = Tuning(run.server, measure, predicted_in_helper, record, run.folder, observers)
    try:
        await tuning.run(run.knobs, measure_all=run.measure_all)
    except (InterruptedTuningError, asyncio.CancelledError):
        task.uncancel()
        tuning.record = replace(tuning.record, ended_by=INTERRUPTED)
    except BaseException as error:
        why = str(error) if isinstance(error, KneewatchError) else one_line(repr(error))
        tuning.record = replace(tuning.record, ended_by=why)
        raise
    finally:
        await _restore(run, tuning.record.settings, interruption)  # first: the record may not be writable
        _write_last(run.folder, tuning.record)
    return tuning.record


def _write_last(folder: Path, record: TuneRecord) -> None:
    """Write the record. Where something else has failed before, that remains the error."""
    try:
        write_record(folder, record)
    except ConfigError as error:
        if record.ended_by in (None, INTERRUPTED):
            raise
        if record.ended_by != str(error):
            print_error(error)


async def _restore(run: TuneRun, settings: Settings, interruption: Interruption) -> None:
    """Leave a server that goes on with the settings chosen so far, and say which it has."""
    within_s = run.server.restored_within_s
    if within_s is None:
        interruption.is_over("")
        return
    words = ", ".join(f"{name}={value}" for name, value in settings.items())
    restoring = f"Setting the server to {words}, for at most {number(within_s)} s; nothing interrupts that but SIGKILL."
    interruption.is_over(restoring)
    _say(restoring)
    try:
        await run.server.restore(settings, _last_log(run.folder, restoring))
    except Exception as error:  # noqa: BLE001 - whatever it is: the server's setting must be said
        print_error(error if isinstance(error, KneewatchError) else KneewatchError(one_line(repr(error))))
        print_error(KneewatchError(f"the server may have another setting than {words}; apply that yourself"))
    else:
        _say(f"The server has {words}.")


def _last_log(folder: Path, begins: str) -> Path:
    """Return the file for what the commands print; none where nothing can be written, so that they do not fail."""
    log = folder / "last.log"
    try:
        append_to_file(log, f"{begins}\n".encode())
    except OSError:
        return Path(os.devnull)
    return log


def _say(words: str) -> None:
    with suppress(OSError):  # the terminal has gone
        typer.echo(words, err=True)


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
        interrupts=interruption.during,
    )
    if result.stopped.by != INTERRUPTED:
        found = capacity_words(result.capacity)
        words = f"{found}; {result.capacity.mode}" if found else f"no capacity: {no_capacity_words(result)}"
        follow.console.print(f"  {words}", markup=False)
    return result


def stated(target: TargetConfig, settings: Mapping[str, str]) -> TargetConfig:
    """Return the target with these settings as flags of its server."""
    return with_flags(target, server_flags(settings), CONFIGURATION)


def _note(follow: ProgressView, words: str) -> None:
    follow.phase(Phase(words))
    follow.console.print(words, markup=False)


_HOST = "--host"


def run_of(options: TuneOptions, knobs: Sequence[KnobValues], command: str) -> TuneRun:
    """Return what the options ask for; `command`: the command line, for the results. Raises ConfigError."""
    timeout_s = duration_of(options.start_timeout, "--start-timeout")
    limit_s = timeout_of(options.timeout)
    check(options, knobs)
    # A server that is started here is on loopback.
    base_url = options.base_url or f"http://127.0.0.1:{options.port or free_port()}"
    asked = RampOptions(
        base_url=base_url,
        server=ServerOptions(
            model=options.model,
            api=options.api,
            api_key_file=options.api_key_file,
            header=options.header,
            ca_file=options.ca_file,
        ),
        observe=options.observe,
        workload=options.workload,
        lengths=LengthOptions(options.prompt_tokens, options.output_tokens),
        objectives=ObjectiveOptions(ttft=options.ttft, tpot=options.tpot, e2e=options.e2e, ratio=options.ratio),
        max_seconds=options.max_seconds,
        max_tokens=options.max_tokens,
        seed=options.seed,
        note=options.note,
    )
    config = configuration(None, base_url, asked.server, asked.lengths, asked.objectives)
    target = with_timeout(one_target(config, None, adds_load=True), limit_s)
    request = run_request(config, target, asked, command)
    server = _server(options, base_url, timeout_s)
    return TuneRun(knobs, server, config, target, request, options.out, options.measure_all)


def check(options: TuneOptions, knobs: Sequence[KnobValues]) -> None:
    """Raise ConfigError for options that do not fit together, or a command that cannot be run."""
    if (options.start is None) == (not options.apply):
        raise ConfigError("expected either --start COMMAND or --apply COMMAND; give one of them")
    if options.ready_url is not None:
        check_address(options.ready_url, "--ready-url", "http://127.0.0.1:8000/health")
    if options.start is not None:
        _check_start(options, knobs, options.start)
        return
    if options.base_url is None:
        raise ConfigError("--apply: needs --base-url, the address of the server that it changes; add it")
    words = [words_of(text, "--apply") for text in options.apply or ()]
    names = list(settings_of(knobs))
    for name in names:
        if not any(has_place(each, name, is_only=len(names) == 1) for each in words):
            only = " or {value}" if len(names) == 1 else ""
            raise ConfigError(f"--apply: has no place for {name}; put {{{name}}}{only} where it goes")


def _check_start(options: TuneOptions, knobs: Sequence[KnobValues], start: str) -> None:
    words = words_of(start, "--start")
    if options.base_url is not None:
        raise ConfigError("--base-url: belongs to --apply, for a server that runs elsewhere; with --start, use --port")
    if options.port is None and "{port}" not in start:
        raise ConfigError("--start: has no {port}; put it where the server's port goes, or name its port with --port")
    check_base(words, knobs)
    with_settings(words, settings_of(knobs))
    is_vllm = bool(vllm_flags(words, [], {}))
    if is_vllm and not options.any_host and not any(word.partition("=")[0] == _HOST for word in words):
        raise ConfigError(
            "--start: vLLM listens on every address of this machine by default; add --host 127.0.0.1 to the"
            " command, or allow it with --any-host"
        )


def _server(options: TuneOptions, base_url: str, timeout_s: float) -> TunedServer:
    texts = [options.start] if options.start is not None else options.apply or []
    option = "--start" if options.start is not None else "--apply"
    commands = [words_of(text, option) for text in texts]
    for secret in (secret for words in commands for secret in secrets_in(words)):
        SECRETS.add(secret)
    url = options.ready_url or f"{base_url.rstrip('/').removesuffix('/v1')}/health"
    ready = Readiness(url, timeout_s)
    if options.start is None:
        return AppliedServer(commands, ready)
    return StartedServer(commands[0], int(base_url.rpartition(":")[2]), ready, options.any_host)


def print_plan(run: TuneRun, file: Path | None, tolerance: float | None) -> None:
    """Print what a result of the base predicts, and what the measurements would cost. Raises ConfigError."""
    result = read_result(file) if file is not None else None
    decisions = [_planned(knob, result, file, tolerance) for knob in run.knobs] if result is not None else []
    if decisions:
        typer.echo("Predicted by the simulated copy of the base's server:")
        typer.echo(plan_words(decisions))
    else:
        typer.echo("Nothing is predicted without a result of the base: --result FILE, of `kneewatch ramp --json`.")
    skipped = sum(one.verdict == SKIPPED for each in decisions for one in each.values)
    runs = 1 + sum(len(knob.values) for knob in run.knobs) - skipped
    budget = run.request.budget
    most = f"at most {number(runs * budget.seconds)} s and {runs * budget.tokens:,} tokens"
    about = (
        f", about {number(runs * result.cost.seconds)} s and {runs * result.cost.tokens:,} tokens by this result"
        if result is not None
        else ""
    )
    typer.echo(f"Cost: {runs} capacity runs{about}; {most} by their budgets, besides {runs} starts of the server")


def print_record(record: TuneRecord, folder: Path, *, as_json: bool) -> None:
    """Print the record, and say where it is."""
    if as_json:
        print_json(tune_json(record))
        return
    typer.echo(tune_markdown(record))
    typer.echo(f"wrote {folder / MARKDOWN}, with the results and the server's output")


def _planned(knob: KnobValues, result: CapacityResult, file: Path | None, tolerance: float | None) -> KnobDecision:
    stored, base = result.capacity.fitted_server, knob.values[0]
    limit = in_effect(knob.name, int(base), result.context.flags) if knob.name == "max_num_seqs" else None
    if stored is not None and limit is not None and stored.max_num_seqs not in (None, limit):
        raise ConfigError(
            f"--result {file}: measured max_num_seqs {stored.max_num_seqs}, but the base is {base}; put that first"
        )

    async def predict(result: CapacityResult, knobs: Sequence[Knob]) -> Sequence[Knob]:
        return predicted_knobs(result, knobs)

    return KnobDecision(knob.name, tuple(event_loop.run(predictions(knob, result, predict, tolerance))))
