"""The Lease in virtual time: whatever the network does, one prober at most holds it, and it is never lost for good."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from api_server import ApiServer
from virtual_time import VirtualClock, virtually

from probe.capacity.run.lease_lock import LASTS_S, LOST, LOST_S, KubernetesLease
from probe.core.errors import LockError
from probe.core.reasons import LOCKED, NO_LOCK
from probe.kubernetes import lease as module
from probe.kubernetes.client import KubernetesError

pytestmark = pytest.mark.slow

SERVER = "qwen:8000"


@dataclass
class SkewedClock(VirtualClock):
    """Its wall clock is off, and leaps."""

    off_s: float = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self.off_s


@dataclass
class Line:
    """A prober's own way to the API server, which may be cut at either end, or slow."""

    api: ApiServer
    namespace: str = "monitoring"
    up: bool = True
    answers: bool = True
    takes_s: float = 0.01
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        yield self

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        timeout_s: float = 10.0,
    ) -> bytes:
        self.asked.append(method)
        name = path.partition("/leases")[2].lstrip("/")
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(self.takes_s / 2)
                if not self.up:
                    raise KubernetesError("the API server cannot be reached: refused")
                verb = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}[method]
                if (refused := self.api._refusal(verb, "leases", self.namespace)) is not None:
                    raise KubernetesError(refused["message"], 403)
                status, found = self.api._lease(verb, name, body or b"")
                await asyncio.sleep(self.takes_s / 2)
                while not self.answers:  # noqa: ASYNC110 - it has arrived, and nobody hears of it
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise KubernetesError("the API server has not answered") from None
        if status >= 400:
            raise KubernetesError(found["message"], status)
        return json.dumps(found).encode()


def lease(line: Line, clock: VirtualClock | None = None) -> KubernetesLease:
    return KubernetesLease(SERVER, None, clock or VirtualClock(), connect=line.connect)


async def held_by(line: Line, holder: str, server: str = SERVER) -> str:
    """Return the name of a Lease that another process holds."""
    async with KubernetesLease(server, None, VirtualClock(), connect=line.connect):
        (name,) = (n for n, one in line.api.leases.items() if one["metadata"]["annotations"][module.SERVER] == server)
        found = json.loads(json.dumps(line.api.leases[name]))
    found["spec"]["holderIdentity"] = holder
    line.api.leases[name] = found
    return name


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.fault(
    "KU9",
    "Any order of delays, losses and crashes of two holders",
    area="Kubernetes",
    users_see="nothing",
    stays="one prober at most holds it",
)
def test_one_prober_at_most_holds_it_whatever_the_network_does(seed: int) -> None:
    """Four probers, whose ways to the API server fail and whose clocks are hours apart, for half an hour."""
    chance = random.Random(seed)
    inside: set[int] = set()
    ends: list[str] = []

    async def prober(i: int, line: Line, until_s: float) -> None:
        clock = SkewedClock(off_s=chance.uniform(-7200, 7200))
        while now_s() < until_s:
            try:
                async with lease(line, clock):
                    assert not inside, "two at once"
                    inside.add(i)
                    try:
                        await asyncio.sleep(chance.expovariate(1 / 20))
                    finally:
                        inside.remove(i)
                    ends.append("done")
            except LockError as error:
                ends.append(error.reason)
            clock.off_s += chance.uniform(-60, 60)
            await asyncio.sleep(chance.uniform(0.0, 5.0))

    async def weather(line: Line) -> None:
        while True:
            await asyncio.sleep(chance.expovariate(1 / 25))
            line.up, line.answers = chance.choice([(False, True), (True, False), (True, True)])
            line.takes_s = chance.choice([0.01, 0.3, 1.0])
            await asyncio.sleep(chance.expovariate(1 / 4))
            line.up, line.answers, line.takes_s = True, True, 0.01

    async def story() -> None:
        api = ApiServer()
        lines = [Line(api) for _ in range(4)]
        storms = [asyncio.create_task(weather(line)) for line in lines]
        await asyncio.gather(*(prober(i, line, now_s() + 1800.0) for i, line in enumerate(lines)))
        for storm in storms:
            storm.cancel()
        await asyncio.gather(*storms, return_exceptions=True)

    virtually(story(), within_s=3000.0)
    assert ends.count("done") > 20
    assert {LOCKED.word, LOST, NO_LOCK.word} <= set(ends), "all of it has happened"


def test_a_holder_gives_up_long_before_another_may_take_it() -> None:
    """Also where its last renewal has arrived and only the answer was lost."""

    async def story() -> tuple[float, float]:
        api = ApiServer()
        holder, other = Line(api), Line(api)
        lost_s = 0.0

        async def hold() -> None:
            nonlocal lost_s
            try:
                async with lease(holder):
                    await asyncio.sleep(1000.0)
            except LockError:
                lost_s = now_s()

        task = asyncio.create_task(hold())
        await asyncio.sleep(5.0)
        cut_s, holder.answers = now_s(), False
        await asyncio.sleep(1.5)
        async with lease(other):
            taken_s = now_s()
        await task
        return lost_s - cut_s, taken_s - cut_s

    lost_s, taken_s = virtually(story())
    assert lost_s <= LOST_S + 0.2
    assert taken_s >= LASTS_S
    assert taken_s <= LASTS_S + 3.0


@pytest.mark.fault("KU44")
def test_an_api_server_that_takes_a_second_for_each_answer_takes_no_lease_away() -> None:
    async def story() -> None:
        api = ApiServer()
        for seconds in (300.0, 300.4, 300.8):
            line = Line(api)
            async with lease(line):
                line.takes_s = 1.1
                await asyncio.sleep(seconds)
            assert api.leases == {}, "also where a renewal was under way at the end"

    virtually(story(), within_s=1200.0)


@pytest.mark.parametrize("silent_s", [1.0, 1.5])
@pytest.mark.fault("KU44")
def test_an_api_server_that_is_silent_now_and_then_takes_no_lease_away(silent_s: float) -> None:
    """What it was asked meanwhile has arrived, and the answer is lost."""

    async def story() -> None:
        line = Line(ApiServer())
        async with lease(line):
            for i in range(100):
                line.answers = False
                await asyncio.sleep(silent_s)
                line.answers = True
                await asyncio.sleep(2.0 + 0.07 * i)

    virtually(story(), within_s=2000.0)


@pytest.mark.fault(
    "TI5",
    "The event loop stood still longer than the Lease lasts",
    area="Time",
    users_see="the run ends: the Lease may be another's",
    stays="one prober at a time",
)
def test_a_loop_that_stood_still_does_not_go_on_as_the_holder() -> None:
    """The process was stopped for longer than a Lease lasts, and somebody else has taken it."""

    class Stopped(VirtualClock):
        passed_ns = 0

        def monotonic_ns(self) -> int:
            return super().monotonic_ns() + self.passed_ns

    async def story() -> float:
        api, clock = ApiServer(), Stopped()
        line = Line(api)
        continued_s = 0.0

        async def body() -> None:
            nonlocal continued_s
            async with lease(line, clock):
                await asyncio.sleep(3.0)
                clock.passed_ns = 60 * 10**9
                continued_s = now_s()
                line.up = False  # nothing has to be asked for it
                await asyncio.sleep(100.0)

        with pytest.raises(LockError) as lost:
            await body()
        assert lost.value.reason == LOST
        return now_s() - continued_s

    assert virtually(story()) <= 1.0


@pytest.mark.fault(
    "TI4",
    "A Lease claims to last for ever",
    area="Time",
    users_see="it is taken after a minute",
    stays="one prober at a time",
)
def test_a_lease_that_claims_to_last_for_ever_is_taken_after_a_minute() -> None:
    async def story() -> float:
        api = ApiServer()
        line = Line(api)
        await held_by(line, "dead")
        (found,) = api.leases.values()
        found["spec"]["leaseDurationSeconds"] = 10**9
        begun_s = now_s()
        async with lease(line):
            return now_s() - begun_s

    assert 60.0 <= virtually(story()) <= 62.0


def test_a_body_that_ends_well_all_the_same_has_its_own_end() -> None:
    async def story() -> None:
        api = ApiServer()
        async with lease(Line(api)):
            api.leases.clear()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(100.0)
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        await asyncio.sleep(1.0)

    virtually(story())


def test_another_cancellation_of_the_body_is_not_reported_as_a_lost_lease() -> None:
    async def story() -> None:
        api, ending = ApiServer(), asyncio.Event()

        async def body() -> None:
            async with lease(Line(api)):
                try:
                    await asyncio.sleep(100.0)
                finally:
                    ending.set()
                    await asyncio.sleep(0.5)

        task = asyncio.create_task(body())
        await asyncio.sleep(0.5)
        api.leases.clear()
        await ending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtually(story())


def test_a_released_lease_is_deleted() -> None:
    async def story() -> None:
        api = ApiServer()
        line = Line(api)
        for _ in range(3):
            async with lease(line):
                assert len(api.leases) == 1
                await asyncio.sleep(2.5)
            assert api.leases == {}

    virtually(story())


@pytest.mark.fault(
    "KU41",
    "The Role lacks `delete` for Leases",
    area="Kubernetes",
    users_see="nothing",
    stays="the Lease is left without a holder: the next prober takes it at once",
)
def test_a_holder_without_the_right_to_delete_leaves_it_free() -> None:
    async def story() -> None:
        api = ApiServer()
        api.forbidden.add("delete leases")
        line = Line(api)
        for transitions in (0, 1):
            async with lease(line):
                pass
            (found,) = api.leases.values()
            assert found["spec"]["holderIdentity"] == ""
            assert found["spec"].get("leaseTransitions") == transitions

    virtually(story())


@pytest.mark.parametrize("verb", ["update", "create"])
def test_a_holder_that_was_followed_deletes_nothing_of_its_successor(verb: str) -> None:
    """Its last word was under way for so long, and arrives when the Lease is another's."""

    async def story() -> None:
        api = ApiServer()
        late = Line(api)
        async with lease(late):
            (name,) = api.leases
            late.takes_s = 5.0  # half of it until it arrives
            successor = asyncio.create_task(succeed(api, name))
        await successor
        assert late.asked[-1] == "DELETE"
        assert api.leases[name]["spec"]["holderIdentity"] == "successor"

    async def succeed(api: ApiServer, name: str) -> None:
        await asyncio.sleep(1.0)
        new = {"metadata": dict(api.leases[name]["metadata"]), "spec": {"holderIdentity": "successor"}}
        if verb == "create":  # somebody has deleted it meanwhile
            del api.leases[name]
        status, _ = api._lease(verb, name, json.dumps(new).encode())
        assert status < 400

    virtually(story())


@pytest.mark.parametrize("when", ["at once", "later"])
@pytest.mark.fault(
    "KU52",
    "The API server accepts a write of the Lease and keeps another holder, as a broken admission webhook does",
    area="Kubernetes",
    users_see="`no_lock` or `lost_lock`, with the holder",
    stays="no load",
)
def test_the_answer_to_a_write_names_the_holder(when: str) -> None:
    class Ignoring(Line):
        writes = 0

        async def ask(self, method: str, *values: Any, **more: Any) -> bytes:
            answer = json.loads(await super().ask(method, *values, **more))
            if method in ("POST", "PUT"):
                self.writes += 1
                if when == "at once" or self.writes > 2:
                    answer["spec"]["holderIdentity"] = "somebody-else"
            return json.dumps(answer).encode()

    async def load() -> None:
        async with lease(Ignoring(ApiServer())):
            assert when == "later"
            await asyncio.sleep(30.0)

    async def story() -> None:
        began_s = now_s()
        with pytest.raises(LockError, match="somebody-else") as lost:
            await load()
        assert lost.value.reason == (NO_LOCK.word if when == "at once" else "lost_lock")
        assert now_s() - began_s < 3.0

    virtually(story())


@pytest.mark.parametrize("answer", [b"[]", b'{"metadata": {}, "spec": {"leaseDurationSeconds": "long"}}', b"<html>"])
@pytest.mark.fault(
    "KU13",
    "A Lease of malformed fields",
    area="Kubernetes",
    users_see="`no_lock`",
    stays="no load",
)
def test_a_malformed_lease_is_no_lock(answer: bytes) -> None:
    class Odd(Line):
        async def ask(self, *_: Any, **__: Any) -> bytes:
            return answer

    async def story() -> None:
        with pytest.raises(LockError) as refused:
            async with lease(Odd(ApiServer())):
                pass
        assert refused.value.reason == NO_LOCK.word
        assert "\n" not in str(refused.value)

    virtually(story())
