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
OneTarget = Annotated[
    str | None, typer.Option("--target", help="Target, configured or discovered; required if there are several.")
]
Out = Annotated[Path, typer.Option("-o", "--out", help="Directory to write to; created if missing.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
