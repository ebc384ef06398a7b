"""The settings that `kneewatch tune` tries: their values, their place in a command, and what a twin has of them."""

import itertools
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
from probe.core.vllm_command import DEFAULT, count, vllm_flags
from probe.core.vllm_flags import MAX_NUM_ACTIVE_SEQS, SHORT_FORMS
from probe.report.tune_record import JOINED, settings_of

PREFIX_CACHING, KV_DTYPE, MEMORY_SHARE = "enable_prefix_caching", "kv_cache_dtype", "gpu_memory_utilization"
_TRUE, _FALSE = "true", "false"
_MOST = 10**6
_SHELLS = frozenset(("sh", "bash", "ash", "dash", "zsh"))
_BITS = {"auto": 16, "float16": 16, "fp16": 16, "bfloat16": 16, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8}
_UNKNOWN_SHARE = "metrics do not show how much of the GPU's memory the KV cache has"


_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# Words of one's own go into a command as they are: no blank, quote, brace or leading dash, nothing of a shell.
_ANY = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./:@-]{0,199}")
# What makes the server reachable, or is a secret: no setting of the engine.
_NO_SETTINGS = frozenset(("host", "port", "uds", "api_key", "root_path", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"))
_MOST_PAIRS = 16
_NO_TWIN = "its effect is not simulated"


@dataclass(frozen=True, slots=True)
class KnobValues:
    """A setting and its values, the base first. Two settings that are tried together have a `+` in name and values."""

    name: str
    values: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Return the settings: one, or two that are tried together."""
        return list(settings_of(self.name, self.values[0]))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) <= _MOST


def _is_share(text: str) -> bool:
    return re.fullmatch(r"0?\.[0-9]{1,4}|1(\.0)?", text) is not None and float(text) > 0


def _is_switch(value: str) -> bool:
    return value in (_TRUE, _FALSE)


# By name: what is a value, and its description. Other settings have values of _ANY; nothing else gets into a command.
_VALUES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    MAX_NUM_SEQS: (_is_count, "whole numbers, such as 128,64,256"),
    MAX_NUM_BATCHED_TOKENS: (_is_count, "whole numbers, such as 2048,8192"),
    MEMORY_SHARE: (_is_share, "shares up to 1, such as 0.9,0.95"),
    KV_DTYPE: (lambda text: re.fullmatch(r"[a-z][a-z0-9_]{0,31}", text) is not None, "types, such as auto,fp8"),
    PREFIX_CACHING: (_is_switch, "true,false or false,true"),
}


def knobs_of(options: Sequence[str], *, together: bool = False) -> list[KnobValues]:
    """Parse --knob NAME=BASE,VALUE,.... `together`: two of them as one, with every pair. Raises ConfigError."""
    found: dict[str, KnobValues] = {}
    for option in options:
        name, _, text = option.partition("=")
        name, values = name.replace("-", "_"), tuple(text.split(","))
        if not _NAME.fullmatch(name) or name in _NO_SETTINGS:
            raise ConfigError(
                f"--knob {one_line(option)}: expected NAME=BASE,VALUE,..., with NAME a flag of the engine such as"
                f" {', '.join(_VALUES)}"
            )
        is_value, expected = _VALUES.get(name, (_is_any, "values without blanks, quotes and braces"))
        if len(values) < 2 or len(set(values)) != len(values) or not all(map(is_value, values)):  # noqa: PLR2004
            raise ConfigError(f"--knob {one_line(option)}: expected {expected}, the present value first")
        if name in found:
            raise ConfigError(f"--knob {name}: given twice; give all its values at once")
        found[name] = KnobValues(name, values)
    if not found:
        raise ConfigError("--knob: expected at least one, such as max_num_seqs=128,64,256")
    return [_together(list(found.values()))] if together else list(found.values())


def _is_any(text: str) -> bool:
    return _ANY.fullmatch(text) is not None


def _together(knobs: Sequence[KnobValues]) -> KnobValues:
    if len(knobs) != 2:  # noqa: PLR2004
        raise ConfigError(f"--together: expected two --knob, got {len(knobs)}; each pair of values is measured")
    pairs = [JOINED.join(pair) for pair in itertools.product(*(knob.values for knob in knobs))]
    if len(pairs) > _MOST_PAIRS:
        raise ConfigError(
            f"--together: {len(pairs)} pairs of values, expected at most {_MOST_PAIRS}; give fewer values"
        )
    return KnobValues(JOINED.join(knob.name for knob in knobs), tuple(pairs))


def server_flags(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as vLLM's startup flags, for the conditions of a result."""
    stated = {name: value for name, value in settings.items() if value != DEFAULT}
    return {name: value.capitalize() if _is_switch(value) else value for name, value in stated.items()}


def still_has(knob: KnobValues, value: str, result: CapacityResult) -> str | None:
    """Return what the server's metrics say of a setting, if it is another one of its values; None: not that."""
    for name, asked in settings_of(knob.name, value).items():
        shown = result.context.flags.get(name, "").lower()
        others = {settings_of(knob.name, other)[name] for other in knob.values} - {asked}
        if result.context.flag_sources.get(name) == "metrics" and _plain(shown) in map(_plain, others):
            return f"{name} {shown}"
    return None


def _plain(value: str) -> str:
    """Return a value as text that is the same for 0.9 and 0.90."""
    return f"{float(value):g}" if re.fullmatch(r"[0-9.]+", value) and value.count(".") < 2 else value  # noqa: PLR2004


def check_base(words: Sequence[str], knobs: Sequence[KnobValues]) -> None:
    """Raise ConfigError where a command states another value than the first, which is measured as the base."""
    stated = vllm_flags([], words, {})
    base_settings = {name: value for knob in knobs for name, value in settings_of(knob.name, knob.values[0]).items()}
    for name, value in base_settings.items():
        base, known = server_flags({name: value}).get(name, DEFAULT), stated.get(name) or _stated(words, name)
        if known not in (DEFAULT, base) and known not in _places(name, is_only=len(base_settings) == 1):
            raise ConfigError(f"--knob {name}: the first value is the base, and --start states {known}; put it first")


def _stated(words: Sequence[str], name: str) -> str:
    """Return what a command states of a flag that is not among those of vllm_flags."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if _is_flag(flag, f"no_{name}"):
            return "False"
        if _is_flag(flag, name):
            value = value if equals else following
            return "True" if not value or value.startswith("-") else value.capitalize() if _is_switch(value) else value
    return DEFAULT


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
        found = [*_without(found, name, is_switch=_is_switch(value)), *_flag(name, value)]
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
    if value == DEFAULT:
        return []
    if _is_switch(value):
        return [f"--{flag}" if value == _TRUE else f"--no-{flag}"]
    return [f"--{flag}", value]


def _is_flag(word: str, name: str) -> bool:
    """Return whether a word is this flag, in its long form or vLLM's short one."""
    is_long = word.startswith("--") and word[2:].replace("-", "_") == name
    return is_long or SHORT_FORMS.get(word) == name


def _without(words: Sequence[str], name: str, *, is_switch: bool) -> list[str]:
    """Return the words without a flag and its value. A switch has none."""
    kept, is_value = [], False
    for word in words:
        flag, equals, _ = word.partition("=")
        is_it, is_off = _is_flag(flag, name), _is_flag(flag, f"no_{name}")
        is_value = is_value and not word.startswith("-")
        if not is_it and not is_off and not is_value:
            kept.append(word)
        is_value = is_it and not equals and not is_switch
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
    if name != KV_DTYPE:
        is_share = name == MEMORY_SHARE
        ends = [float(each) if is_share else None for each in (base, value)]
        return Knob(name, ends[0], ends[1], reason=_UNKNOWN_SHARE if is_share else _NO_TWIN)
    bits, kv_tokens = (_BITS.get(base), _BITS.get(value)), stored.kv_tokens if stored is not None else None
    if bits[0] is None or bits[1] is None:
        return Knob(KV_CACHE, None, None, reason=f"the bits of {value if bits[1] is None else base} are not known")
    return Knob(KV_CACHE, kv_tokens, None if kv_tokens is None else kv_tokens * bits[0] / bits[1])
