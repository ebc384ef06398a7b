"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="Configuration file (YAML).")]
MaybeConfigFile = Annotated[Path | None, typer.Option("-c", "--config", help="Configuration file (YAML).")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="Server to use instead of a configuration.")]
Model = Annotated[
    str | None, typer.Option("--model", help="Model name, with --base-url. Default: auto, which asks the server.")
]
ApiKeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", help="File with the server's API key, with --base-url.")
]
Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        help="completions, chat, responses, messages, embeddings, rerank or score, with --base-url."
        " Default: completions.",
    ),
]
Engine = Annotated[
    str | None, typer.Option("--engine", help="Inference engine or gateway, with --base-url. Default: auto.")
]
MetricsUrl = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics-url",
        metavar="<url>",
        help="The server's metrics page, with --base-url; once for each replica behind it. Default: below --base-url.",
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="<text>",
        help="Further header, with --base-url: 'NAME: VALUE', or 'NAME: @FILE' for a secret.",
        allow_from_autoenv=False,  # a variable would be split at the blank
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca-file", help="CA certificates that sign the server's certificate (PEM), with --base-url."),
]
PromptTokens = Annotated[
    int | None, typer.Option("--prompt-tokens", help="Prompt length in tokens, with --base-url. Default: 256.")
]
OutputTokens = Annotated[
    int | None, typer.Option("--output-tokens", help="Output length in tokens, with --base-url. Default: 128.")
]
OneTarget = Annotated[
    str | None, typer.Option("--target", help="Target, configured or discovered; required if there are several.")
]
Note = Annotated[
    list[str] | None,
    typer.Option(
        "--note",
        metavar="<name=value>",
        help="Fact about the server to keep with the result, such as image=vllm/vllm-openai:v0.32.0,"
        " commit, node or driver; may be repeated.",
        allow_from_autoenv=False,
    ),
]
Out = Annotated[Path, typer.Option("-o", "--out", help="Directory to write to, created if missing; - prints instead.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
