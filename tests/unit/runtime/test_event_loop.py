"""The commands' event loop looks names up in its own way, for every caller."""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import anyio
import httpx
import pytest
from hostile_server import hostile, whole

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.transport import Transport
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.runtime import event_loop
from probe.runtime.event_loop import Address, NameLookups


def _found(*addresses: str) -> list[Address]:
    families = {True: socket.AF_INET6, False: socket.AF_INET}
    return [(families[":" in one], socket.SOCK_STREAM, 6, "", (one, 0)) for one in addresses]


def _texts(found: Sequence[Address]) -> list[str]:
    return [address[0] for *_, address in found]


class Names:
    """A resolver that a test directs. Names that are in `silent` are not answered until `speak` is set."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answers: dict[str, list[Address] | OSError] = {}
        self.silent: set[str] = set()
        self.speak = threading.Event()

    def __call__(self, host: str) -> list[Address]:
        self.asked[host] += 1
        if host in self.silent or host.startswith("dead"):
            self.speak.wait(20)
        found = self.answers.get(host, _found("127.0.0.1"))
        if isinstance(found, OSError):
            raise found
        return found


@pytest.fixture
def names() -> Iterator[Names]:
    directed = Names()
    yield directed
    directed.speak.set()


@pytest.mark.fault(
    "NM2",
    "Twenty connections to a name at once",
    area="Names",
    users_see="-",
    stays="one lookup",
)
def test_a_name_is_looked_up_once_for_all_who_wait_and_its_answer_serves_some_seconds(names: Names) -> None:
    async def main() -> None:
        lookups = NameLookups(names)
        found = await asyncio.gather(*(lookups.addresses("a") for _ in range(20)))
        assert all(_texts(one) == ["127.0.0.1"] for one in found)
        await lookups.addresses("a")
        assert names.asked == {"a": 1}

    asyncio.run(main())


@pytest.mark.fault(
    "NM7",
    "A server moves to another address",
    area="Names",
    users_see="-",
    stays="connections follow within 3 s of the DNS",
)
def test_an_answer_that_is_old_is_looked_up_again(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_FRESH_S", 0.0)

    async def main() -> None:
        lookups = NameLookups(names)
        await lookups.addresses("a")
        names.answers["a"] = _found("127.0.0.2")
        assert _texts(await lookups.addresses("a")) == ["127.0.0.2"]

    asyncio.run(main())


def test_connections_take_the_addresses_of_the_preferred_family_in_turn(names: Names) -> None:
    names.answers["a"] = _found("10.0.0.1", "10.0.0.2", "::1", "::2")

    async def main() -> None:
        lookups = NameLookups(names)
        found = [_texts(await lookups.addresses("a")) for _ in range(3)]
        assert found == [
            ["10.0.0.1", "10.0.0.2", "::1", "::2"],
            ["10.0.0.2", "10.0.0.1", "::2", "::1"],
            ["10.0.0.1", "10.0.0.2", "::1", "::2"],
        ]

    asyncio.run(main())


def test_live_replicas_share_the_turns_of_a_dead_one_evenly(names: Names) -> None:
    replicas = [f"10.0.0.{i}" for i in range(1, 5)]
    names.answers["a"] = _found(*replicas)

    async def main() -> None:
        lookups = NameLookups(names)
        orders = [_texts(await lookups.addresses("a")) for _ in range(12)]
        assert Counter(order[0] for order in orders) == dict.fromkeys(replicas, 3)
        taken = Counter(next(address for address in order if address != replicas[0]) for order in orders)
        assert taken == dict.fromkeys(replicas[1:], 4)
        assert all(sorted(order) == replicas for order in orders)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.fault("C29")
def test_a_hundred_names_that_hang_leave_room_for_one_that_answers(names: Names) -> None:
    async def main() -> None:
        lookups = NameLookups(names)
        dead = [asyncio.create_task(lookups.addresses(f"dead{i}")) for i in range(100)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            assert _texts(await lookups.addresses("a")) == ["127.0.0.1"]
        for one in dead:
            one.cancel()
        await asyncio.gather(*dead, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.fault(
    "NM3",
    "More names hang than there are threads",
    area="Names",
    users_see="-",
    stays="names that hung before share a quarter of the threads",
)
def test_names_that_hung_before_share_some_of_the_threads(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_HANGS_S", 0.01)
    monkeypatch.setattr(event_loop, "_MAX_HUNG", 2)
    monkeypatch.setattr(event_loop, "_MAX_THREADS", 6)
    monkeypatch.setattr(event_loop, "_FRESH_S", 0.0)

    async def main() -> None:
        lookups = NameLookups(names)
        first = [asyncio.create_task(lookups.addresses(f"dead{i}")) for i in range(5)]
        await asyncio.sleep(0.1)
        names.speak.set()
        await asyncio.gather(*first)
        names.speak.clear()
        again = [asyncio.create_task(lookups.addresses(f"dead{i}")) for i in range(5)]
        await asyncio.sleep(0.05)
        assert sum(names.asked.values()) == 7, "five, and then two at a time"
        assert _texts(await lookups.addresses("a")) == ["127.0.0.1"]
        names.speak.set()
        await asyncio.gather(*again)

    asyncio.run(main())


@pytest.mark.fault(
    "NM4",
    "The DNS server hangs or fails after it has answered",
    area="Names",
    users_see="-",
    stays="the last answer serves for a minute; a name that is gone is gone at once",
)
def test_the_last_answer_serves_while_a_lookup_hangs_or_fails_but_not_once_the_name_is_gone(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_FRESH_S", 0.0)
    monkeypatch.setattr(event_loop, "_PATIENCE_S", 0.05)

    async def main() -> None:
        lookups = NameLookups(names)
        await lookups.addresses("a")
        names.silent = {"a"}
        assert _texts(await lookups.addresses("a")) == ["127.0.0.1"]
        names.silent = set()
        names.speak.set()
        await lookups._pending["a"]
        names.answers["a"] = socket.gaierror(socket.EAI_AGAIN, "try again")
        assert _texts(await lookups.addresses("a")) == ["127.0.0.1"]
        names.answers["a"] = socket.gaierror(socket.EAI_NONAME, "not known")
        with pytest.raises(socket.gaierror, match="not known"):
            await lookups.addresses("a")

    asyncio.run(main())


@pytest.mark.fault("NM4")
def test_an_answer_of_more_than_a_minute_ago_serves_no_longer(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_FRESH_S", 0.0)
    monkeypatch.setattr(event_loop, "_STALE_S", 0.0)

    async def main() -> None:
        lookups = NameLookups(names)
        await lookups.addresses("a")
        names.answers["a"] = socket.gaierror(socket.EAI_AGAIN, "try again")
        with pytest.raises(socket.gaierror, match="try again"):
            await lookups.addresses("a")

    asyncio.run(main())


@pytest.mark.fault(
    "NM8",
    "A lookup never ends",
    area="Names",
    users_see="an error after 10 s, or at the connection's own limit",
    stays="-",
)
def test_a_lookup_without_an_answer_has_a_deadline(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_DEADLINE_S", 0.05)

    async def main() -> None:
        with pytest.raises(socket.gaierror, match=r"the lookup of dead has not ended within 0\.05 s"):
            await NameLookups(names).addresses("dead")

    asyncio.run(main())


@pytest.mark.fault(
    "NM5",
    "A name that no resolver can have",
    area="Names",
    users_see="`unreachable`",
    stays="-",
)
def test_a_name_that_no_resolver_can_have_is_an_error() -> None:
    async def main() -> None:
        for name in ("a..invalid", f"{'a' * 64}.invalid"):
            with pytest.raises(socket.gaierror):
                await NameLookups().addresses(name)

    asyncio.run(main())


@pytest.mark.fault(
    "NM6",
    "Names come and go without end",
    area="Names",
    users_see="-",
    stays="those of the past are forgotten",
)
def test_names_of_the_past_are_forgotten(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_MAX_NAMES", 10)
    monkeypatch.setattr(event_loop, "_STALE_S", 0.0)

    async def main() -> None:
        lookups = NameLookups(names)
        for number in range(100):
            await lookups.addresses(f"pod-{number}")
        assert len(lookups._began_s) <= 11
        assert len(lookups._answers) <= 11

    asyncio.run(main())


def test_addresses_and_names_become_addresses_with_the_port() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for host in ("127.0.0.1", "localhost", b"localhost"):
            found = await loop.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
            assert ("127.0.0.1", 80) in [address for *_, address in found]
        ((*_, address),) = await loop.getaddrinfo("::1", 80, type=socket.SOCK_STREAM)
        assert address == ("::1", 80, 0, 0)
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("nowhere.invalid", 80, type=socket.SOCK_STREAM)

    event_loop.run(main())


@pytest.mark.fault("C46")
def test_names_that_hang_neither_hold_up_other_names_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()

    def look_up(host: str) -> object:
        if not host.startswith("alive"):
            forever.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(event_loop, "_system_lookup", look_up)

    async def main() -> list[int]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, httpx.AsyncClient(transport=_transport()) as own:
            dead = [asyncio.create_task(own.get(f"http://dead{i}.invalid:{port}", timeout=30)) for i in range(20)]
            dead += [asyncio.create_task(anyio.connect_tcp(f"gone{i}.invalid", port)) for i in range(20)]  # type: ignore[list-item]
            await asyncio.sleep(0.1)
            async with httpx.AsyncClient(trust_env=False) as stock:
                clients = (own, stock)
                answers = [await client.get(f"http://alive.invalid:{port}", timeout=10) for client in clients]
            for each in dead:
                each.cancel()
            await asyncio.gather(*dead, return_exceptions=True)
        return [answer.status_code for answer in answers]

    began_s = time.monotonic()
    assert event_loop.run(main()) == [204, 204]
    assert time.monotonic() - began_s < 15
    forever.set()


@pytest.mark.fault(
    "NM9",
    "A name is not resolved within `connect_timeout`",
    area="Names",
    users_see="canary `timeout`: the name was not resolved within 5 s",
    stays="-",
)
def test_a_name_that_is_not_resolved_in_time_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(event_loop, "_system_lookup", lambda _: forever.wait(30))
    endpoint = Endpoint("a", "http://dead.invalid:8000", connect_s=0.05)

    async def main() -> None:
        async with Client(endpoint, SystemClock(), 10.0) as client:
            with pytest.raises(TargetError, match=r"the name dead\.invalid was not resolved within 0\.05 s"):
                await client.models()

    event_loop.run(main())
    forever.set()


@pytest.mark.fault(
    "NM10",
    "The first address of a name refuses connections",
    area="Names",
    users_see="-",
    stays="the next one is tried",
)
def test_the_next_address_of_a_name_is_tried_where_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(event_loop, "_system_lookup", lambda _: both)

    async def main() -> None:
        async with hostile([whole(200, b"well")]) as server, httpx.AsyncClient(transport=_transport()) as client:
            port = httpx.URL(server.base_url).port
            for _ in range(2):
                answer = await client.get(f"http://two.invalid:{port}", headers={"connection": "close"})
                assert answer.text == "well"

    event_loop.run(main())


def _transport() -> Transport:
    return Transport(tls=httpx.create_ssl_context)
