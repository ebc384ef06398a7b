"""The secrets that requests to a target carry, and the header of its API key."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Secrets:
    """The API key, and the values of secret headers by name."""

    key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def check(self) -> None:
        """Raise ValueError with a message for a value that no header can carry."""
        if self.key and not is_sendable(self.key):
            raise ValueError("the API key contains characters that a header cannot carry")
        for name, value in self.headers.items():
            if not is_sendable(value):
                raise ValueError(f"the value of the header {name} contains characters that a header cannot carry")


@dataclass(frozen=True, slots=True)
class AuthHeader:
    """The header of the API key, and the word in front of the key; "" for none."""

    name: str = "authorization"
    scheme: str = "Bearer"

    def headers(self, key: str | None) -> dict[str, str]:
        """Return the header with the key; nothing without a key."""
        return {self.name: f"{self.scheme} {key}".strip()} if key else {}


BEARER = AuthHeader()


def is_sendable(value: str) -> bool:
    """Return whether a header can carry the value."""
    return value.isascii() and value.isprintable()
