"""Passwords: right ones are cheap the second time, wrong ones tell nothing, and no hash holds up the event loop."""

import asyncio
import base64
import time
from unittest.mock import patch

import bcrypt
import pytest

from probe.web import auth
from probe.web.auth import BasicAuth, BusyError

# Of cost 4, the least there is.
ALICE, BOB = (bcrypt.hashpw(word, bcrypt.gensalt(4)).decode() for word in (b"wonderland", b"builder:with:colons"))
USERS = {"alice": ALICE, "bob": BOB, "zo\u00eb": ALICE, "php": ALICE.replace("$2b$", "$2y$")}


def header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _asked(*headers: str | None, users: dict[str, str] = USERS) -> list[bool]:
    async def ask() -> list[bool]:
        one = BasicAuth(users)
        try:
            return [await one.allows(value) for value in headers]
        finally:
            one.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("given", "good"),
    [
        (header("alice", "wonderland"), True),
        (header("alice", "wonderland").replace("Basic", "basic"), True),
        (header("bob", "builder:with:colons"), True),
        (header("zo\u00eb", "wonderland"), True),
        (header("php", "wonderland"), True),
        (header("alice", "Wonderland"), False),
        (header("alice", ""), False),
        (header("alice", "wonderland" + "x" * 100), False),
        (header("alice", "x" * 5000), False),
        (header("bob", "wonderland"), False),
        (header("carol", "wonderland"), False),
        (header("", ""), False),
        ("Basic " + base64.b64encode(b"alice").decode(), False),
        ("Basic " + base64.b64encode(b"\xff\xfe:\x00").decode(), False),
        ("Basic ???", False),
        ("Bearer " + header("alice", "wonderland")[6:], False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_user_with_the_right_password_comes_in(given: str | None, good: bool) -> None:  # noqa: FBT001
    assert _asked(given, given) == [good, good]


def test_a_password_is_hashed_once_whether_it_is_right_or_wrong() -> None:
    with patch.object(auth.bcrypt, "checkpw", wraps=bcrypt.checkpw) as hashed:
        right, wrong = header("alice", "wonderland"), header("alice", "x")
        assert _asked(*[right] * 5, *[wrong] * 5, right) == [True] * 5 + [False] * 5 + [True]
    assert hashed.call_count == 2


def test_many_at_once_with_the_same_password_are_one_hash() -> None:
    async def ask() -> int:
        one = BasicAuth(USERS)
        with patch.object(auth.bcrypt, "checkpw", wraps=bcrypt.checkpw) as hashed:
            found = await asyncio.gather(*(one.allows(header("alice", "wonderland")) for _ in range(100)))
        one.close()
        assert all(found)
        return hashed.call_count

    assert asyncio.run(ask()) == 1


@pytest.mark.slow
@pytest.mark.fault(
    "ME8",
    "A flood of wrong passwords with new names",
    area="Memory",
    users_see="429",
    stays="what is remembered is bounded",
)
def test_a_flood_of_wrong_passwords_neither_grows_nor_locks_out_who_is_known() -> None:
    async def flood() -> None:
        one = BasicAuth(USERS)
        assert await one.allows(header("alice", "wonderland"))
        for n in range(400):
            assert not await one.allows(header("alice", str(n)))
        assert len(one._wrong) <= 256
        found = await asyncio.gather(
            *(one.allows(header("alice", f"other {n}"), f"10.0.0.{n}") for n in range(100)),
            one.allows(header("alice", "wonderland")),
            return_exceptions=True,
        )
        assert found[-1] is True
        assert sum(isinstance(answer, BusyError) for answer in found) == 84
        assert not one._checking
        assert not one._waiting, "nothing is kept of an address"
        one.close()

    asyncio.run(flood())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["10.0.0.1"], "10.0.0.2"),
        (["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::"], "2001:db8:0:1::1"),
        (["::ffff:10.0.0.1"], "::ffff:10.0.0.2"),
        (["::ffff:10.0.0.1", "10.0.0.1"], "::1"),
        (["fe80::1%eth0", "fe80::2%eth0"], ""),
    ],
)
def test_one_client_leaves_room_for_the_others(theirs: list[str], ours: str) -> None:
    async def flood() -> None:
        one = BasicAuth(USERS)
        tried = (one.allows(header("alice", str(n)), theirs[n % len(theirs)]) for n in range(50))
        *found, known = await asyncio.gather(
            *tried, one.allows(header("alice", "wonderland"), ours), return_exceptions=True
        )
        assert known is True
        assert [answer for answer in found if not isinstance(answer, BusyError)] == [False] * 4
        assert {str(answer) for answer in found if answer is not False} == {
            "too many passwords from this address are being checked"
        }
        assert not await one.allows(header("alice", "again"), theirs[0]), "its place is free again"
        assert not one._waiting
        one.close()

    asyncio.run(flood())


def test_a_name_that_is_not_known_costs_a_hash_too() -> None:
    with patch.object(auth.bcrypt, "checkpw", wraps=bcrypt.checkpw) as hashed:
        assert _asked(header("carol", "x")) == [False]
    (call,) = hashed.call_args_list
    assert call.args[1].startswith(ALICE[:29].encode())


@pytest.mark.slow
@pytest.mark.fault(
    "ST8",
    "A flood of wrong passwords (bcrypt)",
    area="Starvation",
    users_see="429 for the attacker",
    stays="the event loop goes on: canaries are not delayed",
)
def test_the_event_loop_goes_on_while_a_password_is_hashed() -> None:
    slow = {"alice": bcrypt.hashpw(b"wonderland", bcrypt.gensalt(11)).decode()}

    async def ask() -> tuple[int, float]:
        one, turns, begun = BasicAuth(slow), 0, time.monotonic()
        task = asyncio.create_task(one.allows(header("alice", "wonderland")))
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert task.result()
        one.close()
        return turns, time.monotonic() - begun

    turns, seconds = asyncio.run(ask())
    assert turns > 10, f"{turns} turns in {seconds:.2f} s"
