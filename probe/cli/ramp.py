"""`kneewatch ramp` behind its options: the request, the run with its progress, and the files with the result."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from probe.capacity.run.job import Budget
from probe.cli.commands import RampRequest, ramp_target
from probe.cli.options import check_writable
from probe.cli.output import print_error
from probe.cli.step_options import StepOptions, steps
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.clock import SystemClock
from probe.core.result import CapacityResult
from probe.report.progress import following
from probe.report.result_json import dumps
from probe.report.result_text import result_words


@dataclass(frozen=True, slots=True)
class RampOptions:
    """Options of a capacity run besides its load levels. None: as configured; for `workers`, as the cores allow."""

    workload: str | None
    max_seconds: float | None
    max_tokens: int | None
    seed: int
    workers: int | None
    is_guarded: bool


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files for the result. `base_url`: the server, where no configuration names it."""

    json_file: Path | None
    html_file: Path | None
    base_url: str | None

    def check(self) -> None:
        """Check, before minutes of load, that the files can be written. Raises ConfigError."""
        check_writable(self.json_file)
        check_writable(self.html_file, "--html")

    def write(self, result: CapacityResult) -> None:
        if self.json_file:
            self.json_file.write_text(dumps(result, indent=1) + "\n")
        if self.html_file:
            from probe.report.html import report

            address = urlsplit(self.base_url).netloc if self.base_url else None
            self.html_file.write_bytes(report(result, address).encode("utf-8", "replace"))


def ramp_request(config: Config, target: TargetConfig, load: StepOptions, options: RampOptions) -> RampRequest:
    """Return the request by the options and, for the rest, the configuration. Raises ConfigError."""
    capacity, budget = target.capacity, target.capacity.budget
    seconds = options.max_seconds or budget.seconds
    return RampRequest(
        steps=steps(load, capacity),
        workload=config.workload_name(options.workload) or capacity.workload or target.canary.workload,
        budget=Budget(
            tokens=options.max_tokens or budget.tokens_per_run,
            seconds=seconds,
            # Without the guard, the point is to measure beyond the knee.
            over_objective_seconds=budget.over_objective_seconds if options.is_guarded else seconds,
        ),
        is_guarded=options.is_guarded,
        seed=options.seed,
        workers=options.workers,
    )


def measure(config: Config, target: TargetConfig, request: RampRequest, files: ResultFiles) -> bool:
    """Run the request, and print and write the result. Return whether a capacity was found."""
    files.check()
    with following() as follow:
        result = uvloop.run(
            ramp_target(config, target, request, SystemClock(), follow.step, on_phase=follow.phase, on_lost=print_error)
        )
    files.write(result)
    follow.console.print(f"\n{result_words(result)}", markup=False)
    return result.capacity.requests_per_second is not None
