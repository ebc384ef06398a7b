"""Settings of the pages: allowed host names, and the check of the web configuration file (web_file.py)."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from probe.config.messages import shown
from probe.config.path_checks import file_problem
from probe.core.errors import ConfigError

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"\.?{_LABEL}(\.{_LABEL})*", re.IGNORECASE | re.ASCII)
_LONGEST = 253


def _host_name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > _LONGEST:
        raise ValueError("expected a host name without a port such as kneewatch.example, or .example for all below it")
    return text


HostName = Annotated[str, AfterValidator(_host_name), Field(title="host name")]


def web_problems(file: Path | None, raw: object) -> list[str]:
    """Return the problems of the web configuration file, so that they are known before a restart."""
    from probe.config.web_file import load_web_config  # noqa: PLC0415 - it takes what it is made of from here

    if file is None:
        return []
    if words := file_problem(file):
        return [f"web_config_file: {shown(['web_config_file'], raw)} {words}"]
    try:
        load_web_config(file)
    except ConfigError as error:
        return [f"web_config_file: {line}" for line in str(error).splitlines()]
    return []
