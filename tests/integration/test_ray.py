"""Load from a real Ray cluster of two nodes: it measures what load from here does, and never outlives its watchers."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mock_servers import MockServer, mock_server
from ray_cluster import AHEAD_S, HEAD, OTHER, RayCluster, ray_cluster, shifts_clocks

from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.errors import LoadError
from probe.core.objectives import Objectives
from probe.core.reasons import WORKER_LOST
from probe.core.request import Api, Outcome, RequestRecord
from probe.core.step import Arrivals, Pattern, StepPlan, StepRun, StepSummary
from probe.core.workload import Workload
from probe.load.local_backend import Backend
from probe.load.ray_backend import RayBackend
from probe.load.request_source import RequestSource
from probe.load.step_summary import summarize
from probe.load.worker_pool import WorkerPool
from probe.mock_server.driver import Faults

pytestmark = [pytest.mark.alone, pytest.mark.long]

CLOCK = SystemClock()
SHORT = Workload("short", Api.COMPLETIONS, 16, 8)
LONG = Workload("long", Api.COMPLETIONS, 16, 800)
SLOW = Faults(extra_step_s=0.02)
CONTROLLER = Path(__file__).parent / "ray_controller.py"
KEY = "sk-only-for-the-workers"

Work = Callable[[MockServer, WorkerPool], Awaitable[None]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as made:
        yield made


def _with(cluster: RayCluster, work: Work, *, load: Workload = LONG, address: str | None = None) -> None:
    """Run two workers on the cluster, and check that nothing of them is left."""

    async def main() -> None:
        async with mock_server(faults=SLOW if load is LONG else Faults()) as server:
            async with WorkerPool(
                _source(server, load), 2, CLOCK, RayBackend(address or cluster.address, 60.0)
            ) as workers:
                await work(server, workers)
            await _until(lambda: not _relays(cluster), 5)

    asyncio.run(main())


def _source(server: MockServer, load: Workload) -> RequestSource:
    return RequestSource(Endpoint("a", server.url, secret=lambda: KEY), "tiny", load, limits=60.0)


def _relays(cluster: RayCluster) -> set[int]:
    return cluster.processes("probe.load.ray_relay")


def _signal(pids: Iterable[int], how: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, how)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def _until(condition: Callable[[], bool], within_s: float) -> float:
    """Wait for the condition. Return the seconds it took. Raises TimeoutError."""
    begin = CLOCK.monotonic_ns()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it is another process that changes it
            await asyncio.sleep(0.01)
    return (CLOCK.monotonic_ns() - begin) * 1e-9


def _in_flight(server: MockServer) -> int:
    return server.driver.engine.running + server.driver.engine.waiting


async def _loaded(server: MockServer, workers: WorkerPool, running: "asyncio.Task[StepRun]") -> None:
    """Wait until the server has six requests and the controller knows it."""

    def loaded() -> bool:
        assert not running.done(), running.result().problem
        return _in_flight(server) == len(workers.in_flight()) == 6

    await _until(loaded, 20)


# What they measure.


async def _steps(server: MockServer, place: Backend | None) -> tuple[StepRun, StepRun, list[str | None], list[float]]:
    """Run a closed loop by count and an open one by time. Return the nodes used and their clock offsets."""
    async with WorkerPool(_source(server, SHORT), 2, CLOCK, place) as workers:
        reported: list[RequestRecord] = []
        closed = await workers.run(StepPlan(4, 30.0, requests=60), asyncio.Event(), reported.append)
        assert len(reported) == 60
        arrivals = Arrivals(Pattern.CONSTANT, rate_rps=40.0)
        open_ = await workers.run(
            StepPlan(64, 1.5, loop="open", arrivals=arrivals),
            asyncio.Event(),
            lambda record: None,  # noqa: ARG005
        )
        found = workers._workers
        return closed, open_, [one.link.node for one in found], [one.clock.ns * 1e-9 for one in found]


def _summary(run: StepRun) -> StepSummary:
    return summarize(run, Objectives("none"))


def test_a_step_on_two_nodes_measures_what_it_does_here(cluster: RayCluster) -> None:
    async def main() -> None:
        async with mock_server() as server:
            here = await _steps(server, None)
            begin = CLOCK.monotonic_ns()
            there = await _steps(server, RayBackend(cluster.address, 60.0))
            end = CLOCK.monotonic_ns()
        assert sorted(node or "" for node in there[2]) == [HEAD, OTHER]
        assert here[2] == [None, None]
        ahead = dict(zip(there[2], there[3], strict=True))
        assert ahead[HEAD] == pytest.approx(0.0, abs=0.5)
        assert ahead[OTHER] == pytest.approx(AHEAD_S if shifts_clocks() else 0.0, abs=0.5)
        for ours, theirs in zip(here[:2], there[:2], strict=True):
            assert len(theirs.records) == len(ours.records) == 60
            assert {r.outcome for r in theirs.records} == {Outcome.OK}
            assert all(r.output_tokens == len(r.events) == 8 for r in theirs.records)
            assert (theirs.is_cut_short, theirs.is_capped, theirs.problem) == (False, False, None)
            stamps = [at for r in theirs.records for at in (r.scheduled_ns, r.sent_ns, *r.events.at_ns, r.done_ns)]
            assert begin < min(stamps) <= max(stamps) < end
            assert begin < theirs.window_ns[0] < theirs.window_ns[1] < end
            one, other = _summary(ours), _summary(theirs)
            assert (one.requests, one.good_ratio) == (other.requests, other.good_ratio)
            for each in ("ttft_s", "itl_s", "e2e_s"):
                ratio = getattr(other, each).p50 / getattr(one, each).p50
                assert 0.3 < ratio < 3.0, (each, ratio)
            assert 0.5 < other.throughput_rps / one.throughput_rps < 2.0
        due = sorted(r.scheduled_ns for r in there[1].records)
        assert [(at - due[0]) * 1e-9 for at in due] == pytest.approx([i / 40 for i in range(60)], abs=0.02)

    asyncio.run(main())


def test_through_rays_own_client_it_is_the_same_and_no_file_of_ray_has_the_key(cluster: RayCluster) -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        run = await workers.run(StepPlan(4, 30.0, requests=30), asyncio.Event(), lambda _: None)
        assert [r.outcome for r in run.records] == [Outcome.OK] * 30
        assert (server.generated, run.problem) == (30, None)
        assert cluster.mentions(cluster.address)
        assert cluster.mentions(KEY) == []

    _with(cluster, work, load=SHORT, address=cluster.client_address)


# What is said where it cannot be had.


def test_a_cluster_without_room_is_one_line(cluster: RayCluster) -> None:
    async def main() -> None:
        source = RequestSource(Endpoint("a", "http://127.0.0.1:1"), "m", SHORT, 1.0)
        with pytest.raises(LoadError) as caught:
            async with WorkerPool(source, 9, CLOCK, RayBackend(cluster.address, 3.0)):
                pass
        said = str(caught.value)
        assert "of 9 load workers within 3 s" in said
        assert "load.ray.workers" in said
        assert "\n" not in said
        await _until(lambda: not _relays(cluster), 5)

    asyncio.run(main())


# That it ends.


def test_stop_ends_the_load_on_all_nodes(cluster: RayCluster) -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(workers.run(StepPlan(6, 60.0), stop, lambda _: None))
        await _loaded(server, workers, running)
        stop.set()
        assert await _until(lambda: not _in_flight(server), 5) < 3.0
        run = await running
        assert (run.is_cut_short, run.problem) == (True, None)
        assert [r.outcome for r in run.records].count(Outcome.ABORTED) == 6

    _with(cluster, work)


@pytest.mark.parametrize("who", ["actor", "driver"])
@pytest.mark.fault(
    "SI15",
    "A part of a Ray cluster is killed during load",
    area="Signals",
    users_see="the run ends",
    stays="load gone on all nodes",
)
def test_whatever_of_it_is_killed_the_load_ends_on_all_nodes(cluster: RayCluster, who: str) -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        running = asyncio.create_task(workers.run(StepPlan(6, 60.0), asyncio.Event(), lambda _: None))
        await _loaded(server, workers, running)
        one = min(_relays(cluster))
        place = workers._backend
        assert isinstance(place, RayBackend)
        assert place._driver is not None
        os.kill({"actor": _parent(one), "driver": place._driver.pid}[who], signal.SIGKILL)
        assert await _until(lambda: not _in_flight(server), 6) < 3.0
        run = await running
        assert run.problem == WORKER_LOST.word
        assert len(run.records) == 6

    _with(cluster, work)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.fault("LO30")
def test_load_ends_when_the_controller_is_lost(cluster: RayCluster, how: signal.Signals) -> None:
    async def main() -> None:
        async with mock_server(faults=SLOW) as server:
            controller = await asyncio.create_subprocess_exec(
                sys.executable, str(CONTROLLER), server.url, "6", cluster.address, stdout=asyncio.subprocess.PIPE
            )
            assert controller.stdout is not None
            try:
                while not (line := await controller.stdout.readline()).strip().isdigit():
                    assert line, "it ended"
                driver = int(line)
                await _until(lambda: _in_flight(server) == 6, 20)
                controller.send_signal(how)
                assert await _until(lambda: not _in_flight(server), 6) < 3.0
                with suppress(ProcessLookupError):
                    controller.kill()
                await controller.wait()
                await _until(lambda: not _relays(cluster) and not Path(f"/proc/{driver}").exists(), 10)
            finally:
                with suppress(ProcessLookupError):
                    controller.kill()
                await controller.wait()

    asyncio.run(main())


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])  # the latter for good: no test comes after it
@pytest.mark.fault(
    "LO30",
    "A Ray node or the controller of a Ray run is lost",
    area="Load",
    users_see="the run ends",
    stays="load gone on all nodes",
)
def test_load_ends_when_a_node_is_lost(cluster: RayCluster, how: signal.Signals) -> None:
    """One that has only fallen silent cannot be told to stop what the server still answers it."""

    async def work(server: MockServer, workers: WorkerPool) -> None:
        running = asyncio.create_task(workers.run(StepPlan(6, 60.0), asyncio.Event(), lambda _: None))
        await _loaded(server, workers, running)
        of_ray = cluster.of_other()
        ours = [pid for pid in _relays(cluster) if _parent(pid) in of_ray]
        assert len(ours) == 1
        # One that dies takes its worker along, whom nobody but the kernel tells.
        node = [*of_ray, *ours] if how is signal.SIGSTOP else of_ray
        _signal(node, how)
        left = 3 if how is signal.SIGSTOP else 0
        assert await _until(lambda: _in_flight(server) <= left, 6) < 3.0
        run = await running
        assert run.problem == WORKER_LOST.word
        assert len(run.records) == 6
        _signal(node, signal.SIGCONT)

    _with(cluster, work)
