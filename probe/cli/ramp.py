"""`kneewatch ramp` behind its options: the run with its progress, what ends it, and the files with the result."""

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from probe.capacity.run.admission import Admission, firing_pages, preflight
from probe.capacity.run.request import RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import ServerAccess
from probe.capacity.run.service import Interrupts, RefusedError, RunObservers, run_capacity
from probe.cli.check import OPTION, asleep_error, require_active, served_model
from probe.cli.output import print_error
from probe.cli.targets import open_scraper
from probe.client.client import Client
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.config.time_limits import capacity_limits, capacity_timeout_s
from probe.core import reasons
from probe.core.clock import Clock, SystemClock
from probe.core.errors import ConfigError, KneewatchError, LockError, TargetError
from probe.core.request import Outcome
from probe.core.result import CapacityResult, Phase
from probe.core.step import StepSummary
from probe.core.text import one_line
from probe.core.time_limits import cannot_end
from probe.core.trace import trace_workload
from probe.core.workload import Workload
from probe.core.workload import longest as longest_lengths
from probe.load.request_source import RequestSource
from probe.monitor.capacity_workload import named_workload, workload_since_start
from probe.monitor.gpu_places import GpuPlace
from probe.monitor.gpu_readers import GpuReaders
from probe.monitor.startup_flags import StartupFlags
from probe.monitor.wiring import endpoint, lock
from probe.observe.guard import GO, GuardLimits
from probe.observe.server_observer import GpuReader
from probe.report.files import STDOUT, check_writable, write_file
from probe.report.progress import following
from probe.report.result_json import dumps
from probe.report.result_text import result_words
from probe.runtime import event_loop
from probe.runtime.ending import act_on_signals
from probe.runtime.helper_process import HelperError
from probe.runtime.process import raise_descriptor_limit
from probe.scrape.scraper import Scraper

_SCRAPE_S = 1.0
_NO_SCHEME = re.compile(r"localhost\b|(\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]{1,5}(/|$)")


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


def address_and_file(words: Sequence[str | None], *, as_json: bool) -> tuple[str | None, list[str]]:
    """Return the URL among the arguments, and the rest of them: the file of `--json FILE`. Raises ConfigError."""
    given = [word for word in words if word is not None]
    if as_json and (unclear := next(filter(_NO_SCHEME.match, given), None)):
        raise ConfigError(f"{one_line(unclear)}: is it a server? expected an address such as http://localhost:8000")
    url = next((word for word in given if not as_json or "://" in word), None)
    if url is not None:
        given.remove(url)
    return url, given


def json_output(out: Path | None, extra: Sequence[str], *, as_json: bool) -> Path | None:
    """Return where the result is written as JSON. `extra`: the file of `--json FILE`, which -o replaces.

    Raises ConfigError.
    """
    if extra[0 if not as_json else 1 :]:
        raise ConfigError(
            f"unexpected argument {one_line(extra[-1])}; ramp takes a URL and options, see kneewatch ramp -h"
        )
    if out is not None and as_json:
        raise ConfigError("--json, -o: expected one of them; --json prints the result, and -o FILE writes it")
    return out or (Path(extra[0]) if extra else STDOUT if as_json else None)


def measure(
    config: Config, target: TargetConfig, request: RunRequest, files: ResultFiles, place: GpuPlace | None = None
) -> int:
    """Run the request, and print and write the result. Return the command's exit status.

    Raises ConfigError where a file, OSError where standard output cannot be written; the result then is in the others.
    """
    files.check()
    note_short_limits(config, target, request)
    raise_descriptor_limit()
    result = None
    try:
        with following(on_stderr=STDOUT in (files.json_file, files.html_file)) as follow:
            on_step, clock = partial(_print_or_end, follow.step), SystemClock()
            result = event_loop.run(
                ramp_target(
                    config,
                    target,
                    request,
                    clock,
                    on_step,
                    on_phase=follow.phase,
                    on_broken=print_error,
                    place=place or GpuPlace(),
                )
            )
        follow.console.print(f"\n{result_words(result)}", markup=False)
    finally:
        if result is not None:
            files.write(result)
    if result.stopped.by == reasons.ENDED_BY_ERROR.word:
        return 2
    return 0 if result.capacity.requests_per_second is not None else 1


def _print_or_end(print_row: Callable[[StepSummary], None], step: StepSummary) -> None:
    """Print the row of a step. Where the reader has gone, such as `head`, end the run as Ctrl-C does."""
    try:
        print_row(step)
    except (OSError, SystemExit):  # rich makes a broken pipe a SystemExit
        signal.raise_signal(signal.SIGINT)


async def ramp_target(
    config: Config,
    target: TargetConfig,
    request: RunRequest,
    clock: Clock,
    on_step: Callable[[StepSummary], None],
    *,
    on_phase: Callable[[Phase], None] = lambda _: None,
    on_broken: Callable[[KneewatchError], None] = lambda _: None,
    interrupts: Interrupts | None = None,
    place: GpuPlace | None = None,
) -> CapacityResult:
    """Run a capacity run now. Ctrl-C ends the load, as do a lost Lease and a killed helper process (`on_broken`);
    the result so far is returned. `interrupts`: what stops the run instead of signals. `place`: where the GPUs are.

    Raises TargetError if the target cannot be measured or a check refuses the run, LockError if another prober loads
    it or the Lease was lost before the run, ConfigError if the target is passive.
    """
    require_active(target)
    results: list[CapacityResult] = []
    observers = RunObservers(on_result=lambda result, _: results.append(result), on_step=on_step, on_phase=on_phase)
    readers, stops = GpuReaders(clock), Stops(interrupts or stopped_by_signals)
    async with AsyncExitStack() as held:
        scraper = await held.enter_async_context(open_scraper(target, clock, _SCRAPE_S, stops.replicas_changed))
        held.push_async_callback(readers.close)
        target = await StartupFlags(target, scraper).update()
        load = await _load(config, target, request, scraper)
        sent = await _with_model(config, target, request, load, clock)
        read_gpus = readers.reader(target, config.prometheus, lambda: place or GpuPlace())
        await _note_gpus(read_gpus)
        try:
            return await run_capacity(
                lambda: sent,
                lock(config, target, clock),
                ServerAccess(scraper.read, read_gpus),
                clock,
                admit=partial(_admit, config, target, scraper, request),
                interrupts=stops.during,
                observers=observers,
            )
        except RefusedError as refused:
            raise _not_admitted(target, refused) from None
        except (LockError, HelperError) as error:
            has_sent = bool(results and results[0].cost.requests)
            if not results or (isinstance(error, HelperError) and not has_sent):
                raise
            on_broken(error)
            return results[0]


async def _note_gpus(read: GpuReader | None) -> None:
    """Say on stderr why the result will have no GPU."""
    if read is None:
        return
    try:
        if not (await read()).gpus:
            raise TargetError("none has the labels of gpu.labels (--gpu-label)", Outcome.UNREACHABLE)  # noqa: TRY301
    except TargetError as error:
        print_error(error, "the result has no GPUs while they cannot be read: ")


async def _load(config: Config, target: TargetConfig, request: RunRequest, scraper: Scraper) -> Workload:
    """Return the requested workload. Raises TargetError where users' requests define it and too few are known."""
    name, trace = request.workload, request.trace
    if trace is not None:
        return trace_workload(trace.trace, trace.name, config.workload(name).api)
    if not config.is_learnt(name):
        return named_workload(config, target, name)
    flags = target.capacity.server.startup_flags
    return workload_since_start(config, target, name, await scraper.read(), flags)


def note_short_limits(config: Config, target: TargetConfig, request: RunRequest) -> None:
    """Say which limits an answer cannot end within that is as slow as its objectives allow."""
    tokens = config.workload(request.workload).longest_answer
    if request.trace is not None:
        tokens = max(one.output_tokens for one in request.trace.trace.requests)
    for name, seconds in ((OPTION, capacity_timeout_s(target)), ("--max-seconds", request.budget.seconds)):
        words = cannot_end(request.objectives, tokens, seconds, f"{seconds:g} s") if seconds is not None else None
        if words is not None:
            print_error(KneewatchError(f"{name}: {words}"))


async def _with_model(
    config: Config, target: TargetConfig, request: RunRequest, load: Workload, clock: Clock
) -> tuple[RunRequest, RequestSource]:
    """Return the request with what the server shows of itself, and what to send to its model. Raises TargetError."""
    where = endpoint(target)
    trace = request.trace.trace if request.trace else None
    limits = capacity_limits(config, target, longest_lengths(load)[1], OPTION)
    async with Client(where, clock, limits) as client:
        model = await served_model(client, target, load, clock)
        aliases, longest = await client.aliases(model), await client.max_model_len(model)
    shown = {"max_model_len": str(longest)} if longest is not None else {}
    server, facts = target.capacity.server, {**shown, **request.facts}
    source = RequestSource(where, model, load, limits, request.seed, aliases, trace)
    return replace(request, server=server, facts=facts), source


def _not_admitted(target: TargetConfig, refused: RefusedError) -> TargetError:
    reason = reasons.find(reasons.REFUSALS, refused.verdict.reason)
    if reason is reasons.REFUSED_ASLEEP:
        return asleep_error(target)
    hint = f"; {reason.advice}" if reason is not None else ""
    return TargetError(f"{target.base_url}: no load was sent, {refused}{hint}", Outcome.REJECTED)


async def _admit(config: Config, target: TargetConfig, scraper: Scraper, request: RunRequest) -> Admission:
    """Check the server once. It has not been watched before, so no history is judged.

    Unguarded, only a server that sleeps is refused.
    """
    firing = firing_pages(config, target.name)
    verdict, server = await preflight(scraper.read, GuardLimits(), firing, by_stream=request.by_stream)
    return Admission(verdict if request.is_guarded or verdict.reason == reasons.REFUSED_ASLEEP.word else GO, server)


@contextmanager
def stopped_by_signals(run: CapacityRun) -> Iterator[None]:
    """Let signals end a run."""
    act_on_signals(partial(run.stop, "interrupt", "signal"))
    yield  # The handlers stay: a second Ctrl-C must not lose the result while the load ends.


class Stops:
    """What ends a run from outside: `interrupts`, and replicas that come or go."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._run: CapacityRun | None = None

    @contextmanager
    def during(self, run: CapacityRun) -> Iterator[None]:
        """Let them end this run while the block lasts."""
        self._run = run
        with self._interrupts(run):
            yield

    def replicas_changed(self, _: str) -> None:
        """End the run, if it has begun: what was measured is of two servers."""
        if self._run is not None:
            self._run.stop("guard", reasons.REPLICAS_CHANGED.word)
