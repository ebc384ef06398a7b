"""A DNS server that answers for some names and is silent for all others, and programs that use it alone.

/etc/resolv.conf cannot name a port. The server listens at port 53 of an address of its own in 127.0.0.0/8, which needs
root, and so does the mount namespace in which a program finds the server in its /etc/resolv.conf.
"""

import random
import shlex
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import dns.message
import dns.rrset

_BUFFER = 4096


@dataclass(slots=True)
class DnsServer:
    """The server as the test sees it. `services`: the SRV records of names; they may change at any time."""

    resolv_conf: Path
    asked: set[str] = field(default_factory=set)
    services: dict[str, list[str]] = field(default_factory=dict)

    def used_by(self, command: Sequence[str]) -> list[str]:
        """Return `command` as one that asks this server for names."""
        mounted = f"mount --bind {shlex.quote(str(self.resolv_conf))} /etc/resolv.conf"
        return ["unshare", "-m", "sh", "-c", f"{mounted} && exec {shlex.join(command)}"]


@contextmanager
def dns_server(folder: Path, *known: str) -> Iterator[DnsServer]:
    """Answer that the `known` names are 127.0.0.1, and nothing else. A lookup of another name takes ten seconds."""
    with _listener() as listener:
        file = folder / "resolv.conf"
        file.write_text(f"nameserver {listener.getsockname()[0]}\noptions timeout:5 attempts:2\n")
        server = DnsServer(file)
        thread = threading.Thread(target=_answer, args=(listener, server, known), daemon=True)
        thread.start()
        yield server
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def _listener() -> socket.socket:
    for _ in range(20):
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            listener.bind((f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(2, 250)}", 53))
        except PermissionError:
            listener.close()
            raise
        except OSError:
            listener.close()
            continue
        return listener
    raise AssertionError("no free address for a DNS server")


def _answer(listener: socket.socket, server: DnsServer, known: Sequence[str]) -> None:
    listener.settimeout(0.2)
    while listener.fileno() >= 0:
        try:
            data, asker = listener.recvfrom(_BUFFER)
        except TimeoutError:
            continue
        except OSError:
            return
        query = dns.message.from_wire(data)
        name, kind = query.question[0].name.to_text().removesuffix("."), query.question[0].rdtype.name
        server.asked.add(name)
        if name not in known and name not in server.services:
            continue
        reply = dns.message.make_response(query)
        if kind == "SRV" and name in server.services:
            reply.answer.append(dns.rrset.from_text(f"{name}.", 1, "IN", "SRV", *server.services[name]))
        if kind == "A" and name in known:
            reply.answer.append(dns.rrset.from_text(f"{name}.", 1, "IN", "A", "127.0.0.1"))
        with suppress(OSError):
            listener.sendto(reply.to_wire(), asker)
