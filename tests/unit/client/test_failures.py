"""What this machine lacks is no failure of the server: a request, a list of models, a scrape and an API key."""

import asyncio
import errno
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from plain_records import spec

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.failures import is_certificate, is_refused, shortage
from probe.client.judgement import excused
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.core.request import Outcome, RequestRecord, Traffic
from probe.scrape.scraper import Scraper

CLOCK = SystemClock()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _sent(where: Endpoint) -> RequestRecord:
    async def main() -> RequestRecord:
        async with Client(where, CLOCK, 5.0) as client:
            with no_descriptor_left():
                return await client.send(spec(8, 3), "tiny", Traffic.CANARY, CLOCK.monotonic_ns())

    return asyncio.run(main())


def _no_file() -> str:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    "where",
    [
        Endpoint("llama", "http://127.0.0.1:1"),
        Endpoint("llama", "https://127.0.0.1:1"),
        Endpoint("llama", "http://localhost:1"),
        Endpoint("llama", "http://127.0.0.1:1", proxy="http://127.0.0.1:2"),
        Endpoint("llama", "http://127.0.0.1:1", secret=_no_file),
    ],
    ids=["http", "https", "name", "proxy", "key"],
)
@pytest.mark.fault("C26")
def test_without_descriptors_the_client_is_at_fault(where: Endpoint) -> None:
    found = _sent(where)
    assert found.outcome is Outcome.CLIENT_BOUND, found.detail
    assert "file descriptors; raise the limit (ulimit -n)" in str(found.detail)
    assert found.is_up is None


def test_a_refused_connection_stays_the_servers() -> None:
    async def main() -> RequestRecord:
        async with Client(Endpoint("llama", "http://127.0.0.1:1"), CLOCK, 5.0) as client:
            return await client.send(spec(8, 3), "tiny", Traffic.CANARY, CLOCK.monotonic_ns())

    assert asyncio.run(main()).outcome is Outcome.UNREACHABLE


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (Endpoint("llama", "http://127.0.0.1:1"), "cannot be reached (Connection refused: 127.0.0.1, port 1)"),
        (Endpoint("llama", "https://127.0.0.1:1", http2=True), "cannot be reached (Connection refused)"),
        (Endpoint("llama", "http://x.invalid", proxy="http://127.0.0.1:1"), "cannot be reached (Connection refused)"),
    ],
    ids=["directly", "over HTTP/2", "by a proxy"],
)
def test_a_refusal_is_said_to_be_one(where: Endpoint, words: str) -> None:
    async def main() -> RequestRecord:
        async with Client(where, CLOCK, 5.0) as client:
            return await client.send(spec(8, 3), "tiny", Traffic.CANARY, CLOCK.monotonic_ns())

    assert asyncio.run(main()).detail == words


def test_models_and_metrics_name_the_shortage() -> None:
    async def main() -> None:
        where = Endpoint("llama", "http://127.0.0.1:1")
        async with Client(where, CLOCK, 5.0) as client:
            with no_descriptor_left(), pytest.raises(TargetError, match=r"\(ulimit -n\)$") as raised:
                await client.models()
            assert raised.value.outcome is Outcome.CLIENT_BOUND
        scraper = Scraper(where, CLOCK)
        with no_descriptor_left(), pytest.raises(TargetError, match="ulimit -n"):
            await scraper.read()
        await scraper.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENFILE, "x"), "fs.file-max"),
        (OSError(errno.ENOBUFS, "x"), "memory"),
        (OSError(errno.ENOMEM, "x"), "memory"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "port"),
        (OSError(errno.ECONNREFUSED, "x"), None),
        (OSError("Multiple exceptions: [Errno 99] no address, [Errno 111] refused"), None),
        (socket.gaierror(-2, "Name or service not known"), None),
        (TimeoutError(), None),
        (ValueError("x"), None),
    ],
)
@pytest.mark.fault(
    "C26P",
    "No memory or local port for a connection",
    area="Sockets",
    users_see="`client_bound`, with the setting to raise",
    stays="objectives",
)
def test_each_shortage_has_words(error: Exception, words: str | None) -> None:
    found = shortage(error)
    assert found is None if words is None else words in str(found)


def _after(earlier: OSError, later: OSError) -> OSError:
    """Return an error that was raised while another one was handled, as for the next address of a name."""
    later.__context__ = earlier
    return later


def test_a_connection_that_was_refused_is_no_shortage_whatever_failed_before() -> None:
    refused = OSError(errno.ECONNREFUSED, "x")
    assert shortage(_after(OSError(errno.EADDRNOTAVAIL, "x"), refused)) is None
    assert shortage(_after(OSError(errno.EMFILE, "x"), OSError(errno.ECONNRESET, "x"))) is None


async def _sent_to(url: str) -> RequestRecord:
    async with Client(Endpoint("a", url), CLOCK, 5.0) as client:
        return await client.send(spec(), "m", Traffic.CANARY, CLOCK.monotonic_ns())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1"])
def test_a_refused_connection_is_not_excused_by_a_stop_of_this_machine(url: str) -> None:
    """Whether this process runs or not, the kernel of the server's machine refuses."""
    record = asyncio.run(_sent_to(url))
    assert (record.outcome, record.is_refused) == (Outcome.UNREACHABLE, True)
    assert excused(record, [30.0]).outcome is Outcome.UNREACHABLE
    assert excused(replace(record, is_refused=False), [30.0]).outcome is Outcome.CLIENT_BOUND, "it broke off"


def test_a_name_that_does_not_exist_is_no_excuse_and_a_lookup_that_took_too_long_may_be() -> None:
    assert is_refused(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    assert not is_refused(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))
    assert not is_refused(OSError(errno.ECONNRESET, "x"))


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)", True),
        ("[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired (_ssl.c:2580)", True),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required (_ssl.c:2580)", True),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)", True),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", False),
    ],
)
def test_a_certificate_is_told_from_other_ends_of_a_handshake(words: str, *, is_one: bool) -> None:
    error = httpx.ConnectError("x")
    error.__cause__ = ssl.SSLError(1, words)
    assert is_certificate(error) is is_one


_UNCLEAR = [
    OSError(errno.EINVAL, "x"),
    OSError(errno.EBUSY, "x"),
    socket.gaierror(-3, "Temporary failure in name resolution"),
]
_ANSWERED = [
    OSError(errno.ECONNREFUSED, "x"),
    OSError(errno.EHOSTUNREACH, "x"),
    OSError("Multiple exceptions: [Errno 99] no address, [Errno 111] refused"),
    TimeoutError(),
]


@pytest.mark.parametrize("error", _UNCLEAR)
def test_an_unclear_error_is_a_shortage_while_no_file_can_be_opened(error: OSError) -> None:
    with no_descriptor_left():
        found = shortage(error)
    assert "ulimit -n" in str(found)
    assert shortage(error) is None


@pytest.mark.parametrize("error", _ANSWERED)
def test_what_the_network_answered_is_no_shortage(error: OSError) -> None:
    with no_descriptor_left():
        assert shortage(error) is None
