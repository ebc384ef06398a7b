"""Basic authentication with bcrypt hashes.

A bcrypt hash takes a tenth of a second on purpose. Hashes are computed in a separate thread, one at a time, and the
results are cached, so that frequent scrapes cost nothing.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import bcrypt

from probe.web.places import client_of

_MAX_WRONG = 256
# Limits of waiting password checks: of all clients, and of one, so that one client cannot block the others.
_WAITING, _WAITING_EACH = 16, 4
_SALT = 29  # characters of a hash before the digest
_MAX_BYTES = 1024  # of user and password


class BusyError(Exception):
    """Too many password checks are waiting."""


class _Credentials(NamedTuple):
    user: str
    password: bytes


class CheckedPassword(NamedTuple):
    """Digests of correct passwords by user, and the digests' key."""

    key: bytes
    right: Mapping[str, bytes]


class BasicAuth:
    """The users of a web configuration."""

    def __init__(self, users: Mapping[str, str], remembered: "CheckedPassword | None" = None) -> None:
        """Take `users`: hashes by name. `remembered`: checked passwords of the previous configuration; users with
        an unchanged hash are not checked again.
        """
        self._users = dict(users)
        # An unknown user costs the same work, so that the duration does not reveal which users exist.
        self._unknown_user_hash = next(iter(self._users.values()), "")[:_SALT].ljust(60, ".")
        # The digest includes the hash, so it becomes invalid when the hash changes.
        key, right = remembered or CheckedPassword(secrets.token_bytes(32), {})
        self._key: bytes = key
        self._right: dict[str, bytes] = dict(right)
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._checking: dict[bytes, asyncio.Future[bool]] = {}
        self._waiting: Counter[str] = Counter()  # by client; clients without waiting checks are not in it
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bcrypt")

    @property
    def is_required(self) -> bool:
        """Return whether any users are configured."""
        return bool(self._users)

    @property
    def remembered(self) -> "CheckedPassword":
        """Return the correct passwords, for the next configuration."""
        return CheckedPassword(self._key, self._right)

    def close(self) -> None:
        """Stop the thread after the current hash."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def allows(self, authorization: str | None, address: str = "") -> bool:
        """Return whether the header has a user and the correct password. `address`: the client's. Raises BusyError."""
        given = _credentials(authorization)
        if given is None:
            return False
        known = self._digest(given)
        if (right := self._right.get(given.user)) is not None and hmac.compare_digest(right, known):
            return True
        if known in self._wrong:
            self._wrong.move_to_end(known)
            return False
        return await self._is_correct(given, known, client_of(address))

    async def _is_correct(self, given: _Credentials, known: bytes, client: str) -> bool:
        """Check a password against its hash, once for all concurrent requests with the same password."""
        running = self._checking.get(known)
        if running is None:
            if self._waiting[client] >= _WAITING_EACH:
                raise BusyError("too many passwords from this address are being checked")
            if len(self._checking) >= _WAITING:
                raise BusyError("too many passwords are being checked")
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(
                self._thread, _matches, given, self._users.get(given.user, self._unknown_user_hash)
            )
            self._checking[known] = running
            self._waiting[client] += 1
            running.add_done_callback(lambda _: self._checked(known, client))
        try:
            # A cancelled request does not cancel the check for the others.
            good = await asyncio.shield(running) and given.user in self._users
        except asyncio.CancelledError:
            if running.cancelled():
                return False  # the configuration has changed
            raise
        if good:
            self._right[given.user] = known
        else:
            self._wrong[known] = None
            while len(self._wrong) > _MAX_WRONG:
                self._wrong.popitem(last=False)
        return good

    def _checked(self, known: bytes, client: str) -> None:
        self._checking.pop(known, None)
        self._waiting -= Counter((client,))  # subtraction drops zeros

    def _digest(self, given: _Credentials) -> bytes:
        """Return the in-memory digest of a password, which is useless outside this process."""
        user = given.user.encode("utf-8", "surrogateescape")
        text = b"\0".join((user, self._users.get(given.user, "").encode(), given.password))
        return hmac.digest(self._key, text, hashlib.sha256)


def _credentials(authorization: str | None) -> _Credentials | None:
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic" or len(encoded) > 2 * _MAX_BYTES:
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return _Credentials(user.decode("utf-8", "surrogateescape"), password) if colon else None


def _matches(given: _Credentials, hashed: str) -> bool:
    try:
        return bcrypt.checkpw(given.password, hashed.encode())
    except ValueError:  # too long for bcrypt, or not a hash
        return False
