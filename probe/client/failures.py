"""Why an exchange with a server failed: an exception as an Outcome and a line of text."""

import httpx

from probe.client.exchange import Ended, Exchange
from probe.client.shortage import shortage
from probe.client.transport import LookupTimeoutError
from probe.core.request import Outcome

# The errors that an exchange may raise: httpx's own, and those it lets through from sockets, TLS and the event loop.
NETWORK_ERRORS = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ArithmeticError, RuntimeError, ExceptionGroup)


def failure_of(error: Exception, exchange: Exchange, timeout_s: float) -> Ended:
    """Return the outcome of an exchange that did not complete."""
    received, message = exchange.received, str(error) or type(error).__name__
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        if isinstance(error, httpx.ConnectTimeout):
            return Outcome.TIMEOUT, message if isinstance(error, LookupTimeoutError) else "no connection in time"
        if isinstance(error, httpx.ReadTimeout) and str(error):
            return Outcome.TIMEOUT, exchange.safe(str(error))
        got = f"{len(received.reads)} reads of an answer" if received.reads else "no answer"
        return Outcome.TIMEOUT, f"{got} within {timeout_s:g} s"
    if received.status is None and (lacking := shortage(error)) is not None:
        return Outcome.CLIENT_BOUND, lacking
    if received.status is not None:
        return Outcome.BROKEN_STREAM, f"the answer broke off: {message}"
    return Outcome.UNREACHABLE, f"cannot be reached ({exchange.safe(message)})"
