"""Finds secrets, and parts of them, in text of other programs, in whatever encoding they repeat them. Pure.

The text is read without its escapes and white space. In that, each part of a secret begins with a few characters that a
table has; so the time does not depend on the number of secrets.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import unescape
from typing import NamedTuple

_GRAM = 8  # characters by which a part is looked up
_WHOLE = 12  # of a shorter secret no part is hidden: it may be any word
_CUT_OFF = 6  # the least beginning of a secret that is hidden where the text was cut
_LONGEST_PART, _LONG, _LONGEST_OF_LONG = 16, 256, 32  # a long one is such as a JWT

# What stands for another character, also where it was escaped several times; and white space, as of wrapped lines.
_ESCAPE = re.compile(
    r"%(?:25){0,4}([0-9A-Fa-f]{2})|\\{1,16}+(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|[nrt]|(.)|\Z)"
    r"|&(?:amp;){0,4}(#[0-9]{1,5}|#x[0-9A-Fa-f]{1,4}|amp|lt|gt|quot|apos);|\s+",
    re.ASCII,
)
_SPACE = " \t\n\r\f\v"
_AS_STANDARD = str.maketrans("-_", "+/")  # base64's two alphabets
_NAME = re.compile(r"(?:bearer|basic|key|token|secret|password|authorization)\W{1,6}\Z", re.IGNORECASE)
_LONGEST_NAME = 24
_CUT = re.compile(r"\W{0,64}\Z|\W?(?:\.\.|\xe2\x80\xa6|\*\*|xxx|[<\[(])")


class _Part(NamedTuple):
    """A place in a form of a secret. At least `least` characters around it must be there.

    `is_begin`: the text must have been cut after them.
    """

    form: str
    at: int
    least: int
    is_begin: bool = False


@dataclass(frozen=True, slots=True)
class _Plain:
    """A text without escapes: its characters, and where each begins and ends in the raw text."""

    raw: str
    text: str
    begins: list[int]
    ends: list[int]


class SecretSearch:
    """A search for some secrets."""

    def __init__(self, secrets: Iterable[str], *, takes_words: bool) -> None:
        """Take `takes_words`: whether a short word counts wherever it stands; else only after `Bearer` and the like."""
        self._takes_words = takes_words
        self._parts: dict[str, list[_Part]] = {}
        for form in {form for secret in secrets for form in _forms(secret)}:
            for gram, part in _parts(form):
                self._parts.setdefault(gram, []).append(part)
        self._sizes = sorted({len(gram) for gram in self._parts}, reverse=True)

    def without(self, text: str, hidden: str) -> str:
        """Return the text with `hidden` in place of each secret."""
        if not self._parts:
            return text
        plain = _unescaped(text.encode("utf-8", "replace").decode("latin-1"))
        pieces, shown, at = [], 0, 0
        while at < len(plain.text):
            begin, end = self._found(plain, at)
            if end > begin:
                pieces += [plain.raw[shown : max(plain.begins[begin], shown)], hidden]
                shown = plain.ends[end - 1]
            at = max(end, at + 1)
        if not pieces:
            return text
        return "".join((*pieces, plain.raw[shown:])).encode("latin-1").decode("utf-8", "replace")

    def _found(self, plain: _Plain, at: int) -> tuple[int, int]:
        """Return the longest part that has the character `at`; an empty one for none."""
        best = at, at
        for size in self._sizes:
            for part in self._parts.get(plain.text[at : at + size], ()):
                begin, end = _extent(plain.text, at, part)
                is_enough = end - begin >= part.least and (not part.is_begin or _is_cut(plain, end))
                if is_enough and len(part.form) < _GRAM:
                    is_word = part.form.isalpha() and not self._takes_words
                    is_enough = _stands_alone(plain, begin, end) and not (is_word and not _is_named(plain, begin))
                if is_enough and end - begin > best[1] - best[0]:
                    best = begin, end
        return best


def _extent(text: str, at: int, part: _Part) -> tuple[int, int]:
    """Return how far the text is the same as the form around this place."""
    form, begin, end = part.form, at, at
    while begin > 0 and at - begin < part.at and text[begin - 1] == form[part.at - (at - begin) - 1]:
        begin -= 1
    while end < len(text) and part.at + end - at < len(form) and text[end] == form[part.at + end - at]:
        end += 1
    return begin, end


def _stands_alone(plain: _Plain, begin: int, end: int) -> bool:
    """Return whether there is no letter or digit beside it: a few characters are also part of other words."""
    first, after = plain.begins[begin], plain.ends[end - 1]
    around = plain.raw[max(first - 1, 0) : first], plain.raw[after : after + 1]
    return not any(each.isalnum() for each in around)


def _is_named(plain: _Plain, begin: int) -> bool:
    first = plain.begins[begin]
    return _NAME.search(plain.raw[max(first - _LONGEST_NAME, 0) : first]) is not None


def _is_cut(plain: _Plain, end: int) -> bool:
    return _CUT.match(plain.raw, plain.ends[end - 1]) is not None


def _parts(form: str) -> Iterator[tuple[str, _Part]]:
    """Yield places such that each part that is long enough has one, with the characters there."""
    length = len(form)
    size = min(_GRAM, length)
    most = _LONGEST_PART if length <= _LONG else _LONGEST_OF_LONG
    least = length if length < _WHOLE else max(_GRAM, min(length // 2, most))
    for at in {*range(0, length - size + 1, least - size + 1), length - size}:
        yield form[at : at + size], _Part(form, at, least)
    if length >= _WHOLE:
        yield form[:_CUT_OFF], _Part(form, 0, min(max(_CUT_OFF, length // 3), least), is_begin=True)


def _forms(secret: str) -> Iterator[str]:
    """Yield what a secret may be sent as, as `_unescaped` reads it. A header's value may be a word and the secret.

    The login in basic authentication may be repeated decoded.
    """
    word, login = secret.rpartition(" ")[2], _login(secret.rpartition(" ")[2])
    for each in {secret, word if len(word) >= _GRAM else secret, *login}:
        plain = each.encode("utf-8", "replace")
        yield _form(each)
        if " " in each:
            yield _form(each.replace(" ", "+"))
        yield _form(base64.b64encode(plain).rstrip(b"=").decode())
        if len(plain) >= _GRAM:
            yield from (plain.hex(), plain.hex().upper(), plain.hex(":"))
            numbers = [str(byte) for byte in plain]  # as Rust, Go and Java print bytes
            yield from (",".join(numbers), "".join(numbers))
        for before in range(3) if len(plain) >= _GRAM else ():  # in the base64 of a larger text, at its three places
            packed = base64.b64encode(b"\0" * before + plain).decode()
            yield _form(packed[(0, 2, 3)[before] : (before + len(plain)) * 8 // 6])


def _form(text: str) -> str:
    return _unescaped(text.encode("utf-8", "replace").decode("latin-1")).text


def _login(secret: str) -> tuple[str, ...]:
    """Return the login that basic authentication sends as this, and its password; nothing for anything else."""
    try:
        login = base64.b64decode(secret, validate=True).decode()
    except (binascii.Error, ValueError):
        return ()
    password = login.partition(":")[2]
    return (login, password) if password and login.isprintable() else ()


def _unescaped(raw: str) -> _Plain:
    """Return the text without escapes and white space."""
    text: list[str] = []
    begins: list[int] = []
    ends: list[int] = []
    at = 0
    for found in _ESCAPE.finditer(raw):
        begin, end = found.span()
        characters = _meant(found)
        text += (raw[at:begin], characters)
        begins += (*range(at, begin), *([begin] * len(characters)))
        ends += (*range(at + 1, begin + 1), *([end] * len(characters)))
        at = end
    text.append(raw[at:])
    begins += range(at, len(raw))
    ends += range(at + 1, len(raw) + 1)
    return _Plain(raw, "".join(text).translate(_AS_STANDARD), begins, ends)


def _meant(found: re.Match[str]) -> str:
    """Return what an escape stands for, as the bytes of its UTF-8; nothing for white space."""
    percent, wide, short, plain, entity = found.groups()
    if number := percent or short:
        return _unless_space(chr(int(number, 16)))
    if wide:
        meant = chr(int(wide, 16))
    elif entity:
        meant = unescape(f"&{entity};")
    else:
        meant = plain or ""
    return _unless_space(meant.encode("utf-8", "replace").decode("latin-1"))


def _unless_space(text: str) -> str:
    return "" if text in _SPACE else text
