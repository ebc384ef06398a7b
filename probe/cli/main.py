"""The command line: commands are registered here, and errors become one line and an exit status.

Exit status: 0 done, or objectives met; 1 objectives missed, no knee found, or worse than the base; 2 could not do it
(one line on standard error says why); 128 and its number where a signal ended it. Commands import what they need when
they run, so that --help stays quick.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer
from typer.main import get_command

from probe import __version__, simulator
from probe.cli import (
    config_commands,
    demo_commands,
    matrix,
    ramp_command,
    result_commands,
    server_commands,
    tune_command,
)
from probe.cli.help import Command, Group
from probe.cli.output import NAME, discard_output, open_closed_streams, print_error
from probe.core.errors import KneewatchError
from probe.core.text import one_line
from probe.runtime.ending import EndedBySignal, heeded

# The base class of usage errors in the click that Typer uses: newer versions bring their own, older ones import it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

_GIT_S = 5.0  # for the commit of a checkout
# Errors of writing to a file or terminal.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

app = typer.Typer(
    cls=Group,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="SLO monitor and capacity probe for live vLLM deployments.",
    epilog="Variables set options too: KNEEWATCH_RAMP_SEED is --seed of ramp.",
)
# The groups of `kneewatch --help`.
_WATCH, _MEASURE, _RESULTS, _SET_UP, _TRY = "Watch", "Measure", "Results", "Set up", "Try"
_CONFIG = "kneewatch.yml"
_SERVER = "http://localhost:8000"


def _add(function: Callable[..., None], group: str | None, *examples: str, to: typer.Typer = app, **more: Any) -> None:  # noqa: ANN401
    """Add the command with its examples, below its group's heading in the help."""
    to.command(cls=Command, rich_help_panel=group, epilog="\n".join(examples), **more)(function)


_add(server_commands.run, _WATCH, f"kneewatch run -c {_CONFIG}")
_add(
    server_commands.check,
    _WATCH,
    f"kneewatch check {_SERVER}",
    f"kneewatch check -c {_CONFIG} --target llama-8b",
    short_help="Send one canary of each kind to each target.",
)
_add(
    server_commands.doctor,
    _WATCH,
    f"kneewatch doctor {_SERVER}",
    f"kneewatch doctor {_SERVER} --write {_CONFIG}",
    "kneewatch doctor --prometheus http://prometheus:9090 --since 24h",
    short_help="Examine a server: what it serves, whether it is healthy, what limits it.",
)
_add(
    ramp_command.ramp,
    _MEASURE,
    f"kneewatch ramp {_SERVER} -o result.json",
    f"kneewatch ramp {_SERVER} --rates 1,2,4 --html result.html",
    f"kneewatch ramp -c {_CONFIG} --target llama-8b",
    context_settings={"allow_extra_args": True},  # the file of `--json FILE`
)
_add(
    matrix.matrix,
    _MEASURE,
    f"kneewatch matrix {_SERVER} -o matrix/",
    f"kneewatch matrix {_SERVER} --rows A,E --no-guard",
    short_help="Measure the usual benchmark matrix, rows A to F, with one report.",
)
_add(
    server_commands.forecast,
    _MEASURE,
    f"kneewatch forecast {_SERVER}",
    f"kneewatch forecast -c {_CONFIG} --target llama-8b --history 6h",
)
_add(
    tune_command.tune,
    _MEASURE,
    "kneewatch tune --start 'vllm serve MODEL --port {port}' --knob max_num_seqs=256,128",
    short_help="Find the best value of a vLLM setting, for a server of your own.",
)
_add(
    result_commands.trace,
    _MEASURE,
    "kneewatch trace azure.csv -o lengths.jsonl",
    short_help="Describe a recorded trace, and write it without text.",
)
_add(
    result_commands.compare,
    _RESULTS,
    "kneewatch compare before.json after.json",
    short_help="Compare two results of ramp or of other benchmarks.",
)
_add(
    result_commands.table,
    _RESULTS,
    "kneewatch table results/ --steps",
    short_help="Print results of ramp as one table.",
)
_add(
    result_commands.plan,
    _RESULTS,
    "kneewatch plan result.json --peak 40",
    short_help="Plan replicas for a peak from results of ramp.",
)
_add(
    result_commands.roofline,
    _RESULTS,
    "kneewatch roofline --gpu H100 --params 8B --model-config config.json",
    short_help="Compute what a model can do at most on its GPUs.",
)
config_app = typer.Typer(cls=Group, help="Check or print a configuration.")
_add(config_commands.check, None, f"kneewatch config check -c {_CONFIG}", to=config_app)
_add(config_commands.show, None, f"kneewatch config show -c {_CONFIG}", to=config_app)
_add(config_commands.schema, None, "kneewatch config schema > kneewatch.schema.json", to=config_app)
app.add_typer(config_app, name="config", rich_help_panel=_SET_UP)
_add(
    config_commands.dashboards,
    _SET_UP,
    f"kneewatch dashboards -c {_CONFIG} -o dashboards",
    short_help="Write the Grafana dashboards.",
)
_add(
    config_commands.alerts,
    _SET_UP,
    f"kneewatch alerts -c {_CONFIG} -o rules",
    short_help="Write the Prometheus alert rules.",
)
_add(
    demo_commands.demo,
    _TRY,
    "kneewatch demo",
    short_help="Show everything against a mock server, for a minute.",
)
_add(demo_commands.sim, _TRY, "kneewatch sim --port 8000", short_help="Run a mock vLLM server.")


def command() -> Any:  # noqa: ANN401 - of click, or of the one that Typer brings
    """Return the command `kneewatch`, with the variables that its options are read from."""
    group = get_command(app)
    _name_variables(group, NAME.upper())
    return group


def _name_variables(command: Any, prefix: str) -> None:  # noqa: ANN401
    """Name each option's variable by its command and itself: KNEEWATCH_RAMP_MAX_TOKENS."""
    for option in command.params:
        names = [name for name in option.opts if name.startswith("--")]
        if names and option.allow_from_autoenv and option.expose_value and not option.is_eager:
            option.envvar = f"{prefix}_{_variable(names[0])}"
            option.show_envvar = False  # help would double; the end of `kneewatch --help` has the rule
    for name, inner in getattr(command, "commands", {}).items():
        _name_variables(inner, f"{prefix}_{_variable(name)}")


def _variable(name: str) -> str:
    return name.removeprefix("--").upper().replace("-", "_")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `kneewatch` command with these arguments, or the process's own. Always raises SystemExit."""
    open_closed_streams()
    try:
        with heeded():
            _run(list(arguments if arguments is not None else sys.argv[1:]))
    except EndedBySignal as ended:
        discard_output()
        sys.exit(ended.status)
    finally:
        if arguments is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from Ctrl-C while the interpreter ends


def _run(given: list[str]) -> None:
    try:
        sys.exit(command()(given, prog_name=NAME, standalone_mode=False, obj=given))
    except KneewatchError as error:
        print_error(error)
        sys.exit(2)
    except _UsageError as error:
        _print_usage_error(error)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        discard_output()
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has gone, such as `head`
        discard_output()
        sys.exit(1)
    except OSError as error:
        discard_output()
        print_error(KneewatchError(_os_error_words(error)))
        sys.exit(2)


@app.callback()
def kneewatch(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version, and whether the simulator is compiled.", is_eager=True),
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(
            case_sensitive=False,
            help="Least severe lines of the log. Default: info for run, warning for other commands.",
        ),
    ] = None,
    log_format: Annotated[
        Literal["json", "text"] | None,
        typer.Option(case_sensitive=False, help="Format of the log. Default: text on a terminal, else json."),
    ] = None,
) -> None:
    if version:
        known = _commit()
        typer.echo(f"{NAME} {__version__}{f' ({known})' if known else ''}")
        typer.echo(f"simulator: {simulator.KIND}")
        raise typer.Exit
    # runtime/logs.py reads them, as do the processes that this one starts.
    chosen = {"KNEEWATCH_LOG_LEVEL": log_level, "KNEEWATCH_LOG_FORMAT": log_format}
    os.environ.update({name: value for name, value in chosen.items() if value is not None})
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit(2)


def _commit() -> str | None:
    """Return the commit noted at the build (hatch_build.py), or the checkout's, or None.

    `-dirty` follows it where files of the checkout differ.
    """
    import subprocess
    from contextlib import suppress
    from importlib.resources import files
    from pathlib import Path

    root = Path(__file__).parents[2]
    with suppress(OSError, ModuleNotFoundError):
        return files("kneewatch").joinpath("commit.txt").read_text(encoding="ascii").strip()
    if not (root / ".git").exists():
        return None
    ask = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_GIT_S, check=False)  # noqa: S603
        return done.stdout.strip() or None
    return None


def _os_error_words(error: OSError) -> str:
    """Return the error of the operating system on one line. Commands check their own files: this is the rest."""
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{one_line(str(error.filename))}: {why}"
    if error.errno in _OUTPUT_ERRORS:
        return f"standard output cannot be written ({why}); free space there, or send it elsewhere"
    return why


def _print_usage_error(error: Exception) -> None:
    """Print click's error on one line, without its usage text and box."""
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context else NAME
    message = one_line(error.format_message() if hasattr(error, "format_message") else str(error)).rstrip(".")
    option: Any = getattr(error, "param", None)
    source = context.get_parameter_source(option.name) if context and option is not None else None
    where = f" (from {option.envvar})" if source is not None and source.name == "ENVIRONMENT" else ""
    typer.echo(f"{command}: {message}{where}; see {command} --help", err=True)
