"""Places that clients share: when all are taken, the client with the most loses one."""

from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Places(Generic[T]):
    """Places for at most `most` connections.

    A newcomer always gets a place. If all are taken, the client that holds the most of them loses the one it used least
    recently. So a client may take every place that no other client needs, which a proxy in front of many people does,
    and still cannot shut the others out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Clients and their places, the least recently used first.
        self._held: dict[str, dict[T, None]] = {}
        self._clients: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def take(self, one: T, client: str) -> T | None:
        """Give `one` a place, or mark its place as used now. Return what lost its place for it, or None."""
        self.leave(one)
        displaced = None
        if len(self._clients) >= self._most:
            busiest: dict[T, None] = max(self._held.values(), key=len)
            displaced = next(iter(busiest))
            self.leave(displaced)
        self._held[client] = {**self._held.pop(client, {}), one: None}
        self._clients[one] = client
        return displaced

    def leave(self, one: T) -> None:
        """Free the place of `one`, if it has any."""
        client = self._clients.pop(one, None)
        if client is not None:
            del self._held[client][one]
            if not self._held[client]:
                del self._held[client]


def client_of(address: str) -> str:
    """Return the client at an address; for IPv6 its /64 network, because one machine may own the whole network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    # A dual-stack socket shows IPv4 addresses as mapped ones, which are all in one /64 network.
    return str(found.ipv4_mapped or f"{int(found) >> 64:x}::/64")
