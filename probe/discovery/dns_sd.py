"""Discovery by DNS: polls the address or SRV records of a name.

Uses the DNS servers and search domains of /etc/resolv.conf. A name that does not exist has no servers: a headless
Service without ready pods may look like that. While no DNS server answers, the last servers are kept.
"""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from probe.config.discovery import DnsDiscovery
from probe.discovery.polling import PollError, ProblemReporter, polled
from probe.discovery.types import DiscoveredServer, State, authority, state_of

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.rdata import Rdata

_LIFETIME_S = 5.0
_NONE_TIMES = 5  # some three seconds


class DnsSource:
    """One server for each address or SRV record."""

    def __init__(
        self,
        config: DnsDiscovery,
        scheme: str,
        path: str,
        reporter: ProblemReporter,
        *,
        resolver: "Resolver | None" = None,
    ) -> None:
        """Take `resolver`: None for the system's."""
        self._name, self._kind, self._port = config.name, config.type, config.port
        self._every_s = config.every
        self._scheme, self._path = scheme, path
        self._reporter = reporter
        self._resolver = resolver
        self._none = 0  # answers without records in a row

    def states(self) -> AsyncGenerator[State, None]:
        return polled(self._ask, self._every_s, self._reporter)

    async def _ask(self) -> State:
        # Slow to import: only when it is used.
        import dns.asyncresolver  # noqa: PLC0415
        import dns.exception  # noqa: PLC0415
        import dns.resolver  # noqa: PLC0415

        try:
            if self._resolver is None:
                self._resolver = dns.asyncresolver.Resolver()
            answer = await self._resolver.resolve(self._name, self._kind, lifetime=_LIFETIME_S, search=True)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            # A restarting resolver may answer so once, which would remove every target.
            self._none += 1
            if self._none < _NONE_TIMES:
                raise PollError(f"{self._name}: the DNS has no {self._kind} records of this name; retrying") from None
            self._reporter.well()
            return ()
        except (dns.exception.DNSException, OSError) as error:
            raise PollError(f"{self._name}: {_words(error)}; the last servers are kept") from None
        self._reporter.well()
        self._none = 0
        return state_of(found for record in answer if (found := self._found(record)) is not None)

    def _found(self, record: "Rdata") -> DiscoveredServer | None:
        """Return a record's server, or None for an SRV record with the root as target: there is no such service."""
        if self._kind == "SRV":
            host, port = str(record.target).removesuffix(".").lower(), record.port  # type: ignore[attr-defined]
        else:
            host, port = str(record.address), self._port  # type: ignore[attr-defined]
        if not host:
            return None
        where = authority(host, port)
        return DiscoveredServer(id=where, base_url=f"{self._scheme}://{where}{self._path}")


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
