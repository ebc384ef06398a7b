"""Untrusted text, sanitized for logs, pages and terminals: all words of other programs pass here."""

from probe.core.redactor import SECRETS

LIMIT = 200


def one_line(text: str | bytes, limit: int = LIMIT) -> str:
    """Return at most `limit` printable characters on one line, without secrets. The text may be untrusted."""
    if isinstance(text, bytes):
        text = text[: 8 * limit].decode("utf-8", "replace")
    text = " ".join(SECRETS.hide_text(text[: 8 * limit]).split())
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
