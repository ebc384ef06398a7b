"""`kneewatch ramp` behind its options: the request, the run with its progress, and the files with the result."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from probe.capacity.run.request import RunRequest
from probe.cli.commands import ramp_target
from probe.cli.output import print_error
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError
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


def measure(config: Config, target: TargetConfig, request: RunRequest, files: ResultFiles) -> bool:
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
