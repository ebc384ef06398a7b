"""Checks of the files that a configuration names. Each function returns the problem with its fix, or None."""

import os
import ssl
import stat
from pathlib import Path

from probe.core.plain_file import is_plain, read_secret

_UNREADABLE = "cannot be read; create it, or fix the path"
_NOT_REGULAR = "is not a regular file; give the path of one"


def file_problem(file: Path) -> str | None:
    """Check that a file is readable and has an end. A FIFO is not waited for."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return _UNREADABLE
    try:
        found = os.fstat(opened)
    finally:
        os.close(opened)
    if stat.S_ISDIR(found.st_mode):
        return _UNREADABLE
    return None if is_plain(found) else _NOT_REGULAR


def folder_problem(folder: Path) -> str | None:
    """Check that a directory is writable."""
    try:
        usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    except (OSError, ValueError):  # a parent is not accessible, or the name is invalid
        usable = False
    return None if usable else "is not a writable directory; create it, or fix the path"


def authorities_problem(file: Path) -> str | None:
    """Check a file of CA certificates."""
    unreadable = file_problem(file)
    return unreadable or (None if _has_certificates(file) else "holds no certificates; use a PEM file")


def client_certificate_problem(cert_file: Path, key_file: Path | None) -> tuple[str, str] | None:
    """Check a client certificate and its key. The result has the configuration key to fix, and the problem."""
    if unreadable := file_problem(cert_file):
        return "cert_file", unreadable
    if key_file is not None and (unreadable := file_problem(key_file)):
        return "key_file", unreadable
    if not _has_certificates(cert_file):
        return "cert_file", "holds no certificate; use a PEM file"
    words = _key_problem(cert_file, key_file)
    return ("cert_file" if key_file is None else "key_file", words) if words else None


def credentials_problem(file: Path) -> str | None:
    """Check a file with one line USER:PASSWORD. Messages never show its content."""
    if unreadable := file_problem(file):
        return unreadable
    try:
        text = read_secret(file)
    except (OSError, ValueError):
        return _UNREADABLE
    user, colon, _ = text.partition(":")
    return None if user and colon and text.isprintable() else "holds no credentials; expected one line, USER:PASSWORD"


def socket_problem(path: Path) -> str | None:
    """Check a Unix socket. It may be missing, because the server may start later, but it must not be another file."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return None if stat.S_ISSOCK(mode) else "is not a socket; use the path that the server listens on"


def _has_certificates(file: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except (OSError, ValueError):
        return False
    return True


def _key_problem(cert_file: Path, key_file: Path | None) -> str | None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert_file, key_file, _refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return "holds a key that does not match the certificate; use the certificate's own key"
        if reason := str(error.reason or ""):  # for example too weak for the system's policy
            return f"cannot be used ({reason.lower().replace('_', ' ')}); use another certificate and key"
        return f"holds no private key; {'use a PEM file' if key_file else 'set key_file to the file that holds it'}"
    except ValueError as error:
        return f"{error}; use a key without one"
    except OSError:  # it was removed meanwhile
        return _UNREADABLE
    return None


def _refuse_passphrase() -> str:
    """Refuse instead of letting TLS ask for a passphrase at the terminal."""
    raise ValueError("holds a key with a passphrase")
