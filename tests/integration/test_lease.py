"""The Lease of a server, through a real HTTP API: who gets it, how it is lost, and that load is gone 3 s later."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from api_server import NAMESPACE, ApiServer, api_server
from mock_servers import MockServer, mock_server

from probe.capacity.run import lease_lock
from probe.capacity.run.lease_lock import LOST, KubernetesLease
from probe.capacity.run.request import Budget, RunJob, RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import ServerAccess
from probe.capacity.search.fixed_steps import FixedSteps
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.errors import LockError
from probe.core.objectives import Objectives
from probe.core.reasons import LOCKED, NO_LOCK
from probe.core.request import Api
from probe.core.result import RunContext
from probe.core.step import StepPlan
from probe.core.workload import Workload
from probe.load.request_source import RequestSource
from probe.load.worker_pool import WorkerPool
from probe.mock_server.driver import Faults
from probe.scrape.scraper import Scraper

SERVER = "qwen.serving.svc:8000"
GONE_S = 3.0
CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def _config_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


@pytest.fixture
def story(tmp_path: Path) -> Callable[[Callable[[ApiServer], Any]], Any]:
    """Run a story with an API server on asyncio's own loop. The load below runs on uvloop."""

    async def reported(tell: Callable[[ApiServer], Any]) -> Any:
        async with asyncio.timeout(30.0):
            async with api_server() as api:
                api.kubeconfig(tmp_path / "kubeconfig")
                result = await tell(api)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    return lambda tell: asyncio.run(reported(tell))


def lease(server: str = SERVER) -> KubernetesLease:
    return KubernetesLease(server, None, CLOCK)


def spec(api: ApiServer) -> dict[str, Any]:
    (found,) = api.leases.values()
    its: dict[str, Any] = found["spec"]
    return its


def rewrite(api: ApiServer, **changes: Any) -> None:
    """Write the Lease as another client would."""
    for found in api.leases.values():
        api.version += 1
        found["spec"] |= changes
        found["metadata"]["resourceVersion"] = str(api.version)


async def held_until_lost(lose: Callable[[], Any]) -> tuple[float, LockError]:
    """Return the seconds from `lose` until the body is cancelled, and the exception raised."""
    cancelled_s = 0.0

    async def body() -> None:
        nonlocal cancelled_s
        async with lease():
            await asyncio.sleep(1.2)  # it has been renewed
            began = time.perf_counter()
            if asyncio.iscoroutine(losing := lose()):
                await losing
            try:
                await asyncio.sleep(30.0)
            finally:
                cancelled_s = time.perf_counter() - began

    with pytest.raises(LockError) as lost:
        await body()
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0, "what is raised is all"
    await asyncio.sleep(0)
    return cancelled_s, lost.value


def test_it_is_held_once_and_free_again_afterwards(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        async with lease():
            (name, found), *_ = api.leases.items()
            assert name.startswith("kneewatch-")
            assert found["metadata"]["annotations"] == {"kneewatch/server": SERVER}
            assert found["metadata"]["namespace"] == NAMESPACE
            holder = found["spec"]["holderIdentity"]
            began = time.perf_counter()
            with pytest.raises(LockError) as refused:
                async with lease():
                    pass
            assert time.perf_counter() - began < 4.0, "it need not wait for its end to see that it is renewed"
            assert refused.value.reason == LOCKED.word
            assert f"another prober loads {SERVER} ({holder}, since 20" in str(refused.value)
            async with lease("llama:8000"):
                pass
        assert api.leases == {}, "nothing stays of a server that may be gone tomorrow"
        began = time.perf_counter()
        async with lease():
            assert time.perf_counter() - began < 1.0
            assert api.leases[name]["spec"]["holderIdentity"] != holder

    story(tell)


def test_it_is_renewed_twice_a_second(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        async with lease():
            await asyncio.sleep(3.5)
            assert 4 <= sum(one.startswith("PUT") for one in api.asked) <= 8
            assert spec(api)["leaseDurationSeconds"] == 10

    story(tell)


@pytest.mark.fault(
    "KU8",
    "Five Kneewatches want one Lease",
    area="Kubernetes",
    users_see="four are `locked`",
    stays="one loads",
)
def test_of_several_at_once_one_gets_it(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        inside = most = 0

        async def one() -> str:
            nonlocal inside, most
            try:
                async with lease():
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(3.0)
                    inside -= 1
            except LockError as error:
                return error.reason
            return "held"

        assert sorted(await asyncio.gather(*(one() for _ in range(5)))) == ["held", *[LOCKED.word] * 4]
        assert most == 1
        assert api.leases == {}

    story(tell)


@pytest.mark.fault(
    "TI3",
    "The clock of a Lease's dead holder is a century ahead",
    area="Time",
    users_see="the Lease is taken once its duration has passed",
    stays="stamps of others are not read",
)
def test_a_holder_that_has_died_is_followed_when_its_lease_is_over(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(api: ApiServer) -> None:
        monkeypatch.setattr(lease_lock, "LASTS_S", 2)
        api.forbidden.add("delete leases")
        async with lease():
            pass
        # Its stamps are of a clock that is an hour ahead; nobody reads them.
        rewrite(api, holderIdentity="dead", renewTime="2126-11-22T13:00:00.000000Z", leaseDurationSeconds=1)
        began = time.perf_counter()
        async with lease():
            assert 2.0 <= time.perf_counter() - began < 5.0
            assert spec(api)["holderIdentity"] != "dead"

    story(tell)


@pytest.mark.fault(
    "KU1",
    "API server away during a run",
    area="Kubernetes",
    users_see="`lost the Lease`",
    stays="the body ends within 3 s",
)
def test_an_api_server_that_is_away_ends_the_body_within_3_s(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        seconds, error = await held_until_lost(api.stop)
        assert seconds < GONE_S
        assert error.reason == LOST
        assert "the API server has accepted no renewal for 2.4 s" in str(error)

    story(tell)


@pytest.mark.fault(
    "KU2",
    "API server accepts and does not answer during a run",
    area="Kubernetes",
    users_see="`lost the Lease`",
    stays="the body ends within 3 s",
)
def test_an_api_server_that_does_not_answer_ends_the_body_within_3_s(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        seconds, error = await held_until_lost(api.answering.clear)
        assert seconds < GONE_S
        assert error.reason == LOST

    story(tell)


@pytest.mark.fault(
    "KU3",
    "The Role is taken away during a run",
    area="Kubernetes",
    users_see="`lost the Lease`: cannot update",
    stays="the body ends within 3 s",
)
def test_a_lost_role_ends_the_body_within_3_s(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        seconds, error = await held_until_lost(lambda: api.forbidden.add("update leases"))
        assert seconds < GONE_S
        assert "cannot update resource" in str(error)

    story(tell)


@pytest.mark.fault(
    "KU4",
    "Another holder writes itself into the Lease",
    area="Kubernetes",
    users_see="`lost the Lease`, with its name",
    stays="the body ends at the next renewal; the other keeps it",
)
def test_another_holder_ends_the_body_at_the_next_renewal(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        seconds, error = await held_until_lost(lambda: rewrite(api, holderIdentity="usurper"))
        assert seconds < 2.0
        assert "usurper" in str(error)
        assert spec(api)["holderIdentity"] == "usurper", "what is not ours is not released"

    story(tell)


@pytest.mark.fault(
    "KU5",
    "Somebody deletes the Lease",
    area="Kubernetes",
    users_see="`lost the Lease`: it was deleted",
    stays="the body ends at the next renewal",
)
def test_whoever_deletes_it_ends_the_body(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        seconds, error = await held_until_lost(api.leases.clear)
        assert seconds < 2.0
        assert "it was deleted" in str(error)
        assert api.leases == {}

    story(tell)


@pytest.mark.fault(
    "KU7",
    "A renewal fails once, or its answer is lost",
    area="Kubernetes",
    users_see="nothing",
    stays="the run goes on",
)
def test_a_renewal_that_fails_once_or_was_lost_on_its_way_back_does_no_harm(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        async with lease():
            for _ in range(2):
                await asyncio.sleep(1.2)
                api.cut()
                rewrite(api, renewTime="as if ours had arrived")
            api.answering.clear()
            await asyncio.sleep(1.0)
            api.answering.set()
            await asyncio.sleep(1.5)
        assert api.leases == {}

    story(tell)


@pytest.mark.fault(
    "KU10",
    "Others write fields into the Lease",
    area="Kubernetes",
    users_see="nothing",
    stays="they are kept",
)
def test_fields_that_others_write_into_the_lease_are_kept(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        async with lease():
            (found,) = api.leases.values()
            found["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "qwen-0"}]
            rewrite(api)
            await asyncio.sleep(2.5)
            (found,) = api.leases.values()
            assert found["metadata"]["ownerReferences"] == [{"kind": "Pod", "name": "qwen-0"}]
        assert api.leases == {}

    story(tell)


@pytest.mark.parametrize("verb", ["get", "create"])
@pytest.mark.fault(
    "KU11",
    "The Role for Leases is missing",
    area="Kubernetes",
    users_see="`no_lock`, with the Role that is needed",
    stays="no load",
)
def test_a_lacking_role_is_one_line(story: Any, verb: str) -> None:
    async def tell(api: ApiServer) -> None:
        api.forbidden.add(f"{verb} leases")
        with pytest.raises(LockError) as refused:
            async with lease():
                pass
        assert refused.value.reason == NO_LOCK.word
        assert f'cannot {verb} resource "leases"' in str(refused.value)
        role = "needs a Role in serving with get, list, create, update and delete of leases (docs/discovery.md)"
        assert role in str(refused.value)
        assert "\n" not in str(refused.value)

    story(tell)


@pytest.mark.fault(
    "KU12",
    "No API server when a run is due",
    area="Kubernetes",
    users_see="`no_lock`",
    stays="no load",
)
def test_without_an_api_server_there_is_no_lock(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        await api.stop()
        with pytest.raises(LockError, match=r"cannot get the lease of .* cannot be reached") as refused:
            async with lease():
                pass
        assert refused.value.reason == NO_LOCK.word

    story(tell)


def test_a_body_that_is_cancelled_by_others_stays_cancelled_and_the_lease_is_free(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        async def body() -> None:
            async with lease():
                await asyncio.sleep(30.0)

        task = asyncio.create_task(body())
        while not api.leases:  # noqa: ASYNC110 - a test
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert api.leases == {}

    story(tell)


def test_an_error_of_the_body_is_its_own(story: Any) -> None:
    async def tell(api: ApiServer) -> None:
        with pytest.raises(ZeroDivisionError):
            async with lease():
                raise ZeroDivisionError
        assert api.leases == {}

    story(tell)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("how", ["away", "silent", "taken"])
@pytest.mark.fault(
    "KU6",
    "The Lease is lost under a real ramp",
    area="Kubernetes",
    users_see="the result so far, interrupted",
    stays="load gone from the server within 3 s",
)
def test_load_is_gone_within_3_s_of_a_lost_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A real ramp of worker processes on the mock server."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    async def tell() -> float:
        async with api_server() as api, mock_server(faults=Faults(extra_step_s=0.005)) as server:
            api.kubeconfig(tmp_path / "kubeconfig")
            lose = {
                "away": api.stop,
                "silent": api.answering.clear,
                "taken": lambda: rewrite(api, holderIdentity="another"),
            }[how]
            ended = asyncio.Event()
            watch = asyncio.create_task(_loses(server, lose, ended))
            with pytest.raises(LockError) as lost:
                async with lease():
                    await _ramp(server)
            ended.set()
            assert lost.value.reason == LOST
            return await watch

    gone_s = uvloop.run(tell())
    print(f"{how}: load gone {gone_s:.2f} s after")  # noqa: T201
    assert 0 < gone_s < GONE_S


def _loaded(server: MockServer) -> bool:
    return server.driver.engine.running + server.driver.engine.waiting > 0


async def _loses(server: MockServer, lose: Callable[[], Any], ended: asyncio.Event) -> float:
    """Return the seconds from the loss until the server had no load any more."""
    while server.driver.engine.running < 4:  # noqa: ASYNC110 - its state is a number
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.5)
    began = last = time.perf_counter()
    if asyncio.iscoroutine(losing := lose()):
        await losing
    while not ended.is_set() or time.perf_counter() - last < 1.0:  # its requests may all end at the same moment
        if _loaded(server):
            last = time.perf_counter()
        await asyncio.sleep(0.01)
    return last - began


async def _ramp(server: MockServer) -> None:
    where, load = Endpoint("a", server.url), Workload("long", Api.COMPLETIONS, 16, 300)
    job = RunJob(
        RunRequest("a", Objectives("o"), Budget(10**9, 60.0, 60.0), is_guarded=False),
        "tiny",
        RunContext({"name": "w"}, {}),
    )
    scraper = Scraper(where, CLOCK, timeout_s=1.0)
    try:
        async with WorkerPool(RequestSource(where, "tiny", load, limits=60.0), 2, CLOCK) as workers:
            plans = FixedSteps([StepPlan(concurrency=8, seconds=40.0)])
            await CapacityRun(job, plans, workers, ServerAccess(scraper.read), CLOCK).run()
    finally:
        await scraper.close()
