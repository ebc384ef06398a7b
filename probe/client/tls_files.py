"""TLS contexts of connections to servers, made again when the files they are from change."""

import ssl
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import httpx
import structlog

from probe.core.file_signature import file_signature
from probe.core.plain_file import check_plain
from probe.core.text import one_line

_log = structlog.get_logger()


def client_context(
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    *,
    verify: bool = True,
    http2: bool = False,
) -> ssl.SSLContext:
    """Return the current TLS context: how to verify a server's certificate, and the client certificate if one is set.

    Targets with the same files share it, but for `http2`, which the handshake offers. A new one is for new connections.
    If changed files cannot be used, such as a certificate without its key, the log says so once, and the previous
    context stays in use. Raises OSError or ValueError where a file cannot be used and there is no previous context.
    """
    return _files(ca_file, cert_file, key_file, verify=verify, http2=http2).current()


class _TlsFiles:
    """The context from these files."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: tuple[Path, ...]) -> None:
        self._make = make
        self._files = files
        self._context: ssl.SSLContext | None = None
        self._signatures: object = None

    def current(self) -> ssl.SSLContext:
        # Before reading, so that a change during the read is noticed.
        signatures = [file_signature(file) for file in self._files]
        if self._context is None:
            self._context, self._signatures = self._make(), signatures
        elif signatures != self._signatures:
            self._signatures = signatures
            files = [str(file) for file in self._files]
            try:
                self._context = self._make()
            except (OSError, ValueError) as error:
                words = "changed certificates cannot be used, the previous ones stay in use"
                _log.error(words, files=files, detail=one_line(str(error)))
            else:
                _log.info("changed certificates are in use", files=files)
        return self._context


@cache
def _files(ca_file: str | None, cert_file: str | None, key_file: str | None, *, verify: bool, http2: bool) -> _TlsFiles:
    named = [file for file in (ca_file, cert_file, key_file) if file is not None]
    return _TlsFiles(partial(_make, ca_file, cert_file, key_file, verify=verify, http2=http2), tuple(map(Path, named)))


def _make(
    ca_file: str | None, cert_file: str | None, key_file: str | None, *, verify: bool, http2: bool
) -> ssl.SSLContext:
    for file in filter(None, (ca_file, cert_file, key_file)):
        check_plain(file)
    if verify and ca_file:
        context = ssl.create_default_context(cafile=ca_file)
    else:
        context = httpx.create_ssl_context(verify=verify, trust_env=False)
    context.set_alpn_protocols(["http/1.1", "h2"] if http2 else ["http/1.1"])  # httpcore sets the same
    if cert_file:
        context.load_cert_chain(cert_file, key_file, _no_passphrase)
    return context


def _no_passphrase() -> str:
    """Refuse, where TLS would ask for a passphrase on the terminal and wait."""
    raise ValueError("the client certificate's key has a passphrase")
