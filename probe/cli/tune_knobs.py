"""The settings that `kneewatch tune` tries: their values, their place in a command, and what a twin has of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from probe.capacity.model.bottleneck import KV_CACHE, MAX_NUM_SEQS
from probe.capacity.model.knobs import MAX_NUM_BATCHED_TOKENS, PREFIX_CACHE, Knob
from probe.core.errors import ConfigError
from probe.core.fitted_server import FittedServer
from probe.core.result import CapacityResult
from probe.core.server_limits import SMALLER
from probe.core.text import one_line
from probe.core.vllm_command import count, vllm_flags
from probe.core.vllm_flags import MAX_NUM_ACTIVE_SEQS

PREFIX_CACHING, KV_DTYPE, MEMORY_SHARE = "enable_prefix_caching", "kv_cache_dtype", "gpu_memory_utilization"
_TRUE = "true"
_MOST = 10**6
_SHELLS = frozenset(("sh", "bash", "ash", "dash", "zsh"))
_BITS = {"auto": 16, "float16": 16, "fp16": 16, "bfloat16": 16, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8}
_UNKNOWN_SHARE = "metrics do not show how much of the GPU's memory the KV cache has"


@dataclass(frozen=True, slots=True)
class KnobValues:
    """A setting and its values, the base first."""

    name: str
    values: tuple[str, ...]


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) <= _MOST


def _is_share(text: str) -> bool:
    return re.fullmatch(r"0?\.[0-9]{1,4}|1(\.0)?", text) is not None and float(text) > 0


# By name: what is a value, and its description. Nothing else gets into a command.
_VALUES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    MAX_NUM_SEQS: (_is_count, "whole numbers, such as 128,64,256"),
    MAX_NUM_BATCHED_TOKENS: (_is_count, "whole numbers, such as 2048,8192"),
    MEMORY_SHARE: (_is_share, "shares up to 1, such as 0.9,0.95"),
    KV_DTYPE: (lambda text: re.fullmatch(r"[a-z][a-z0-9_]{0,31}", text) is not None, "types, such as auto,fp8"),
    PREFIX_CACHING: (lambda text: text in (_TRUE, "false"), "true,false or false,true"),
}


def knobs_of(options: Sequence[str]) -> list[KnobValues]:
    """Parse --knob NAME=BASE,VALUE,.... Raises ConfigError."""
    found: dict[str, KnobValues] = {}
    for option in options:
        name, _, text = option.partition("=")
        name, values = name.replace("-", "_"), tuple(text.split(","))
        if name not in _VALUES:
            raise ConfigError(
                f"--knob {one_line(option)}: expected NAME=BASE,VALUE,..., with NAME one of {', '.join(_VALUES)}"
            )
        is_value, expected = _VALUES[name]
        if len(values) < 2 or len(set(values)) != len(values) or not all(map(is_value, values)):  # noqa: PLR2004
            raise ConfigError(f"--knob {one_line(option)}: expected {expected}, the present value first")
        if name in found:
            raise ConfigError(f"--knob {name}: given twice; give all its values at once")
        found[name] = KnobValues(name, values)
    if not found:
        raise ConfigError("--knob: expected at least one, such as max_num_seqs=128,64,256")
    return list(found.values())


def server_flags(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as vLLM's startup flags, for the conditions of a result."""
    return {name: value.capitalize() if name == PREFIX_CACHING else value for name, value in settings.items()}


def still_has(knob: KnobValues, value: str, result: CapacityResult) -> str | None:
    """Return what the server's metrics say of the setting, if it is another one of its values; None: not that."""
    name = knob.name
    shown = result.context.flags.get(name, "").lower()
    if result.context.flag_sources.get(name) != "metrics":
        return None
    return next((f"{name} {shown}" for other in knob.values if other != value and _plain(other) == _plain(shown)), None)


def _plain(value: str) -> str:
    """Return a value as text that is the same for 0.9 and 0.90."""
    return f"{float(value):g}" if re.fullmatch(r"[0-9.]+", value) and value.count(".") < 2 else value  # noqa: PLR2004


def check_base(words: Sequence[str], knobs: Sequence[KnobValues]) -> None:
    """Raise ConfigError where a command states another value than the first, which is measured as the base."""
    stated = vllm_flags([], words, {})
    for knob in knobs:
        base, known = server_flags({knob.name: knob.values[0]})[knob.name], stated.get(knob.name, "default")
        if known not in ("default", base) and known not in _places(knob.name, is_only=len(knobs) == 1):
            raise ConfigError(
                f"--knob {knob.name}: the first value is the base, and --start states {known}; put it first"
            )


def with_settings(words: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Return the words of a command with these settings: where they have `{NAME}`, there, else as vLLM's flags.

    Raises ConfigError for a shell's script, which takes no flags.
    """
    found = filled(words, settings)
    for name, value in settings.items():
        if has_place(words, name, is_only=len(settings) == 1):
            continue
        if found[0].rpartition("/")[2] in _SHELLS:
            raise ConfigError(f"--start: is a shell script; put {{{name}}} in it, where the value goes")
        found = [*_without(found, name), *_flag(name, value)]
    return found


def filled(words: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Return the words of a command with these settings where it has `{NAME}`, or `{value}` for the only one."""
    found = list(words)
    for name, value in settings.items():
        for place in _places(name, is_only=len(settings) == 1):
            found = [word.replace(place, value) for word in found]
    return found


def has_place(words: Sequence[str], name: str, *, is_only: bool) -> bool:
    """Return whether the words say where the value of a setting goes. `is_only`: it is the only one."""
    return any(place in word for place in _places(name, is_only=is_only) for word in words)


def _places(name: str, *, is_only: bool) -> list[str]:
    return [f"{{{name}}}", *(["{value}"] if is_only else [])]


def _flag(name: str, value: str) -> list[str]:
    flag = name.replace("_", "-")
    if name == PREFIX_CACHING:
        return [f"--{flag}" if value == _TRUE else f"--no-{flag}"]
    return [f"--{flag}", value]


def _without(words: Sequence[str], name: str) -> list[str]:
    """Return the words without a flag and its value."""
    kept, is_value = [], False
    for word in words:
        flag, equals, _ = word.partition("=")
        plain = flag.replace("_", "-")
        is_it = plain in (f"--{name.replace('_', '-')}", f"--no-{name.replace('_', '-')}")
        if not is_it and not is_value:
            kept.append(word)
        is_value = is_it and not equals and name != PREFIX_CACHING
    return kept


def in_effect(name: str, value: int, flags: Mapping[str, str]) -> int:
    """Return the limit that a server with these flags has with this value: another flag may be lower."""
    lower = next((smaller for smaller, limit in SMALLER.items() if limit == name), "")
    return min(value, count(flags.get(lower, "")) or value)


def twin_knob(
    name: str, base: str, value: str, stored: FittedServer | None, flags: Mapping[str, str] = MappingProxyType({})
) -> Knob:
    """Return the change of a setting as a twin takes it; with the reason where it cannot. `flags`: the server's."""
    if name in (MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS):
        before, after = (in_effect(name, int(each), flags) for each in (base, value))
        if name == MAX_NUM_SEQS and int(value) < (active := count(flags.get(MAX_NUM_ACTIVE_SEQS, "")) or 0):
            return Knob(name, float(before), None, reason=f"vLLM would not start: {MAX_NUM_ACTIVE_SEQS} is {active}")
        return Knob(name, float(before), float(after))
    if name == PREFIX_CACHING:
        return Knob(PREFIX_CACHE, float(base == _TRUE), float(value == _TRUE))
    if name == MEMORY_SHARE:
        return Knob(name, float(base), float(value), reason=_UNKNOWN_SHARE)
    bits, kv_tokens = (_BITS.get(base), _BITS.get(value)), stored.kv_tokens if stored is not None else None
    if bits[0] is None or bits[1] is None:
        return Knob(KV_CACHE, None, None, reason=f"the bits of {value if bits[1] is None else base} are not known")
    return Knob(KV_CACHE, kv_tokens, None if kv_tokens is None else kv_tokens * bits[0] / bits[1])
