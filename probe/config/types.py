"""Types of configuration values: durations, names, numbers, schedules.

A validator raises ValueError("expected ..."); messages.py adds the key path and the value as written.
"""

import re
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from probe.config.messages import did_you_mean
from probe.core.durations import DURATION_PATTERN, format_duration, parse_duration
from probe.core.load_windows import parse_window
from probe.core.provenance import facts_problem
from probe.gpu.peak_specs import NAMES, gpu

_Step = TypeVar("_Step", int, float)
_SIZES = {"M": 1e6, "B": 1e9, "T": 1e12}
_MOST_PARAMETERS = 1e15
_MAKERS = re.compile(r"^((NVIDIA|AMD|Tesla|GeForce|Instinct)[ -])+", re.IGNORECASE)


class ConfigSection(BaseModel):
    """A mapping in the file. Unknown keys are errors. The text below a key describes it, in the schema and the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)


# One or more of name="value", with any of PromQL's four operators, between commas.
_MATCHER = r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"\s*'
_MATCHERS = re.compile(f"{_MATCHER}(,{_MATCHER})*")


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("expected a duration above zero")
    return seconds


def _a_second_at_least(seconds: float) -> float:
    if seconds < 1:
        raise ValueError("expected at least 1s; for more load, use capacity")
    return seconds


def _a_minute_at_least(seconds: float) -> float:
    if seconds < 60:  # noqa: PLR2004
        raise ValueError("expected at least 1m")
    return seconds


def _matchers(text: str) -> str:
    if not _MATCHERS.fullmatch(text):
        raise ValueError('expected PromQL label matchers such as \'job="vllm",pod="llama-0"\'')
    return text


def _rising(steps: tuple[_Step, ...]) -> tuple[_Step, ...]:
    if list(steps) != sorted(set(steps)):
        raise ValueError("expected rising numbers")
    return steps


def _not_a_switch(value: object) -> object:
    """Refuse booleans: YAML's yes and true would pass as the number 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "expected a number")
    return value


def _name(text: str) -> str:
    if not _is_name(text):
        raise ValueError("expected a name of at most 63 letters, digits, '-', '_' or '.'")
    return text


def _server_name(text: str) -> str:
    group, slash, name = text.partition("/")
    if not (_is_name(group) and (not slash or _is_name(name))):
        raise ValueError("expected a name of at most 63 letters, digits, '-', '_' or '.', or GROUP/NAME")
    return text


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", text) is not None


def _cron(text: str) -> str:
    from probe.runtime.cron import cron_trigger  # noqa: PLC0415 - slow to import, and needed for a written schedule only

    try:
        cron_trigger(text)
    except ValueError:
        raise ValueError(
            "expected five cron fields (minute, hour, day, month, weekday; not both days) such as '0 4 * * *'"
        ) from None
    return text


def _timezone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError("expected a time zone such as UTC or Europe/Berlin") from None
    return text


def _window(text: str) -> str:
    try:
        parse_window(text)
    except ValueError:
        raise ValueError("expected a window such as '01:00-05:00' or 'Sat,Sun 00:00-24:00'") from None
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"expected a regular expression such as '(?i)paris' ({error})") from None
    return text


def _gpu(text: str) -> str:
    if gpu(text) is None:
        plain = _MAKERS.sub("", text)
        several = [name for name in NAMES if plain and name.lower().startswith(plain.lower())]
        hint = f" (which of {', '.join(several)}?)" if several else did_you_mean(plain, NAMES)
        raise ValueError(f"expected a GPU listed in docs/capacity.md{hint}; if yours is not there, remove the key")
    return text


def _engine(text: str) -> str:
    if text == "auto":
        return text
    from probe.scrape import engines  # noqa: PLC0415 - a fifth of a second of --help, for what few write

    if text not in engines.NAMES:
        hint = did_you_mean(text, engines.NAMES)
        raise ValueError(f"expected auto or one of {', '.join(engines.NAMES)}{hint}")
    return text


def _parameters(value: object) -> float:
    """Return a number of parameters from 8B, 700M or 8e9 (which YAML reads as text)."""
    text = value.strip() if isinstance(value, str) else repr(value)
    size = _SIZES.get(text[-1:].upper())
    try:
        count = float(text[:-1] if size else text) * (size or 1.0)
    except ValueError:
        count = 0.0
    if not min(_SIZES.values()) <= count <= _MOST_PARAMETERS:
        raise ValueError("expected a number of parameters such as 8B or 8e9")
    return count


def _switched_off(value: object) -> object:
    """Turn false into "off": YAML reads an unquoted `off` as false."""
    return "off" if value is False else value


def arm(value: object) -> str:
    """Return which arm of "a plain value or a mapping" is meant, so that errors concern only that arm."""
    return "mapping" if isinstance(value, dict | BaseModel) else "plain"


def default_duration(text: str) -> Any:  # noqa: ANN401 - what pydantic's Field gives
    """Return a field with a default as text, so that the schema shows it that way."""
    return Field(text, validate_default=True)


NotASwitch = BeforeValidator(_not_a_switch)
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    AfterValidator(_positive),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(
        {"title": "duration", "type": "string", "pattern": DURATION_PATTERN, "examples": ["500ms", "15s", "1h"]}
    ),
]
CanaryInterval = Annotated[Duration, AfterValidator(_a_second_at_least)]
ForecastInterval = Annotated[Duration, AfterValidator(_a_minute_at_least)]
MatcherText = Annotated[str, AfterValidator(_matchers), Field(title="label matchers")]
Steps = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1024), NotASwitch], ...], Field(min_length=1), AfterValidator(_rising)
]
Rates = Annotated[
    tuple[Annotated[float, Field(gt=0, le=10_000), NotASwitch], ...], Field(min_length=1), AfterValidator(_rising)
]
Name = Annotated[str, AfterValidator(_name), Field(title="name")]
ServerName = Annotated[str, AfterValidator(_server_name), Field(title="name")]
Cron = Annotated[str, AfterValidator(_cron), Field(title="five cron fields")]
WindowText = Annotated[str, AfterValidator(_window), Field(title="window")]
Pattern = Annotated[str, Field(title="regular expression", min_length=1, max_length=1000), AfterValidator(_pattern)]
Timezone = Annotated[str, AfterValidator(_timezone), Field(title="time zone")]
SwitchedOff = BeforeValidator(_switched_off)
Ratio = Annotated[float, Field(title="ratio", gt=0, lt=1), NotASwitch]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NotASwitch]
EngineName = Annotated[str, AfterValidator(_engine), Field(title="engine")]


def _facts(facts: dict[str, str]) -> dict[str, str]:
    if (problem := facts_problem(facts)) is not None:
        raise ValueError(problem)
    return facts


Facts = Annotated[dict[str, str], AfterValidator(_facts)]
GpuName = Annotated[str, AfterValidator(_gpu), Field(title="GPU model")]
Parameters = Annotated[
    float,
    BeforeValidator(_parameters),
    WithJsonSchema(
        {
            "title": "number of parameters",
            "type": ["number", "string"],
            "minimum": min(_SIZES.values()),
            "pattern": r"^[0-9.]+(e[0-9]+|[MBTmbt])$",
            "examples": ["8B", "70B"],
        }
    ),
]
Count = Annotated[int, Field(ge=1), NotASwitch]
Tokens = Annotated[int, Field(title="tokens", ge=1, le=1_000_000), NotASwitch]
