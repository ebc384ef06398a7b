"""Why a Prometheus, or a proxy before it, does not take a question, and what to change: a row for each reason. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from probe.core.text import one_line

SET = "set prometheus.token_file, basic_auth or headers"
_PATH, _LIMIT = "check the path of prometheus.url", "raise the tenant's limit of queries"
_PROXY = "give an address that is reached without that proxy"
_WAIT = "see whether Prometheus runs, and what the proxy before it says"
_CERTIFICATE = "set prometheus.cert_file and key_file"
_OTHER_CERTIFICATE = "set prometheus.cert_file to one that its authority has signed and that has not expired"
_NARROW = "ask for a shorter time or fewer servers, or raise its limits"
# For a status: what it means, the fix without credentials, and the fix with some.
_STATUSES: Mapping[int, tuple[str, str, str]] = {
    401: (
        "Prometheus asks for credentials",
        f"{SET}, such as the tenant's X-Scope-OrgID",
        "it does not take these: check prometheus.token_file, basic_auth and headers",
    ),
    403: (
        "Prometheus forbids the question",
        f"{SET}, or cert_file",
        "give these credentials, or this tenant, the right to query",
    ),
    404: ("there is no query API at this address", _PATH, _PATH),
    407: ("a proxy asks for credentials", _PROXY, _PROXY),
    413: ("the question is too long for a proxy", _NARROW, _NARROW),
    414: ("the question is too long for a proxy", _NARROW, _NARROW),
    422: ("Prometheus refuses the question", _NARROW, _NARROW),
    429: ("Prometheus limits its questions", _LIMIT, _LIMIT),
    502: ("nothing answers behind the proxy", _WAIT, _WAIT),
    503: ("Prometheus is not ready", _WAIT, _WAIT),
    504: ("Prometheus does not answer the proxy before it in time", _WAIT, _WAIT),
}
_QUESTION = (400, 422)
# nginx's words for a client without a certificate, and for one that it does not trust.
_NO_CERTIFICATE, _BAD_CERTIFICATE = b"No required SSL certificate", b"The SSL certificate error"


@dataclass(frozen=True, slots=True)
class _Tls:
    """A failure of TLS: what OpenSSL says, what it means, and the fix without a client certificate, and with one."""

    signs: tuple[str, ...]
    words: str
    fix: str
    fix_with_certificate: str = ""


_TLS = (
    _Tls(
        ("unable to get local issuer", "unable to get issuer", "self-signed", "self signed"),
        "its certificate is signed by an authority that is not known here",
        "set prometheus.ca_file to that authority's certificate",
    ),
    _Tls(
        ("mismatch", "is not valid for"),
        "its certificate is for another name",
        "give the name that it is for in prometheus.url",
    ),
    _Tls(("certificate has expired",), "its certificate has expired", "renew it there"),
    _Tls(("not yet valid",), "its certificate is not valid yet", "set the clocks"),
    _Tls(
        (
            "ALERT_BAD_CERTIFICATE", "CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "CERTIFICATE_EXPIRED",
            "CERTIFICATE_UNKNOWN", "ALERT_ACCESS_DENIED",
        ),
        "it requires a client certificate that it trusts",
        _CERTIFICATE,
        _OTHER_CERTIFICATE,
    ),
    _Tls(
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "record layer failure"),
        "it does not speak TLS at this port",
        "write http:// in prometheus.url, or give the port that does",
    ),
)  # fmt: skip


def of_status(status: int, body: bytes, *, has_credentials: bool, has_certificate: bool) -> str | None:
    """Return what an HTTP status means, with the answer's own words, and the fix; None for one that has none."""
    if status == 400 and (_NO_CERTIFICATE in body or _BAD_CERTIFICATE in body):  # noqa: PLR2004 - nginx's
        fix = _OTHER_CERTIFICATE if has_certificate else _CERTIFICATE
        return f"the proxy requires a client certificate that it trusts (HTTP 400); {fix}"
    said = _words(body)
    if status == 400 and said:  # noqa: PLR2004
        return f"Prometheus refuses the question (HTTP 400: {said})"
    if (row := _STATUSES.get(status)) is None:
        return None
    return f"{row[0]} (HTTP {status}{f': {said}' if said else ''}); {row[2] if has_credentials else row[1]}"


def of_error(error: str, *, is_plain: bool, has_certificate: bool) -> str | None:
    """Return what a failed connection means, by what OpenSSL says, and the fix; None for another reason.

    `is_plain`: without TLS. A server of TLS closes such a connection.
    """
    for row in _TLS:
        if any(sign in error for sign in row.signs):
            fix = row.fix_with_certificate if has_certificate and row.fix_with_certificate else row.fix
            return f"{row.words} ({one_line(error)}); {fix}"
    if is_plain and "reset by peer" in error:
        return f"the connection was closed ({one_line(error)}); write https:// in prometheus.url if it speaks TLS"
    return None


def is_page(body: bytes) -> bool:
    """Return whether an answer is a web page."""
    return body.lstrip()[:1] == b"<"


def _words(body: bytes) -> str:
    """Return what a short answer says: Prometheus' error, or plain text."""
    if not body.strip() or is_page(body):
        return ""
    try:
        document = json.loads(body)  # a few KiB: the adapter reads no more of an error
    except (ValueError, RecursionError):
        return one_line(body)
    error = document.get("error") if isinstance(document, dict) else None
    return one_line(error if isinstance(error, str) else body)
