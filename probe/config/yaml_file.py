"""A configuration file to plain values: YAML, strictly read, and `${NAME}` from the environment.

The environment is filled in after the YAML is parsed, so a value can never change the structure.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from probe.core.errors import ConfigError

MAX_CONFIG_BYTES = 1_000_000
_MAX_VALUES = 100_000  # aliases let a short file describe a huge one
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read_yaml(path: Path) -> object:
    """What the file says. Raises ConfigError with file, line and column."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); use an existing file with -c FILE") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: {len(data)} bytes; expected a configuration of at most {MAX_CONFIG_BYTES}")
    try:
        return yaml.load(data, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader that also refuses duplicates
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        # The parser quotes what it met, which may be a key that lost its quotes.
        problem = re.sub(r"'(?!\\?.'|<)[^']*'", "'...'", str(error.problem))
        raise ConfigError(f"{path}{where}: not valid YAML ({problem})") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: not valid YAML (it contains unprintable characters)") from None
    # What PyYAML lets through for a tag or a number that is none (!!int x, 2026-13-45).
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML (a value cannot be read: {type(error).__name__})") from None


def expand(raw: object, environ: Mapping[str, str]) -> tuple[object, list[str]]:
    """The same with `${NAME}` replaced, and a line for each variable that is not set.

    Raises RecursionError or ValueError for a file that refers to itself, or that unfolds without end.
    """
    problems: list[str] = []
    left = _MAX_VALUES

    def filled(value: object, path: str) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("it expands to too many values")
        if isinstance(value, dict):
            return {key: filled(v, f"{path}.{key}" if path else str(key)) for key, v in value.items()}
        if isinstance(value, list):
            return [filled(v, f"{path}[{i}]") for i, v in enumerate(value)]
        if not isinstance(value, str):
            return value
        missing = [name for name in _VARIABLE.findall(value) if name not in environ]
        if missing:
            problems.append(f"{path}: environment variable {missing[0]} is not set; set it, or write the value")
            return value
        return _VARIABLE.sub(lambda match: environ[match.group(1)], value)

    return filled(raw, ""), problems


class _StrictLoader(yaml.SafeLoader):
    """YAML takes the last of two equal keys silently; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = getattr(key_node, "value", None)
            if isinstance(key, str) and key != "<<":
                if key in seen:
                    problem = "duplicate key; keep one"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)
