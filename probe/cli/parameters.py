"""Options that several commands share, and groups of options: a command takes a dataclass, and has an option for each
of its fields.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from probe.core import request
from probe.core.durations import parse_duration
from probe.core.text import one_line

# The groups in the help of what a configuration has otherwise.
_SERVER = "Server, without a configuration"
_REQUESTS = "Requests, without a configuration"
_OBJECTIVES = "Objectives, without a configuration"
_HISTORY = "Every server, by its history"
_LONGEST = "520w"  # ten years: more is a typing error
_APIS = [api.value for api in request.Api]


def duration_option(
    words: str, *, least: str, most: str | None = None, default: str | None = None, panel: str | None = None
) -> Any:  # noqa: ANN401
    """Return an option that takes a duration, such as 90s or 5m, or plain seconds, from `least` to `most`."""
    low, high = parse_duration(least), parse_duration(most or _LONGEST)
    limits = f"{least} to {most}" if most is not None else f"at least {least}"

    def seconds(text: object) -> float:
        try:
            found = float(text)  # type: ignore[arg-type]
        except ValueError:
            try:
                found = parse_duration(text)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
        if not low <= found <= high:
            raise typer.BadParameter(f"expected a duration of {limits}, such as 90s or 5m, got {one_line(str(text))}")
        return found

    shown = f"{words} [{f'default: {default}; ' if default is not None else ''}{limits}]"
    return typer.Option(parser=seconds, metavar="DURATION", help=shown, show_default=False, rich_help_panel=panel)


ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="Configuration file (YAML).")]
MaybeConfigFile = Annotated[
    Path | None, typer.Option("-c", "--config", help="Configuration file (YAML).", rich_help_panel="Server")
]
Address = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="Server to use instead of a configuration. Default: OPENAI_BASE_URL, with OPENAI_API_KEY.",
        show_default=False,
        rich_help_panel="Server",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", help="The same as URL.", metavar="URL", rich_help_panel="Server"),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Model name. Default: auto, which asks the server.",
        metavar="NAME",
        rich_help_panel=_SERVER,
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", help="File with the server's API key.", rich_help_panel=_SERVER),
]
Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        help=f"{', '.join(_APIS[:-1])} or {_APIS[-1]}. Default: completions.",
        metavar="NAME",
        rich_help_panel=_SERVER,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Inference engine or gateway. Default: auto.",
        metavar="NAME",
        rich_help_panel=_SERVER,
    ),
]
MetricsUrl = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics-url",
        metavar="URL",
        help="The server's metrics page; repeat it for each replica. Default: below --base-url.",
        rich_help_panel=_SERVER,
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="HEADER",
        help="Additional header: 'NAME: VALUE', or 'NAME: @FILE' for a secret.",
        allow_from_autoenv=False,
        rich_help_panel=_SERVER,  # a variable would be split at the blank
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        help="CA certificates that sign the server's certificate (PEM).",
        rich_help_panel=_SERVER,
    ),
]
PromptTokens = Annotated[
    int | None,
    typer.Option("--prompt-tokens", help="Prompt length in tokens. Default: 256.", rich_help_panel=_REQUESTS),
]
OutputTokens = Annotated[
    int | None,
    typer.Option("--output-tokens", help="Output length in tokens. Default: 128.", rich_help_panel=_REQUESTS),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        help="Time limit of a whole answer, such as 5m. Default: by the objectives and the longest answer, at least"
        " 30s; without it, a server that says nothing for 30s has failed too.",
        metavar="DURATION",
        rich_help_panel="Server",
    ),
]
OneTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Target, configured or discovered; required if there are several.",
        metavar="NAME",
        rich_help_panel="Server",
    ),
]
Note = Annotated[
    list[str] | None,
    typer.Option(
        "--note",
        metavar="NAME=VALUE",
        help="Fact about the server to keep with the result, such as image=vllm/vllm-openai:v0.32.0,"
        " commit, node or driver; can be repeated.",
        allow_from_autoenv=False,
        rich_help_panel="Result",
    ),
]
Out = Annotated[
    Path,
    typer.Option("-o", "--out", help="Directory to write to, created if missing; - prints instead.", metavar="DIR"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server of --base-url; with -c the configuration has it."""

    model: Model = None
    api_key_file: ApiKeyFile = None
    api: Api = None
    engine: Engine = None
    metrics_url: MetricsUrl = None
    header: Header = None
    ca_file: CaFile = None


@dataclass(frozen=True, slots=True)
class LengthOptions:
    """The lengths of requests to the server of --base-url."""

    prompt_tokens: PromptTokens = None
    output_tokens: OutputTokens = None


@dataclass(frozen=True, slots=True)
class ObjectiveOptions:
    """The objectives of the server of --base-url."""

    ttft: Annotated[
        str | None,
        typer.Option(
            help="TTFT objective, such as 1s, or p99=1s for its own share. Default: 500ms.",
            metavar="DURATION",
            rich_help_panel=_OBJECTIVES,
        ),
    ] = None
    tpot: Annotated[
        str | None,
        typer.Option(help="TPOT objective. Default: 50ms.", metavar="DURATION", rich_help_panel=_OBJECTIVES),
    ] = None
    e2e: Annotated[
        str | None,
        typer.Option(help="E2E objective. Default: none.", metavar="DURATION", rich_help_panel=_OBJECTIVES),
    ] = None
    itl: Annotated[
        str | None,
        typer.Option(
            help="Objective for a request's longest gap between tokens. Default: none.",
            metavar="DURATION",
            rich_help_panel=_OBJECTIVES,
        ),
    ] = None
    ratio: Annotated[
        str | None,
        typer.Option(
            help="Share of requests that must meet each latency objective. Default: 0.95.",
            metavar="SHARE",
            rich_help_panel=_OBJECTIVES,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """Where the GPUs of the server of --base-url are read."""

    dcgm_url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Metrics page of the dcgm-exporter on the server's node; repeat it for each node.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    gpu_prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Prometheus with dcgm-exporter's series of the server's host, or of --gpu-label.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    gpu_label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Label of the server's GPUs at dcgm-exporter, such as pod=llama-8b-0; can be repeated.",
            rich_help_panel=_SERVER,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class PastOptions:
    """The Prometheus whose history of all vLLM servers is examined instead of one server."""

    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            help="Examine every vLLM server in this Prometheus by its history: an address, or a file.yml with the"
            " section prometheus of a configuration, for credentials. Sends no load and no canary.",
            rich_help_panel=_HISTORY,
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How far back, from 1h to 7d. Default: 24h.", rich_help_panel=_HISTORY),
    ] = None
    match: Annotated[
        str | None,
        typer.Option(
            metavar="MATCHERS",
            help='Only servers whose series have these labels, as in PromQL: \'namespace="chat", pod=~"llama-.+"\'.',
            rich_help_panel=_HISTORY,
        ),
    ] = None


NO_SERVER, NO_LENGTHS, NO_OBJECTIVES, NO_GPUS = ServerOptions(), LengthOptions(), ObjectiveOptions(), GpuOptions()
NO_PAST = PastOptions()
OptionGroup = ServerOptions | LengthOptions | ObjectiveOptions | GpuOptions | PastOptions


def given_options(*groups: OptionGroup) -> list[str]:
    """Return the names of the options that were given."""
    names = [one.name for group in groups for one in fields(group) if getattr(group, one.name) is not None]
    return [f"--{name.replace('_', '-')}" for name in names]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as Typer takes it: with an option for each field of a parameter that is a dataclass."""
    kinds = get_type_hints(command, include_extras=True)
    del kinds["return"]
    usual = {name: one.default for name, one in inspect.signature(command).parameters.items()}
    options = [option for name, kind in kinds.items() for option in _options(name, kind, usual[name])]

    def run(**given: object) -> None:
        command(**{name: _value(name, kind, given) for name, kind in kinds.items()})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def _options(name: str, kind: Any, default: object) -> Iterator[inspect.Parameter]:  # noqa: ANN401 - a type
    if not is_dataclass(kind):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        return
    kinds = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        usual = inspect.Parameter.empty if one.default is MISSING else one.default
        yield from _options(one.name, kinds[one.name], usual)


def _value(name: str, kind: Any, given: Mapping[str, object]) -> object:  # noqa: ANN401 - a type
    if not is_dataclass(kind):
        return None if given[name] == [] else given[name]  # an empty list is an option that was not given
    kinds = get_type_hints(kind, include_extras=True)
    values = {one.name: _value(one.name, kinds[one.name], given) for one in fields(kind)}
    return kind(**values)  # type: ignore[operator]
