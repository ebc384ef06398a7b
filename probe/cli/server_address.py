"""The one server that a command asks: its address from the command line or OPENAI_BASE_URL, and that server's key.

OPENAI_API_KEY belongs to the server of OPENAI_BASE_URL, and is sent to no other. Empty variables count as not set.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import typer
from pydantic import TypeAdapter, ValidationError

from probe.cli.output import NAME
from probe.config.types import BaseUrl
from probe.core.errors import ConfigError
from probe.core.text import one_line

URL_VARIABLE, KEY_VARIABLE = "OPENAI_BASE_URL", "OPENAI_API_KEY"
_ADDRESS: TypeAdapter[str] = TypeAdapter(BaseUrl)
_PORTS = {"http": 80, "https": 443}


def server_address(
    url: str | None, base_url: str | None, file: Path | None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return the address of the server, or None where a configuration has the servers. Raises ConfigError.

    `url`: the argument; `base_url`: --base-url, which is the same. Says on standard error where a variable decides.
    """
    if url is not None and base_url is not None:
        raise ConfigError("URL, --base-url: both are set; remove one")
    given = url if url is not None else base_url
    if given is not None or file is not None or not environment.get(URL_VARIABLE):
        return given
    address = _variable(environment)
    typer.echo(f"{NAME}: asks the server of {URL_VARIABLE}, {one_line(address)}", err=True)
    return address


def server_key(address: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return OPENAI_API_KEY if the address is that of OPENAI_BASE_URL."""
    key = environment.get(KEY_VARIABLE, "").strip()
    try:
        return key if key and _place(_ADDRESS.validate_python(address)) == _place(_variable(environment)) else None
    except (ConfigError, ValidationError):  # whoever uses the address says what is wrong with it
        return None


def _variable(environment: Mapping[str, str]) -> str:
    """Return the address in OPENAI_BASE_URL, without /v1. Raises ConfigError, without what may be a secret in it."""
    try:
        return _ADDRESS.validate_python(environment.get(URL_VARIABLE, ""))
    except ValidationError:
        raise ConfigError(
            f"{URL_VARIABLE}: expected an address such as http://localhost:8000/v1, without credentials; correct it,"
            " or name the server with URL"
        ) from None


def _place(address: str) -> tuple[str, str | None, int | None, str]:
    """Return what two addresses of one server have in common."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme), parts.path
