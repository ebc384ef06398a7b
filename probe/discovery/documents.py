"""The documents of file_sd and http_sd: bytes in, plain values out, within limits of size. Pure."""

import yaml

from probe.core.foreign_json import JsonLimits, size_text

# Ten thousand groups of one target, each with ten labels.
LIMITS = JsonLimits(max_bytes=16 * 2**20, max_values=300_000)
# A number with colons, in base 60, takes time by the square of its length.
_MAX_SCALAR = 16 * 1024
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: bytes, limits: JsonLimits = LIMITS) -> object:
    """Return the document. Raises ValueError or yaml.YAMLError.

    An alias counts as much as what it stands for: nine of them in each of nine lists unfold to gigabytes.
    """
    if len(text) > limits.max_bytes:
        raise ValueError(f"it is larger than {size_text(limits.max_bytes)}")
    try:
        _check(text, limits)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - either is a safe loader
    except (TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"a value in it cannot be read ({type(error).__name__})") from None


def _check(text: bytes, limits: JsonLimits) -> None:
    """Raise ValueError if the document has too many values, or is too deep."""
    values = 0
    sizes: dict[str, int] = {}  # of what each anchor stands for
    is_in: list[tuple[str | None, int]] = []  # the anchor of each enclosing collection, and the values before it
    for event in yaml.parse(text, Loader=_Loader):
        match event:
            case yaml.AliasEvent():
                values += sizes.get(event.anchor or "", 1)
            case yaml.ScalarEvent():
                values += 1
                sizes[event.anchor or ""] = 1
                if len(event.value) > _MAX_SCALAR:
                    raise ValueError(f"it holds a text of more than {size_text(_MAX_SCALAR)}")
            case yaml.CollectionStartEvent():
                is_in.append((event.anchor, values))
                values += 1
            case yaml.CollectionEndEvent():
                anchor, before = is_in.pop()
                sizes[anchor or ""] = values - before
        if values > limits.max_values:
            raise ValueError(f"it holds more than {limits.max_values} values")
        if len(is_in) > limits.max_depth:
            raise ValueError(f"it is nested deeper than {limits.max_depth}")
