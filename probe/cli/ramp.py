"""`kneewatch ramp` behind its options: the request, the run with its progress, and the files with the result."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from probe.capacity.run.job import Budget
from probe.capacity.run.plan import StepSettings
from probe.cli.commands import RampRequest, ramp_target
from probe.cli.output import print_error
from probe.cli.step_options import StepOptions, steps
from probe.cli.trace_options import check_budget, named_trace
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError
from probe.core.request import Api
from probe.core.result import CapacityResult
from probe.core.step import StepSummary
from probe.core.text import one_line
from probe.report.files import STDOUT, check_writable, write_file
from probe.report.progress import following
from probe.report.result_json import dumps
from probe.report.result_text import result_words
from probe.runtime import event_loop
from probe.runtime.descriptors import raise_descriptor_limit


@dataclass(frozen=True, slots=True)
class RampOptions:
    """Options of a capacity run besides its load levels. None: as configured; for `workers`, as the cores allow."""

    workload: str | None
    max_seconds: float | None
    max_tokens: int | None
    seed: int
    workers: int | None
    is_guarded: bool
    by_stream: bool = False
    command: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files for the result. `base_url`: the server, where no configuration names it."""

    json_file: Path | None
    html_file: Path | None
    base_url: str | None

    def check(self) -> None:
        """Check, before minutes of load, that the files can be written. Raises ConfigError."""
        if self.json_file == self.html_file == STDOUT:
            raise ConfigError("JSON and --html -: standard output takes one of them; write the other one to a file")
        for option, file in (("-o", self.json_file), ("--html", self.html_file)):
            if file:
                check_writable(file, option)

    def write(self, result: CapacityResult) -> None:
        """Write each file, whether or not the other can be written. Raises ConfigError with a line for each problem."""
        problems = []
        for option, file, text in (("-o", self.json_file, _json), ("--html", self.html_file, self._html)):
            if file:
                try:
                    write_file(file, text(result), option)
                except ConfigError as error:
                    problems.append(str(error))
        if problems:
            raise ConfigError("\n".join(problems))

    def _html(self, result: CapacityResult) -> str:
        from probe.report.html import report

        return report(result, urlsplit(self.base_url).netloc if self.base_url else None)


def _json(result: CapacityResult) -> str:
    return dumps(result, indent=1) + "\n"


def json_output(out: Path | None, extra: Sequence[str], *, as_json: bool) -> Path | None:
    """Return where the result is written as JSON. `extra`: the file of `--json FILE`, which -o replaces.

    Raises ConfigError.
    """
    if extra[0 if not as_json else 1 :]:
        raise ConfigError(f"unexpected argument {one_line(extra[-1])}; ramp takes options only, see kneewatch ramp -h")
    if out is not None and as_json:
        raise ConfigError("--json, -o: expected one of them; --json prints the result, and -o FILE writes it")
    return out or (Path(extra[0]) if extra else STDOUT if as_json else None)


def ramp_request(config: Config, target: TargetConfig, load: StepOptions, options: RampOptions) -> RampRequest:
    """Return the request by the options and, for the rest, the configuration. Raises ConfigError."""
    capacity, budget = target.capacity, target.capacity.budget
    seconds = options.max_seconds or budget.seconds
    trace = named_trace(options.trace) if options.trace is not None else None
    chosen = steps(load, capacity, trace.trace if trace is not None else None)
    tokens = options.max_tokens or budget.tokens_per_run
    if chosen.replay is not None:
        check_budget(chosen.replay, seconds, tokens)
    by_stream = options.is_guarded and (options.by_stream or capacity.guard == "stream")
    if by_stream and config.objectives_of(target).ttft is None:
        raise ConfigError("--stream-guard: judges waits for the first token, and no objective promises one; add ttft")
    workload = config.workload_name(options.workload) or capacity.workload or target.canary.workload
    _check_generates(config.workload(workload).api, chosen)
    return RampRequest(
        steps=chosen,
        workload=workload,
        budget=Budget(
            tokens=tokens,
            seconds=seconds,
            # Without the guard, the point is to measure beyond the knee.
            over_objective_seconds=budget.over_objective_seconds if options.is_guarded else seconds,
        ),
        is_guarded=options.is_guarded,
        seed=options.seed,
        workers=options.workers,
        by_stream=by_stream,
        command=options.command,
        facts=options.facts,
        trace=trace,
    )


def _check_generates(api: Api, chosen: StepSettings) -> None:
    """Raise ConfigError for what needs tokens, where the API generates none."""
    if api.generates:
        return
    if chosen.replay is not None:
        raise ConfigError(f"--trace: has answers, and api {api.value} generates no tokens; use --rates")
    if chosen.concurrency is None and chosen.rates is None:
        raise ConfigError(
            f"a search models generated tokens, and api {api.value} has none; add --rates or --concurrency (in a"
            " configuration: capacity.rates or capacity.concurrency)"
        )


def measure(config: Config, target: TargetConfig, request: RampRequest, files: ResultFiles) -> bool:
    """Run the request, and print and write the result. Return whether a capacity was found.

    Raises ConfigError where a file, OSError where standard output cannot be written; the result then is in the others.
    """
    files.check()
    raise_descriptor_limit()
    result = None
    try:
        with following(on_stderr=STDOUT in (files.json_file, files.html_file)) as follow:
            on_step, clock = partial(_print_or_end, follow.step), SystemClock()
            result = event_loop.run(
                ramp_target(config, target, request, clock, on_step, on_phase=follow.phase, on_broken=print_error)
            )
        follow.console.print(f"\n{result_words(result)}", markup=False)
    finally:
        if result is not None:
            files.write(result)
    return result.capacity.requests_per_second is not None


def _print_or_end(print_row: Callable[[StepSummary], None], step: StepSummary) -> None:
    """Print the row of a step. Where the reader has gone, such as `head`, end the run as Ctrl-C does."""
    try:
        print_row(step)
    except (OSError, SystemExit):  # rich makes a broken pipe a SystemExit
        signal.raise_signal(signal.SIGINT)
