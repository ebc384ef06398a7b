"""Strict YAML of a configuration file to plain values, and `${NAME}` from the environment.

Variables are replaced after the YAML is parsed, so a value cannot change the structure.
"""

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from probe.core.errors import ConfigError
from probe.core.plain_file import read_plain

MAX_CONFIG_BYTES = 1_000_000
_MAX_DEPTH = 50
_MAX_VALUES = 100_000  # aliases can expand a short file to a huge one
_MAX_MERGED = 10_000
_SYNTAX_ERRORS = (yaml.scanner.ScannerError, yaml.parser.ParserError)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read_yaml(path: Path) -> object:
    """Return the file's content. Raises ConfigError with file, line and column."""
    try:
        data = read_plain(path, MAX_CONFIG_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ConfigError(f"{path}: {error.strerror}; expected a configuration of at most that") from None
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); use an existing file with -c FILE") from None
    try:
        return yaml.load(data, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader that also refuses duplicates
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        # The parser quotes its input, which may be an API key without quotes.
        problem = re.sub(r"'(?!\\?.'|<)[^']*'", "'...'", str(error.problem))
        fix = "; check the indentation and quotes here" if isinstance(error, _SYNTAX_ERRORS) else ""
        raise ConfigError(f"{path}{where}: not valid YAML ({problem}){fix}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: not valid YAML (it contains unprintable characters)") from None
    # Errors that PyYAML does not wrap, for an invalid tag or number (!!int x, 2026-13-45).
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML (a value cannot be read: {type(error).__name__})") from None


def expand(raw: object, environ: Mapping[str, str]) -> tuple[object, list[str]]:
    """Return the values with `${NAME}` replaced, and a line for each variable that is not set.

    Raises RecursionError or ValueError for a file that refers to itself or expands to too many values.
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
    """A loader that refuses deep nesting and duplicate keys (PyYAML silently takes the last one).

    PyYAML's time for nested brackets grows with the square of their number: 2,000 take two seconds.
    """

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: ANN401, N803 - PyYAML's own method
        if self.flow_level >= _MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"more than {_MAX_DEPTH} brackets in each other", problem_mark=self.get_mark()
            )
        super().fetch_flow_collection_start(TokenClass)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge `<<` as PyYAML does, by copying all pairs: ten lines that merge each other ten times fill a machine."""
        super().flatten_mapping(node)
        if len(node.value) > _MAX_MERGED:
            raise yaml.MarkedYAMLError(problem=f"merges of more than {_MAX_MERGED} keys", problem_mark=node.start_mark)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:  # noqa: ANN401 - PyYAML's own method
        text = super().construct_scalar(node)
        if isinstance(text, str) and not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
            raise yaml.MarkedYAMLError(problem="half of a character (a surrogate)", problem_mark=node.start_mark)
        return text

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
