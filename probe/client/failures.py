"""Why an exchange with a server failed: an exception as an Outcome and a line, and shortages of this machine."""

import errno
import os
import re
import resource
import socket
import ssl

import httpx

from probe.client.exchange import Ended, Exchange
from probe.client.patience import Patience
from probe.client.transport import LookupTimeoutError
from probe.core.request import Outcome
from probe.core.time_limits import out_of_time

_WORDS = {
    errno.EMFILE: "Kneewatch has used up its {limit} file descriptors; raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has used up its file descriptors; raise fs.file-max",
    errno.ENOBUFS: "this machine has no memory for a connection; free some, or raise net.ipv4.tcp_mem",
    errno.ENOMEM: "this machine has no memory for a connection; free some, or raise the container's memory limit",
    errno.EADDRNOTAVAIL: "this machine has no address or port for the connection; widen net.ipv4.ip_local_port_range",
}

# What the network answers. A socket existed by then, so no descriptor was missing.
_ANSWERS = {
    None,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
    errno.EPIPE,
}


_ANYIOS_WORDS = "All connection attempts failed"
_TOO_MUCH = "ENHANCE_YOUR_CALM"  # RFC 9113, section 7: "behavior that might be generating excessive load"

# OpenSSL's reasons: CERTIFICATE_VERIFY_FAILED, and alerts such as SSLV3_ALERT_CERTIFICATE_EXPIRED,
# TLSV1_ALERT_UNKNOWN_CA and TLSV13_ALERT_CERTIFICATE_REQUIRED.
_CERTIFICATE = re.compile("CERTIFICATE|UNKNOWN_CA")

# What the server's own machine answers.
_SERVERS_ANSWERS = (errno.ECONNREFUSED, errno.ECONNRESET)


def shortage(error: BaseException) -> str | None:
    """Return this machine's shortage, with the fix, if it caused an error; None for any other cause.

    Several addresses of a server can fail for several causes. asyncio joins those errors in one without a number, which
    is no shortage here.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in _WORDS:
            return _words(found.errno)
        if isinstance(found, OSError) and found.errno in _SERVERS_ANSWERS:
            return None  # whatever failed before it, such as another address
        # glibc's lookup leaves the number of whatever error of the system it met last: EINVAL, EBUSY, others.
        if isinstance(found, OSError) and found.errno not in _ANSWERS and (lacking := _shortage_now()):
            return lacking
        found = found.__cause__ or found.__context__
    return None


def is_refused(error: BaseException) -> bool:
    """Return whether the server's machine refused the connection, or the DNS has no such name: nothing that this
    machine does causes either.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, socket.gaierror):
            return found.errno == socket.EAI_NONAME
        if isinstance(found, OSError) and found.errno == errno.ECONNREFUSED:
            return True
        found = found.__cause__ or found.__context__
    return False


def is_certificate(error: BaseException) -> bool:
    """Return whether TLS ended at a certificate: the server's, by its date, name or issuer; or the client's, missing
    or refused, which a server of TLS 1.3 says only when it is read from.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLError) and _CERTIFICATE.search(str(found)):
            return True
        found = found.__cause__ or found.__context__
    return False


def _shortage_now() -> str | None:
    """Return what keeps a file from being opened now: a name lookup does not say that it lacked descriptors."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return _words(error.errno) if error.errno in _WORDS else None
    return None


def _words(number: int | None) -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WORDS[number or 0].format(limit=limit)


# The errors that an exchange may raise: httpx's own, and those it lets through from sockets, TLS and the event loop.
NETWORK_ERRORS = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ArithmeticError, RuntimeError, ExceptionGroup)


def failure_of(error: Exception, exchange: Exchange, patience: Patience) -> Ended:
    """Return the outcome of an exchange that did not complete, within the limits of `patience`."""
    received, message = exchange.received, str(error) or type(error).__name__
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return Outcome.TIMEOUT, _lateness_of(error, exchange, patience)
    received.is_refused = is_refused(error)
    if received.is_refused and message == _ANYIOS_WORDS:
        message = os.strerror(errno.ECONNREFUSED)
    if received.status is None and (lacking := shortage(error)) is not None:
        return Outcome.CLIENT_BOUND, lacking
    if received.status is None and isinstance(error, httpx.RemoteProtocolError) and _TOO_MUCH in message:
        return Outcome.REJECTED, exchange.safe(message)
    if is_certificate(error):
        return Outcome.CERTIFICATE, f"cannot be reached ({exchange.safe(message)})"
    if received.status is not None:
        return Outcome.BROKEN_STREAM, f"the answer broke off: {exchange.safe(message)}"
    return Outcome.UNREACHABLE, f"cannot be reached ({exchange.safe(message)})"


def _lateness_of(error: Exception, exchange: Exchange, patience: Patience) -> str:
    limits = exchange.request.extensions.get("timeout", {})
    if isinstance(error, LookupTimeoutError):
        return out_of_time(str(error), "connection.connect_timeout")
    if isinstance(error, httpx.ConnectTimeout):
        is_own = limits["connect"] < exchange.limit_s
        raised_by = "connection.connect_timeout" if is_own else patience.raised_by
        return out_of_time(f"no connection within {limits['connect']:g} s", raised_by)
    if not isinstance(error, httpx.ReadTimeout):
        return patience.lateness
    words = exchange.safe(str(error))  # httpcore's has none
    if not words:
        begun = exchange.received.head_ns > 0
        words = f"nothing more within {limits['read']:g} s" if begun else f"no answer within {limits['first_byte']:g} s"
    key = "first_byte_timeout" if words.startswith("no answer") else "between_bytes_timeout"
    return out_of_time(words, f"connection.{key}")
