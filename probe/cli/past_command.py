"""`kneewatch doctor --prometheus` behind its options: the text or JSON, and the exit status."""

from collections.abc import Sequence

import typer

from probe.cli.options import configuration, duration_of
from probe.cli.output import print_json
from probe.cli.parameters import ObjectiveOptions, PastOptions
from probe.cli.past import diagnose_past
from probe.cli.planning import prometheus_of
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError, TargetError
from probe.observe.past_verdict import Health
from probe.report.past_diagnosis import PastDiagnosis, past_json, past_words
from probe.report.progress import following
from probe.runtime import event_loop
from probe.runtime.logs import configure_logs

_USUAL = "24h"
_LEAST_S, _MOST_S = 3600.0, 7 * 86400.0


def examine_past(
    asked: PastOptions, objectives: ObjectiveOptions, beside: Sequence[str], *, fail_on: str, as_json: bool
) -> int:
    """Print the diagnosis of every server, and return the exit status. `beside`: options that do not belong here."""
    configure_logs(quiet=True)
    if beside:
        raise ConfigError(f"{beside[0]}, --prometheus: a server, or all in a Prometheus; remove one")
    seconds = duration_of(asked.since or _USUAL, "--since")
    if not _LEAST_S <= seconds <= _MOST_S:
        raise ConfigError(f"--since {asked.since}: expected a duration of 1h to 7d")
    promised = configuration(None, "http://localhost", objectives=objectives)
    config = prometheus_of(asked.prometheus or "", ())
    wanted = promised.objectives_of(promised.servers[0])
    try:
        with following() as follow:
            found = event_loop.run(
                diagnose_past(config, asked.match or "", seconds, wanted, SystemClock(), follow.phase)
            )
    except TargetError as error:
        if "prometheus." not in str(error).removeprefix(config.url) or asked.prometheus != config.url:
            raise
        raise TargetError(f"{error} (in a file.yml with that section, for --prometheus)", error.outcome) from None
    if as_json:
        print_json(past_json(found))
    else:
        typer.echo(past_words(found))
    return _status(fail_on, found)


def _status(fail_on: str, found: PastDiagnosis) -> int:
    """Return 0 for all healthy, 1 for one that is not, and 2 where none of them can be judged."""
    if fail_on == "never":
        return 0
    if fail_on == "problems" and any(finding.is_problem for one in found.servers for finding in one.settings):
        return 1
    if found.count(Health.NO) or found.count(Health.AT_TIMES):
        return 1
    return 0 if found.count(Health.YES) else 2
