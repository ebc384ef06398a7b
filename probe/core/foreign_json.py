"""The reader of JSON that another program sent: bytes, values and depth are bounded before it is parsed. Pure.

Parsed JSON takes up to eighty times its length in memory: `{}` is two bytes in a document and 64 as an object. A limit
of bytes alone does not bound it. One pass over the bytes, at the speed of C, counts the values and measures the depth;
only a document within its limits reaches a parser. docs/evidence/limits.md lists all limits with their reasons.
"""

import json
from dataclasses import dataclass
from typing import Any

_STRUCTURE = b"[]{},:"
_NOT_COUNTED = bytes(set(range(256)) - set(b"[{,:"))
_NOT_STRUCTURE_OR_QUOTE = bytes(set(range(256)) - set(_STRUCTURE + b'"'))
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_BOM = b"\xef\xbb\xbf"


class ForeignJsonError(ValueError):
    """A document over a limit, or not JSON. The message completes "the answer ...": "is larger than 64 KiB"."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """The largest document to accept. `max_values` counts keys, too; a value takes up to some 250 bytes of memory."""

    max_bytes: int
    max_values: int
    max_depth: int = 32


def read_json(data: bytes, limits: JsonLimits) -> Any:  # noqa: ANN401 - as json.loads
    """Return the document. Raises ForeignJsonError with words for people. Only UTF-8 is accepted, as RFC 8259 says."""
    check_json(data, limits)
    try:
        return json.loads(data.removeprefix(_BOM).decode("utf-8"))
    except UnicodeDecodeError:
        raise ForeignJsonError("is not JSON (it is not UTF-8)") from None
    except json.JSONDecodeError as error:
        raise ForeignJsonError(f"is not JSON ({error})") from None
    except (ValueError, RecursionError):
        raise ForeignJsonError("is not JSON (a number in it is too long)") from None


def check_json(data: bytes, limits: JsonLimits) -> None:
    """Raise ForeignJsonError if the document, parsed by any parser of UTF-8, would exceed the limits.

    What is within them need not be JSON. Takes 1 µs for a short document, some 5 ms for 1 MiB.
    """
    if len(data) > limits.max_bytes:
        raise ForeignJsonError(f"is larger than {size_text(limits.max_bytes)}")
    # An upper bound, without regard to strings, suffices for most documents.
    opened = data.count(b"[") + data.count(b"{")
    if opened <= limits.max_depth and opened + data.count(b",") + data.count(b":") < limits.max_values:
        return
    structure = _outside_strings(data, limits)
    if len(structure.translate(None, _NOT_COUNTED)) >= limits.max_values:
        raise ForeignJsonError(f"holds more than {limits.max_values} values")
    brackets = structure.translate(_AS_SQUARE, _NOT_BRACKETS)
    for _ in range(limits.max_depth):  # each pass removes the innermost brackets
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        # Brackets without a partner end here as well: a parser would fail only after it went as deep as they do.
        raise ForeignJsonError(f"is nested deeper than {limits.max_depth}, or its brackets do not match")


def size_text(count: int) -> str:
    """Return a number of bytes in the largest binary unit that divides it."""
    return f"{count >> 20} MiB" if count % 2**20 == 0 else f"{count >> 10} KiB" if count % 2**10 == 0 else f"{count} B"


def _outside_strings(data: bytes, limits: JsonLimits) -> bytes:
    """Return the brackets, commas and colons that are not in strings.

    A parser fails where a backslash is outside a string, and where a string does not end; nothing after that counts.
    """
    quoted = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_STRUCTURE_OR_QUOTE)
    if quoted.count(b'"') > 2 * limits.max_values:
        raise ForeignJsonError(f"holds more than {limits.max_values} values")
    return b"".join(quoted.split(b'"')[::2])
