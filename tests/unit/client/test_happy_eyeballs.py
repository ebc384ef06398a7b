"""A name with several addresses is reached by the first one that accepts."""

import asyncio
import errno
import os
import socket
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from both_loops import Run
from dead_address import DEAD, dead_address
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from wire_server import Peer, serving

from probe.client import happy_eyeballs
from probe.client.happy_eyeballs import connect, interleaved


def port_of(url: str) -> int:
    return httpx.URL(url).port or 0


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@examples(50)
@given(st.permutations([f"10.0.0.{i}" for i in range(4)]), st.permutations([f"::{i}" for i in range(3)]), st.data())
def test_the_families_alternate_in_the_resolver_s_order(four: list[str], six: list[str], data: st.DataObject) -> None:
    mixed = data.draw(st.permutations([4] * len(four) + [6] * len(six)))
    takes = {4: iter(four), 6: iter(six)}
    resolved = [next(takes[family]) for family in mixed]
    ordered = interleaved(resolved)
    assert ordered[0] == resolved[0]
    assert [one for one in ordered if ":" not in one] == four
    assert [one for one in ordered if ":" in one] == six
    assert all((a in four) != (b in four) for a, b in pairwise(ordered[:6]))


@pytest.mark.parametrize("dead", [DEAD, "::1"])
@pytest.mark.fault(
    "NM20",
    "The first address of a name does not answer (a dead node, a dead IPv6 path)",
    area="Names",
    users_see="each new connection takes 250 ms longer",
    stays="the next address serves; half-made connections are closed",
)
def test_a_dead_first_address_costs_a_quarter_of_a_second(run: Run, dead: str) -> None:
    async def main() -> None:
        async with serving(Peer.until_gone) as server:
            with dead_address(port_of(server.url), dead):
                before, began_s = open_files(), asyncio.get_running_loop().time()
                own, address = await connect([dead, "127.0.0.1"], port_of(server.url))
                assert 0.2 < asyncio.get_running_loop().time() - began_s < 2
                assert (address, own.getpeername()[0]) == ("127.0.0.1", "127.0.0.1")
                own.close()
                await server.until_open(0)
                assert (server.made, open_files()) == (1, before)

    run(main())


def test_after_a_refusal_the_next_address_is_tried_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(happy_eyeballs, "_DELAY_S", 1000.0)

    async def main() -> None:
        async with serving(Peer.until_gone) as server, asyncio.timeout(10):
            refusing = [f"127.0.0.{i}" for i in range(2, 7)]
            own, address = await connect([*refusing, "::1", "127.0.0.1"], port_of(server.url))
            assert address == "127.0.0.1"
            own.close()

    run(main())


def test_connections_that_lose_are_closed_at_once_and_without_a_byte(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(happy_eyeballs, "_DELAY_S", 0.0)
    heard: list[bytes] = []

    async def listen(peer: Peer) -> None:
        heard.append(await peer.reader.read())

    async def main() -> None:
        async with serving(listen, host="0.0.0.0") as server:  # on loopback's many addresses
            before = open_files()
            for _ in range(20):
                own, _ = await connect([f"127.0.0.{i}" for i in range(1, 5)], port_of(server.url))
                own.close()
            await server.until(lambda server: server.made >= 20 and server.open == 0)
            assert set(heard) == {b""}
            while open_files() > before:  # noqa: ASYNC110 - the server's ends close a turn later
                await asyncio.sleep(0.01)

    run(main())


@pytest.mark.parametrize("turns", range(6))
def test_giving_up_closes_every_attempt(run: Run, turns: int) -> None:
    async def main() -> None:
        async with serving(Peer.until_gone) as server:
            with dead_address(port_of(server.url)):
                before = open_files()
                waiting = asyncio.create_task(connect([DEAD, "127.0.0.1"], port_of(server.url)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await asyncio.sleep(0.01)
                assert open_files() == before

    run(main())


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([errno.ECONNREFUSED, errno.EADDRNOTAVAIL], errno.ECONNREFUSED),
        ([errno.ENETUNREACH, errno.ECONNREFUSED], errno.ECONNREFUSED),
        ([errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH], errno.ECONNREFUSED),
        ([errno.EHOSTUNREACH, errno.ENETUNREACH], errno.ENETUNREACH),
        ([errno.EMFILE, errno.EMFILE], errno.EMFILE),
        ([errno.EHOSTUNREACH, errno.EADDRNOTAVAIL], errno.EHOSTUNREACH),
        ([errno.EADDRNOTAVAIL, errno.EHOSTUNREACH], errno.EHOSTUNREACH),
        ([errno.ENETUNREACH, errno.EADDRNOTAVAIL], errno.EADDRNOTAVAIL),
    ],
)
def test_the_server_s_answer_is_told_before_a_family_without_a_route(
    numbers: list[int], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [OSError(number, os.strerror(number)) for number in numbers]

    async def fail(address: str, _: int) -> socket.socket:
        raise errors[int(address)]

    monkeypatch.setattr(happy_eyeballs, "_attempt", fail)
    with pytest.raises(OSError, match=os.strerror(told)) as caught:
        asyncio.run(connect([str(i) for i in range(len(errors))], 80))
    assert (caught.value.errno, caught.value.__cause__, caught.value.__context__) == (told, None, None)


def test_a_connection_sends_small_writes_at_once(run: Run) -> None:
    """Nagle's algorithm would hold a request back until the last one is acknowledged."""

    async def main() -> None:
        async with serving(Peer.until_gone) as server:
            own, _ = await connect(["127.0.0.1"], port_of(server.url))
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=own)
            made = transport.get_extra_info("socket")
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            transport.abort()
            await server.until_open(0)

    run(main())
