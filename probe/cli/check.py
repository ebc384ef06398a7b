"""`kneewatch check` behind its options: one canary, its text or JSON, and the exit status."""

import typer

from probe.cli.commands import check_target
from probe.cli.output import NAME, print_error
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core import objectives as slo
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.report.record_json import record_json, unmeasured_json
from probe.report.terminal import canary_words
from probe.runtime import event_loop

_MET, _MISSED, _NOT_MEASURED = 0, 1, 2


def check_one(
    config: Config, target: TargetConfig, server: str | None, *, is_printed: bool, is_named_in_errors: bool
) -> tuple[dict[str, object], int]:
    """Send one canary, of the target's `canary`. Return its JSON and the exit status.

    `server`: printed instead of the target's name.
    """
    clock, about = SystemClock(), f"{target.name}: " if is_named_in_errors else ""
    named = {"target": target.name, "workload": target.canary.workload}
    try:
        record = event_loop.run(
            check_target(config, target, clock, lambda note: typer.echo(f"{NAME}: {about}{note}", err=True))
        )
    except TargetError as error:
        print_error(error, about)
        answer = {**named, "model": None, **unmeasured_json(error, clock.wall_s()), "met": {}}
        return answer, _NOT_MEASURED
    objectives = config.objectives_of(target)
    met = slo.met(record, objectives)
    if is_printed:
        typer.echo(canary_words(record, objectives, server))
    answer = {**named, "model": record.model, **record_json(record), "met": dict(met)}
    return answer, _MET if record.outcome is Outcome.OK and met[slo.ALL] else _MISSED
