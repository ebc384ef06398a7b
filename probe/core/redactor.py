"""Hides secrets in text of other programs: a server, proxy or gateway may repeat the request. Pure."""

import base64
from urllib.parse import quote

_HIDDEN = b"(hidden)"
_MOST = 32


class Redactor:
    """Hides the secrets it knows, in every encoding in which they are sent, and percent-encoded."""

    def __init__(self) -> None:
        self._encodings: dict[str, tuple[bytes, ...]] = {}  # by secret, oldest first
        self._longest_first: list[bytes] = []

    def add(self, secret: str) -> None:
        """Hide a secret from now on. Of rotated secrets, the last ones stay hidden: an answer may be late."""
        if not secret or secret in self._encodings:
            return
        self._encodings[secret] = _encodings(secret)
        if len(self._encodings) > _MOST:
            del self._encodings[next(iter(self._encodings))]
        known = {each for encodings in self._encodings.values() for each in encodings}
        self._longest_first = sorted(known, key=len, reverse=True)

    def add_login(self, user: str, password: str) -> None:
        """Hide a password from now on, alone and as basic authentication sends it."""
        if password:
            self.add(password)
            self.add(f"{user}:{password}")

    def hide(self, data: bytes, shortest: int = 1) -> bytes:
        """Return the bytes without the secrets of at least `shortest` bytes."""
        for each in self._longest_first:
            if len(each) >= shortest:
                data = data.replace(each, _HIDDEN)
        return data

    def hide_text(self, text: str) -> str:
        """Return the text without the secrets."""
        return self.hide(text.encode("utf-8", "replace")).decode("utf-8")


def _encodings(secret: str) -> tuple[bytes, ...]:
    plain = secret.encode("utf-8", "replace")
    standard = base64.b64encode(plain)
    return plain, standard.rstrip(b"="), base64.urlsafe_b64encode(plain).rstrip(b"="), quote(secret, safe="").encode()
