"""Hides secrets in words of other programs: a server, proxy, registry or API may repeat the request.

`SECRETS` has all secrets of the process: whatever reads one adds it (`plain_file.read_secret`, the types of the
configuration). `text.one_line`, the messages of errors, and the log hide them, so no peer needs code of its own.

A secret is found in any usual encoding: plain, percent-encoded, in base64 at any place, escaped as in JSON, HTML or
Python, and wrapped over lines. Of a longer one, a part is enough: half of it, or 16 characters; or a third, where an
ellipsis or the end of the text follows. Credentials that are not known are found by what stands before them.
"""

import base64
import json
import re
from threading import Lock
from urllib.parse import quote

from probe.core.secret_search import SecretSearch

HIDDEN = "(hidden)"
_HIDDEN = HIDDEN.encode()
_MOST, _MOST_OF_PROCESS = 32, 256
_LONGEST_TEXT = 256 * 1024  # a traceback has a few KB; more is cut
_KEPT, _MOST_KEPT = 256, 512

# Credentials by what stands before them, and keys by their form. Every quantifier is bounded or possessive: linear.
_TEXT = r"[\w.~+/=%:-]{8,4096}+"
_VALUE = rf"(?=[\w.~+/=%:-]{{0,64}}?[0-9]){_TEXT}"  # with a digit: `Bearer authentication` has none
_NAMED = (
    r"authorization|cookie|(?:\w{1,20}[-_]){0,3}(?:password|passwd|secret|api[-_]?key|private[-_]?key|access[-_]?key)"
    r"|(?:access|auth|id|refresh|session)[-_]?token|token"
)
# As GitHub, GitLab, Hugging Face, NVIDIA, Groq, Grafana, Slack, PyPI, npm, Docker and OpenAI write their keys.
_ISSUED = r"sk|hf|gh[opsur]|github_pat|glpat|glsa|gsk|nvapi|npm|pypi|dckr_pat|xox[a-z]"
_IS = r"\\{0,8}[\"']?\s{0,4}[:=]\s{0,4}\\{0,8}[\"']?"
_SCHEME = r"(?:bearer|basic|negotiate)(?:\s|%20|\+|\\[nt]){1,4}"
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(\bauthorization{_IS}(?:bearer|basic|digest|negotiate|token|api-?key)\s{{1,4}}){_TEXT}",
        rf"(\b{_SCHEME}){_VALUE}",
        rf"((?<!\w)(?:{_NAMED}){_IS}){_VALUE}",
        r"([?&][\w-]{0,40}(?:key|token|secret|sig|signature|password|auth|credential)=)[^&\s\"'<>#]++",
        r"(\w://)[^/\s@?#\"'<>]{1,1024}+(?=@)",
        rf"\b()(?:{_ISSUED})[-_](?=[A-Za-z0-9_-]{{0,64}}?[0-9])[A-Za-z0-9_-]{{16,4096}}+",
        r"\b()(?:(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|hvs\.[\w-]{20,4096})(?![\w-])",
        r"(PRIVATE KEY-{1,9}(?:\s|\\[nr]){0,8})[A-Za-z0-9+/=\s\\]{16,16384}+",
        r"\b()eyJ[A-Za-z0-9_-]{8,8192}+\.[A-Za-z0-9_-]{8,8192}+(?:\.[A-Za-z0-9_-]{0,8192}+)?",
    )
)


class Redactor:
    """Hides the secrets it knows, and whatever looks like one."""

    def __init__(self, most: int = _MOST, *, takes_words: bool = True) -> None:
        """Take `most`: of how many secrets it keeps the last used ones.

        `takes_words`: whether a secret that is a short word, such as the keys `none` and `test` of servers that check
        none, is hidden wherever it stands: right where all the text is that server's. Else only after `Bearer` and the
        like.
        """
        self._most, self._takes_words = most, takes_words
        self._encodings: dict[str, tuple[bytes, ...]] = {}  # by secret, last used at the end
        self._longest_first: list[bytes] = []
        self._search: SecretSearch | None = None  # made when it is first needed: a start adds many secrets
        self._seen: dict[str, str] = {}  # short texts without secrets: most words come again and again
        self._one_change = Lock()

    def add(self, secret: str) -> None:
        """Hide a secret from now on. Of rotated secrets, the last ones stay hidden: an answer may be late."""
        secret = secret.strip()
        if not secret:
            return
        with self._one_change:
            known = self._encodings.pop(secret, None)
            self._encodings[secret] = known or _encodings(secret)
            if known is None:
                while len(self._encodings) > self._most:
                    del self._encodings[next(iter(self._encodings))]
                every = {each for encodings in self._encodings.values() for each in encodings}
                self._longest_first = sorted(every, key=len, reverse=True)
                self._search = None
                self._seen = {}

    def add_login(self, user: str, password: str) -> None:
        """Hide a password from now on, alone and as basic authentication sends it."""
        if password:
            self.add(password)
            self.add(f"{user}:{password}")

    def forget(self) -> None:
        """Forget all secrets."""
        with self._one_change:
            self._encodings, self._longest_first, self._search, self._seen = {}, [], None, {}

    def hide(self, data: bytes, shortest: int = 1) -> bytes:
        """Return the bytes without the secrets of at least `shortest` bytes, whole ones only: fast, for whole pages."""
        for each in self._longest_first:
            if len(each) >= shortest:
                data = data.replace(each, _HIDDEN)
        return data

    def hide_text(self, text: str) -> str:
        """Return the text without the secrets, and without what looks like one."""
        if (known := self._seen.get(text)) is not None:
            return known
        seen, shown = self._seen, text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
        shown = self._known().without(shown, HIDDEN)
        for pattern in _PATTERNS:
            shown = pattern.sub(rf"\1{HIDDEN}", shown)
        if len(text) <= _KEPT:
            if len(seen) >= _MOST_KEPT:
                seen.clear()
            seen[text] = shown
        return shown

    def _known(self) -> SecretSearch:
        with self._one_change:
            if self._search is None:
                self._search = SecretSearch(self._encodings, takes_words=self._takes_words)
            return self._search


def _encodings(secret: str) -> tuple[bytes, ...]:
    plain = secret.encode("utf-8", "replace")
    standard = base64.b64encode(plain)
    return (
        plain,
        standard.rstrip(b"="),
        base64.urlsafe_b64encode(plain).rstrip(b"="),
        quote(secret, safe="").encode("utf-8", "replace"),
        json.dumps(secret)[1:-1].encode(),
    )


SECRETS = Redactor(_MOST_OF_PROCESS, takes_words=False)
"""The secrets of this process."""
