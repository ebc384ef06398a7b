"""Users and their passwords, which are kept as bcrypt hashes.

A hash takes a processor for a tenth of a second on purpose: it is worked out in a thread of its own, one at a time,
and what came of it is remembered, so that a Prometheus which comes again and again costs nothing.
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
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

import bcrypt

_WRONG_KEPT = 256
# Passwords that wait to be checked: of everybody, and of one client, who else would leave no room for the others.
_WAITING, _WAITING_EACH = 16, 4
_SALT = 29  # characters of a hash before the digest
_LONGEST = 1024  # bytes of user and password


class BusyError(Exception):
    """Too many passwords wait to be checked; in its words, whose."""


class _Given(NamedTuple):
    user: str
    password: bytes


class CheckedPassword(NamedTuple):
    """Digests of right passwords by user, and what they were made with."""

    key: bytes
    right: Mapping[str, bytes]


class BasicAuth:
    """The users of one configuration."""

    def __init__(self, users: Mapping[str, str], remembered: "CheckedPassword | None" = None) -> None:
        """`users`: their hashes by name. `remembered`: by the configuration before; who has the same hash still need
        not be checked again.
        """
        self._users = dict(users)
        # For a name that is not known the same work is done: how long it takes tells nobody which are.
        self._nobody = next(iter(self._users.values()), "")[:_SALT].ljust(60, ".")
        # A digest holds the hash too: one of a hash that has changed fits no more.
        key, right = remembered or CheckedPassword(secrets.token_bytes(32), {})
        self._key: bytes = key
        self._right: dict[str, bytes] = dict(right)
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._checking: dict[bytes, asyncio.Future[bool]] = {}
        self._waiting: Counter[str] = Counter()  # how many of them are whose; who has none is not in it
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bcrypt")

    @property
    def wanted(self) -> bool:
        """Whether there is anybody to be."""
        return bool(self._users)

    @property
    def remembered(self) -> "CheckedPassword":
        """Who was right, for the configuration that comes after this one."""
        return CheckedPassword(self._key, self._right)

    def close(self) -> None:
        """Ends its thread; a hash that is being worked out is finished."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def allows(self, authorization: str | None, address: str = "") -> bool:
        """Whether the header names a user and the right password. `address`: the client's. Raises BusyError."""
        given = _given(authorization)
        if given is None:
            return False
        known = self._digest(given)
        if (right := self._right.get(given.user)) is not None and hmac.compare_digest(right, known):
            return True
        if known in self._wrong:
            self._wrong.move_to_end(known)
            return False
        return await self._check(given, known, _client(address))

    async def _check(self, given: _Given, known: bytes, client: str) -> bool:
        """The hash is asked. Once, however many ask with the same password meanwhile."""
        running = self._checking.get(known)
        if running is None:
            if self._waiting[client] >= _WAITING_EACH:
                raise BusyError("too many passwords from this address are being checked")
            if len(self._checking) >= _WAITING:
                raise BusyError("too many passwords are being checked")
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._thread, _matches, given, self._users.get(given.user, self._nobody))
            self._checking[known] = running
            self._waiting[client] += 1
            running.add_done_callback(lambda _: self._checked(known, client))
        try:
            # One that goes away takes the answer from nobody else.
            good = await asyncio.shield(running) and given.user in self._users
        except asyncio.CancelledError:
            if running.cancelled():
                return False  # the configuration has changed meanwhile
            raise
        if good:
            self._right[given.user] = known
        else:
            self._wrong[known] = None
            while len(self._wrong) > _WRONG_KEPT:
                self._wrong.popitem(last=False)
        return good

    def _checked(self, known: bytes, client: str) -> None:
        self._checking.pop(known, None)
        self._waiting -= Counter((client,))  # which keeps no zeros

    def _digest(self, given: _Given) -> bytes:
        """What stands for a password in memory: of no use outside this process."""
        user = given.user.encode("utf-8", "surrogateescape")
        text = b"\0".join((user, self._users.get(given.user, "").encode(), given.password))
        return hmac.digest(self._key, text, hashlib.sha256)


def _given(authorization: str | None) -> _Given | None:
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic" or len(encoded) > 2 * _LONGEST:
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return _Given(user.decode("utf-8", "surrogateescape"), password) if colon else None


def _client(address: str) -> str:
    """Whose address it is: of IPv6 the network of 64 bits, in which one machine may have them all."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    # On a socket of both families, IPv4 addresses are written so, all of them in one such network.
    return str(found.ipv4_mapped or f"{int(found) >> 64:x}::/64")


def _matches(given: _Given, hashed: str) -> bool:
    try:
        return bcrypt.checkpw(given.password, hashed.encode())
    except ValueError:  # longer than bcrypt looks at, or no hash
        return False
