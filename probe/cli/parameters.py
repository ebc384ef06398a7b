"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="Configuration file (YAML).")]
MaybeConfigFile = Annotated[Path | None, typer.Option("-c", "--config", help="Configuration file (YAML).")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="A server instead of a configuration.")]
Model = Annotated[
    str | None, typer.Option("--model", help="Model name, with --base-url; auto, if left out, asks the server.")
]
ApiKeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", help="File with the server's API key, with --base-url.")
]
OneTarget = Annotated[
    str | None, typer.Option("--target", help="Target of the configuration; needed where it has several.")
]
Out = Annotated[Path, typer.Option("-o", "--out", help="Directory to write to; made where it is missing.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
