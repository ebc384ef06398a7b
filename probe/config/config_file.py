"""The configuration: from YAML to frozen models.

`load_config(path)` is the entry point. Unknown keys, wrong units, missing files and undefined names are errors of one
line each, with file, key path, expectation and fix. `${NAME}` in a value is replaced from the environment after the
YAML is parsed, so a value cannot change the structure. Messages show the text as written, so values do not leak.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from probe.config.config import Config
from probe.config.cross_key_checks import cross_key_problems
from probe.config.messages import value_problems
from probe.config.prometheus import PrometheusConfig
from probe.config.yaml_file import expand, read_yaml
from probe.core.errors import ConfigError
from probe.core.file_signature import file_signature
from probe.core.text import one_line

# The one in C, where PyYAML has it: that in Python takes a second for 200 targets.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load_config(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration in `path`. Raises ConfigError, one line per problem."""
    return config_from(read_yaml(path), str(path), environ)


def load_prometheus(path: Path, environ: Mapping[str, str] = os.environ) -> PrometheusConfig:
    """Return the `prometheus` section of a configuration, which may have nothing else. Raises ConfigError."""
    raw = read_yaml(path)
    section = raw.get("prometheus") if isinstance(raw, dict) else None
    # Checked as in a whole configuration, which needs a target.
    target = {"name": "none", "base_url": "http://none"}
    found = config_from({"prometheus": section, "targets": [target]}, str(path), environ).prometheus
    if found is None:
        raise ConfigError(
            f"{path}: expected the section prometheus, such as prometheus: {{url: http://prometheus:9090}}"
        )
    return found


def config_from(raw: object, source: str, environ: Mapping[str, str] = os.environ) -> Config:
    """Return a checked configuration from parsed YAML; messages begin with `source`. Raises ConfigError."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: expected a mapping with the key 'targets', got {type(raw).__name__}")
    try:
        expanded, problems = expand(raw, environ)
        if not problems:
            config = Config.model_validate(expanded)
            problems = cross_key_problems(config, raw)
    except ValidationError as error:
        problems = [str(problem) for problem in value_problems(error, raw, Config)]
    except (RecursionError, ValueError) as error:
        why = "it refers to itself" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{source}: not a configuration, {why}; write the values without aliases") from None
    if problems:
        raise ConfigError("\n".join(f"{source}: {one_line(problem, 400)}" for problem in problems))
    return config


def show(config: Config) -> str:
    """Return the effective configuration as YAML, with defaults and without secrets."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_DUMPER, sort_keys=False, allow_unicode=True)


def config_hash(config: Config) -> str:
    """Return a short digest of the effective configuration; it does not depend on secrets."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]


INTERVAL_S = 15.0


async def changes(path: Path, interval_s: float = INTERVAL_S) -> AsyncIterator[None]:
    """Yield whenever the file has changed, or was removed, since the last check. Never ends."""
    last = file_signature(path)
    while True:
        await asyncio.sleep(interval_s)
        now = file_signature(path)
        if now == last:
            continue
        last = now
        yield
