"""The headers of a target's requests: plain ones, secret ones, and the API key's header."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from probe.config.path_checks import file_problem
from probe.config.types import ConfigSection, Secret, arm
from probe.core.plain_file import read_secret

# Header names as in RFC 9110.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
# Names of headers that Kneewatch sets itself, or that belong to the connection.
_OWN = (
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
)  # fmt: skip
# What the names of headers with credentials contain.
_SECRET = re.compile("auth|cookie|credential|key|password|secret|token", re.IGNORECASE)
_MAX_VALUE = 8192
MAX_HEADERS = 16


def _any_header_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("expected the name of a header, such as x-tenant")
    if text.lower() in _OWN:
        raise ValueError("expected a header that Kneewatch does not set itself; remove it")
    return text


def _header_name(text: str) -> str:
    if _any_header_name(text).lower() == "authorization":
        raise ValueError("expected another header; use api_key_file, with auth_header for another scheme")
    return text


def _header_value(text: str) -> str:
    if not (text and text.isascii() and text.isprintable() and text == text.strip() and len(text) <= _MAX_VALUE):
        raise ValueError(f"expected printable ASCII text of at most {_MAX_VALUE} characters, not only blanks")
    return text


def _auth_header(text: str) -> str:
    name, _, scheme = text.partition(" ")
    if not _NAME.fullmatch(name) or name.lower() in _OWN or (scheme and not _NAME.fullmatch(scheme)):
        raise ValueError("expected a header, and the word before the key if any: api-key, Authorization Bearer")
    return text


class SecretHeader(ConfigSection):
    """A header's value that is not shown: from a file, which is read again and again, or given here."""

    file: Path | None = None
    """File that contains only the value; read again like `api_key_file`. Must be readable at startup. This or `secret`.
    """
    secret: Secret | None = None
    """The value as a secret, preferably as `${NAME}`. This or `file`."""

    def value(self) -> str:
        """Return the value. Raises OSError or UnicodeError for a file that cannot be read."""
        if self.file is not None:
            return read_secret(self.file)
        return self.secret.get_secret_value().strip() if self.secret is not None else ""


HeaderName = Annotated[str, AfterValidator(_header_name), Field(title="header name")]
PlainValue = Annotated[str, AfterValidator(_header_value), Field(title="text")]
HeaderValue = Annotated[
    Annotated[PlainValue, Tag("plain")] | Annotated[SecretHeader, Tag("mapping")], Discriminator(arm)
]
AuthHeaderText = Annotated[str, AfterValidator(_auth_header), Field(title="NAME or NAME WORD")]
HeadersConfig = Annotated[dict[HeaderName, HeaderValue], Field(max_length=MAX_HEADERS)]
# Of requests that have no other place for a key.
AnyHeaderName = Annotated[str, AfterValidator(_any_header_name), Field(title="header name")]
AnyHeadersConfig = Annotated[dict[AnyHeaderName, HeaderValue], Field(max_length=MAX_HEADERS)]


def names_secret(name: str) -> bool:
    """Return whether a header of this name seems to hold a secret."""
    return _SECRET.search(name) is not None


def header_problems(headers: dict[str, str | SecretHeader], auth_text: str) -> list[tuple[str, str]]:
    """Return the names of headers that cannot be used, each with the problem and its fix."""
    problems: list[tuple[str, str]] = []
    known: set[str] = set()
    for name, value in headers.items():
        if name.lower() in known:
            problems.append((name, "differs from another header only in case; keep one"))
        known.add(name.lower())
        if name.lower() == auth_text.partition(" ")[0].lower():
            problems.append((name, "is the header of the API key; use api_key_file"))
        elif isinstance(value, str) and names_secret(name):
            problems.append((name, "seems to hold a secret by its name; use {file: PATH} or {secret: ${VARIABLE}}"))
        elif isinstance(value, SecretHeader) and (value.file is None) == (value.secret is None):
            problems.append((name, "expected either file or secret"))
        elif isinstance(value, SecretHeader) and value.file is not None and (words := file_problem(value.file)):
            problems.append((name, f"its file {words}"))
    return problems
