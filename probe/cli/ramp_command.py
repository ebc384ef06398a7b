"""`kneewatch ramp`: its options, and the run that they ask for. Every ConfigError names its option.

An option is a field of RampOptions; it sets a field of RunRequest or StepSettings (capacity/run/request.py).
"""

import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli.output import NAME
from probe.cli.parameters import (
    NO_GPUS,
    NO_LENGTHS,
    NO_OBJECTIVES,
    NO_SERVER,
    Address,
    BaseUrl,
    GpuOptions,
    Json,
    LengthOptions,
    MaybeConfigFile,
    Note,
    ObjectiveOptions,
    OneTarget,
    ServerOptions,
    Timeout,
    duration_option,
    grouped,
)
from probe.core.errors import ConfigError
from probe.core.text import one_line

if TYPE_CHECKING:
    from probe.capacity.run.request import Replay, RunRequest, StepSettings
    from probe.config.capacity import CapacityConfig
    from probe.config.config import Config
    from probe.config.targets import TargetConfig
    from probe.core.request import Api
    from probe.core.trace import NamedTrace, Trace

_MAX_CONCURRENCY = 1024
_MAX_RATE = 10_000.0
_MAX_SPEED = 1000.0
_PATTERNS = ("poisson", "constant", "rising")
_MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class RampOptions:
    """The options of `kneewatch ramp`. None: as configured; for `workers`, as the cores allow."""

    url: Address = None
    config: MaybeConfigFile = None
    target: OneTarget = None
    base_url: BaseUrl = None
    server: ServerOptions = NO_SERVER
    gpus: GpuOptions = NO_GPUS
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Fixed steps in requests in flight (closed loop), such as 1,2,4,8.",
            metavar="N,N,...",
            rich_help_panel="Load",
        ),
    ] = None
    rates: Annotated[
        str | None,
        typer.Option(
            help="Fixed steps in requests/s (open loop), such as 0.5,1,2. Default: the configuration's; without fixed"
            " steps, Kneewatch searches for the knee.",
            metavar="RATE,RATE,...",
            rich_help_panel="Load",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Send requests with the lengths recorded in this file and, without --rates or --concurrency, at the"
            " recorded times. Reads JSONL of `kneewatch trace`, Mooncake, ShareGPT and vLLM's custom data sets, and CSV"
            " of BurstGPT and Azure.",
            rich_help_panel="Load",
        ),
    ] = None
    speeds: Annotated[
        str | None,
        typer.Option(
            help="With --trace: multiples of the recorded speed, such as 0.5,1,2; one step each. Default: 1.",
            metavar="NUMBER,...",
            rich_help_panel="Load",
        ),
    ] = None
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="With --rates: poisson, constant, or rising, whose rate rises from 0 in the first sixth of a step."
            " Default: the configuration's, or poisson.",
            metavar="PATTERN",
            rich_help_panel="Load",
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=100,
            help="With --rates: shape of gamma-distributed gaps; below 1 requests come in bursts, 1 is poisson.",
            rich_help_panel="Load",
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="With --rates: limit requests in flight; further ones wait, and the wait counts in TTFT. Without a"
            " limit, a step ends at 512. Default: the configuration's.",
            rich_help_panel="Load",
        ),
    ] = None
    observe: Annotated[
        float | None,
        duration_option(
            "Search only: how long to watch live traffic before adding load. Default: the configuration's, or 30s.",
            least="0s",
            most="1h",
            panel="Load",
        ),
    ] = None
    step_seconds: Annotated[
        float | None,
        duration_option(
            "Length of a fixed step; extended up to three times to reach 20 requests. A replayed trace"
            " runs to its end. Default: the configuration's, or 15s.",
            least="1s",
            most="1h",
            panel="Load",
        ),
    ] = None
    requests_per_step: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="End a fixed step after this many requests instead of after --step-seconds.",
            rich_help_panel="Load",
        ),
    ] = None
    confirm_seconds: Annotated[
        float | None,
        duration_option(
            "Before reporting, repeat the highest fixed step that met its objectives for this long, or 1000"
            " requests; 0: skip. Short steps overstate a capacity. Default: the configuration's, or 3m.",
            least="0s",
            most="1h",
            panel="Load",
        ),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option(
            help="A workload of the configuration, or a preset: short-chat, long-prefill, long-decode, mixed,"
            " prefix-cold, prefix-warm, varied-chat, conversation or production; or users, for the lengths that the"
            " server's metrics show.",
            metavar="NAME",
            rich_help_panel="Load",
        ),
    ] = None
    lengths: LengthOptions = NO_LENGTHS
    objectives: ObjectiveOptions = NO_OBJECTIVES
    max_seconds: Annotated[
        float | None,
        duration_option("Budget: wall time. Default: the configuration's, or 5m.", least="1s", panel="Limits"),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Budget: prompt and output tokens. Default: the configuration's, or 5000000.",
            rich_help_panel="Limits",
        ),
    ] = None
    timeout: Timeout = None
    seed: Annotated[
        int, typer.Option(help="Seed of the prompt lengths; the prompts differ in every run.", rich_help_panel="Load")
    ] = 0
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Number of processes that send the load. Default: as many as the cores allow.",
            rich_help_panel="Load",
        ),
    ] = None
    guard: Annotated[
        bool, typer.Option(help="Stop when the server queues, preempts or fails requests.", rich_help_panel="Limits")
    ] = True
    stream_guard: Annotated[
        bool,
        typer.Option(
            "--stream-guard",
            help="Guard by the run's own answers only, for a server without a metrics page.",
            rich_help_panel="Limits",
        ),
    ] = False
    note: Note = None
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Write the result as JSON to this file; - is standard output.", rich_help_panel="Result"
        ),
    ] = None
    as_json: Json = False
    html_file: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Write an HTML report to this file; - is standard output.", rich_help_panel="Result"
        ),
    ] = None

    def check(self) -> None:
        """Raise ConfigError for options that exclude each other."""
        lengths = (self.lengths.prompt_tokens, self.lengths.output_tokens)
        if self.workload is not None and lengths != (None, None):
            raise ConfigError("--workload, --prompt-tokens, --output-tokens: a workload sets the lengths; use either")
        if self.stream_guard and not self.guard:
            raise ConfigError("--stream-guard, --no-guard: both are set; remove one")
        if self.trace is not None and (self.workload, *lengths) != (None, None, None):
            raise ConfigError("--trace: sets the lengths; remove --workload, --prompt-tokens and --output-tokens")


@grouped
def ramp(context: typer.Context, options: RampOptions) -> None:
    """Find the knee now, with guarded step-up load. Works for targets without scheduled load too.

    Ctrl-C, SIGTERM, a closed terminal or the loss of the server's Kubernetes Lease stops the load at once; the results
    so far are printed and written.
    Exit status: 0 found, 1 not found, 2 could not measure, or an error ended the run.
    """
    from probe.cli.check import with_timeout
    from probe.cli.command_line import command_line, variables_of
    from probe.cli.options import configuration, timeout_of
    from probe.cli.ramp import ResultFiles, address_and_file, json_output, measure
    from probe.cli.server_address import URL_VARIABLE, server_address
    from probe.cli.targets import one_with_gpus
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    url, extra = address_and_file([options.url, *context.args], as_json=options.as_json)
    json_file = json_output(options.out, extra, as_json=options.as_json)
    options.check()
    where = server_address(url, options.base_url, options.config)
    files = ResultFiles(json_file, options.html_file, where)
    limit_s = timeout_of(options.timeout)
    groups = (options.server, options.lengths, options.objectives, options.gpus)
    config = configuration(options.config, where, *groups)
    found, place = one_with_gpus(config, options.target)
    target = with_timeout(found, limit_s)
    variables = variables_of(context.command) | ({URL_VARIABLE} if where not in (url, options.base_url) else set())
    made_by = command_line(NAME, context.obj or (), os.environ, variables)
    raise typer.Exit(measure(config, target, run_request(config, target, options, made_by), files, place))


def run_request(
    config: "Config", target: "TargetConfig", options: RampOptions, command: str | None = None
) -> "RunRequest":
    """Return the run that is configured, with what the options change. Raises ConfigError."""
    from probe.capacity.run.request import configured_run
    from probe.cli.command_line import facts_of

    facts = facts_of(options.note or ())
    usual = configured_run(target, config.objectives_of(target), config.load)
    trace = named_trace(options.trace) if options.trace is not None else None
    chosen = steps(options, target.capacity, trace.trace if trace is not None else None)
    seconds, tokens = options.max_seconds or usual.budget.seconds, options.max_tokens or usual.budget.tokens
    # Without the guard, the point is to measure beyond the knee.
    over_s = usual.budget.over_objective_seconds if options.guard else seconds
    if chosen.replay is not None:
        check_budget(chosen.replay, seconds, tokens)
    by_stream = options.guard and (options.stream_guard or usual.by_stream)
    if by_stream and usual.objectives.ttft is None:
        raise ConfigError(
            "--stream-guard: judges by the time to the first token, and there is no TTFT objective; add ttft"
        )
    workload = config.workload_name(options.workload) or usual.workload
    _check_generates(config.workload(workload).api, chosen)
    return replace(
        usual,
        steps=chosen,
        workload=workload,
        budget=replace(usual.budget, tokens=tokens, seconds=seconds, over_objective_seconds=over_s),
        is_guarded=options.guard,
        by_stream=by_stream,
        seed=options.seed,
        workers=options.workers,
        trace=trace,
        command=command,
        facts={**usual.facts, **facts},
    )


def _check_generates(api: "Api", chosen: "StepSettings") -> None:
    """Raise ConfigError for what needs tokens, where the API generates none."""
    if api.generates:
        return
    if chosen.replay is not None:
        raise ConfigError(f"--trace: replays generated tokens, and api {api.value} generates none; use --rates")
    if chosen.concurrency is None and chosen.rates is None:
        raise ConfigError(
            f"a search models generated tokens, and api {api.value} has none; add --rates or --concurrency (in a"
            " configuration: capacity.rates or capacity.concurrency)"
        )


def steps(options: RampOptions, capacity: "CapacityConfig", trace: "Trace | None" = None) -> "StepSettings":
    """Return the step settings from the options and, for the rest, from the configuration.

    Raises ConfigError, also for an option that would have no effect.
    """
    from probe.capacity.run.request import steps_of
    from probe.core.step import Arrivals

    loads = {"--concurrency": options.concurrency, "--rates": options.rates, "--speeds": options.speeds}
    given = [name for name, value in loads.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{', '.join(given)}: {'both' if len(given) == 2 else 'all'} are set; remove one")  # noqa: PLR2004
    settings = steps_of(capacity)
    if options.speeds is not None or (trace is not None and trace.seconds is not None and not given):
        return _replayed(options, settings, trace)
    if options.concurrency is not None:
        at_once = concurrency_steps(options.concurrency)
        settings = replace(settings, concurrency=at_once, rates=None, arrivals=Arrivals(), max_concurrency=None)
    if options.rates is not None:
        settings = replace(settings, concurrency=None, rates=rate_steps(options.rates))
    is_search = settings.concurrency is None and settings.rates is None
    for name, value in (
        ("--step-seconds", options.step_seconds),
        ("--requests-per-step", options.requests_per_step),
        ("--confirm-seconds", options.confirm_seconds),
    ):
        if is_search and value is not None:
            raise ConfigError(
                f"{name}: requires --concurrency or --rates; a search sets the length of its steps itself"
            )
    settings = _with_arrivals(settings, options)
    if not is_search and options.observe is not None:
        raise ConfigError("--observe: works with a search only, not with fixed steps; remove it")
    return replace(
        settings,
        seconds=settings.seconds if options.step_seconds is None else options.step_seconds,
        requests=options.requests_per_step,
        confirm_s=settings.confirm_s if options.confirm_seconds is None else options.confirm_seconds,
        observe_s=settings.observe_s if options.observe is None else options.observe,
    )


def _replayed(options: RampOptions, settings: "StepSettings", trace: "Trace | None") -> "StepSettings":
    """Return the settings of a replay. Raises ConfigError."""
    from probe.capacity.run.request import Replay
    from probe.core.step import Arrivals

    if trace is None or trace.seconds is None:
        lacks = (
            "--trace FILE" if trace is None else "a trace with times; this one is sent with --rates or --concurrency"
        )
        raise ConfigError(f"--speeds: requires {lacks}")
    for name, value in (
        ("--arrivals", options.arrivals),
        ("--burstiness", options.burstiness),
        ("--requests-per-step", options.requests_per_step),
        ("--confirm-seconds", options.confirm_seconds),
        ("--observe", options.observe),
    ):
        if value is not None:
            raise ConfigError(f"{name}: has no effect where a trace is sent at its times; remove it, or add --rates")
    speeds = _rising("--speeds", options.speeds or "1", _MAX_SPEED)
    rate = len(trace.requests) / trace.seconds
    if rate * speeds[-1] > _MAX_RATE:
        raise ConfigError(
            f"--trace: more than {_MAX_RATE:.0f} requests/s at --speeds {options.speeds or '1'}; expected --speeds of"
            f" at most {_rounded_down(_MAX_RATE / rate):g}"
        )
    return replace(
        settings,
        replay=Replay(trace, speeds, options.step_seconds),
        concurrency=None,
        rates=None,
        arrivals=Arrivals(),
        max_concurrency=options.max_concurrency,
    )


def _with_arrivals(settings: "StepSettings", options: RampOptions) -> "StepSettings":
    """Return the settings with the arrival pattern of the options. Raises ConfigError."""
    from probe.core.step import Arrivals, Pattern

    chosen = {"--arrivals": options.arrivals, "--burstiness": options.burstiness}
    given = [name for name, value in {**chosen, "--max-concurrency": options.max_concurrency}.items() if value]
    if given and settings.rates is None:
        raise ConfigError(f"{given[0]}: works with --rates only; add --rates, or remove it")
    if all(chosen.values()):
        raise ConfigError("--arrivals, --burstiness: both are set; remove one")
    arrivals = settings.arrivals
    if options.arrivals is not None:
        if options.arrivals not in _PATTERNS:
            raise ConfigError(f"--arrivals {one_line(options.arrivals)}: expected one of {', '.join(_PATTERNS)}")
        arrivals = Arrivals(Pattern(options.arrivals))
    if options.burstiness is not None:
        arrivals = Arrivals(Pattern.GAMMA, burstiness=options.burstiness)
    if arrivals.pattern is Pattern.RISING and options.requests_per_step is not None:
        raise ConfigError("--requests-per-step: leaves no time for the rate to rise (--arrivals rising); remove one")
    return replace(settings, arrivals=arrivals, max_concurrency=options.max_concurrency or settings.max_concurrency)


def concurrency_steps(text: str) -> tuple[int, ...]:
    """Parse --concurrency. Raises ConfigError."""
    try:
        steps = tuple(int(part) for part in text.split(","))
    except ValueError:
        steps = ()
    if not steps or min(steps) < 1 or max(steps) > _MAX_CONCURRENCY or list(steps) != sorted(set(steps)):
        raise ConfigError(f"--concurrency {text}: expected rising whole numbers from 1 to 1024, such as 1,2,4,8,16")
    return steps


def rate_steps(text: str) -> tuple[float, ...]:
    """Parse --rates, in requests/s. Raises ConfigError."""
    return _rising("--rates", text, _MAX_RATE)


def _rounded_down(number: float) -> float:
    """Return the number with three digits, none above it."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 2)
    return math.floor(number / unit) * unit


def _rising(option: str, text: str, most: float) -> tuple[float, ...]:
    """Parse rising numbers. Raises ConfigError."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number <= most for number in numbers) or list(numbers) != sorted(set(numbers)):
        raise ConfigError(
            f"{option} {one_line(text)}: expected rising numbers above 0 and at most {most:.0f}, such as 0.5,1,2"
        )
    return numbers


def named_trace(file: Path) -> "NamedTrace":
    """Read the trace; its workload is named after the file. Raises ConfigError."""
    from probe.core.trace import NamedTrace
    from probe.load.trace_file import read_trace

    name = re.sub(r"[^A-Za-z0-9_.-]", "-", file.name.partition(".")[0])[:63].strip("-_.")
    return NamedTrace(name or "trace", read_trace(file, "--trace"))


def check_budget(replay: "Replay", seconds: float, tokens: int) -> None:
    """Check, before any load, that the replay fits into its budget. Raises ConfigError."""
    needed_s = sum(map(replay.step_s, replay.speeds))
    if needed_s > seconds:
        raise ConfigError(
            f"--trace: takes {needed_s:.0f} s, more than the budget's {seconds:.0f} s; raise --max-seconds, or send"
            " only its beginning with --step-seconds"
        )
    if replay.requests > _MOST_REQUESTS:
        raise ConfigError(f"--trace: sends {replay.requests} requests, expected at most {_MOST_REQUESTS}")
    needed = replay.tokens
    if needed > tokens:
        raise ConfigError(
            f"--trace: sends {needed} tokens, more than the budget's {tokens}; raise --max-tokens, or send only its"
            " beginning with --step-seconds"
        )
