"""Which servers others load: by their Leases in virtual time, and by the files of this machine."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer
from virtual_time import VirtualClock, virtually

from probe.capacity.run.lease_lock import KubernetesLease
from probe.capacity.run.locks import FileLock, locked_by_others
from probe.capacity.run.other_probers import EVERY_S, follow_others
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.kubernetes.client import KubernetesError

SERVER = "qwen:8000"
_TARGETS = [{"name": "a", "base_url": "http://qwen:8000"}]


class Line:
    """A way to the API server."""

    namespace = "monitoring"

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.up = True
        self.asked: list[str] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        yield self

    async def ask(self, method: str, path: str, *, body: bytes | None = None, **_: Any) -> bytes:
        name = path.partition("/leases")[2].lstrip("/")
        verb = {"GET": "get" if name else "list", "POST": "create", "PUT": "update", "DELETE": "delete"}[method]
        self.asked.append(verb)
        await asyncio.sleep(0.01)
        if not self.up:
            raise KubernetesError("the API server cannot be reached: refused")
        if (refused := self.api._refusal(verb, "leases", self.namespace)) is not None:
            raise KubernetesError(refused["message"], 403)
        status, found = self.api._lease(verb, name, body or b"")
        if status >= 400:
            raise KubernetesError(found["message"], status)
        return json.dumps(found).encode()


class Another:
    """Another Kneewatch's Lease, as it writes it."""

    def __init__(self, api: ApiServer, server: str = SERVER) -> None:
        self.api = api
        self.name = f"kneewatch-{server.partition(':')[0]}"
        self.server = server
        self.renewals = 0

    def write(self, holder: str = "another_1") -> None:
        """Take the Lease or renew it."""
        self.renewals += 1
        old = self.api.leases.get(self.name)
        meta = old["metadata"] if old else {"name": self.name, "annotations": {"kneewatch/server": self.server}}
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 10, "renewTime": f"2026-11-22T12:00:{self.renewals}Z"}
        body = json.dumps({"metadata": meta, "spec": spec}).encode()
        status, _ = self.api._lease("update" if old else "create", self.name, body)
        assert status < 400

    async def hold(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.write()
            await asyncio.sleep(1.0)


def following(story: Callable[[ApiServer, Line, list[set[str]]], Any], **config: Any) -> None:
    """A story beside a Kneewatch that follows others; it is given what was told, the newest last."""

    async def reported() -> None:
        api, seen = ApiServer(), list[set[str]]()
        line = Line(api)
        its: Config = config_from({"lease": {}, "targets": _TARGETS, **config}, "test")

        def tell(servers: Collection[str]) -> None:
            seen.append(set(servers))

        task = asyncio.create_task(
            follow_others(lambda: its, lambda: [SERVER], VirtualClock(), tell, connect=line.connect)
        )
        try:
            await asyncio.sleep(EVERY_S)
            await story(api, line, seen)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    virtually(reported(), within_s=1000.0)


def test_a_server_is_loaded_from_soon_after_its_lease_is_taken_until_load_is_gone() -> None:
    async def story(api: ApiServer, line: Line, seen: list[set[str]]) -> None:
        assert seen[-1] == set()
        another = Another(api)
        another.write()
        await asyncio.sleep(EVERY_S + 0.1)
        assert seen[-1] == {SERVER}
        await another.hold(60.0)
        assert all(one == {SERVER} for one in seen[-25:])
        api.leases.clear()
        await asyncio.sleep(3.0)
        assert seen[-1] == {SERVER}, "whoever deletes it ends the load, but not at once"
        await asyncio.sleep(4.0)
        assert seen[-1] == set()
        assert line.asked.count("delete") == 0

    following(story)


def test_this_process_s_own_leases_are_not_another_prober_s() -> None:
    async def story(_: ApiServer, line: Line, seen: list[set[str]]) -> None:
        async with KubernetesLease(SERVER, None, VirtualClock(), connect=line.connect):
            await asyncio.sleep(20.0)
        assert all(one == set() for one in seen)

    following(story)


@pytest.mark.fault(
    "KU48",
    "A killed Kneewatch leaves its Lease",
    area="Kubernetes",
    users_see="nothing",
    stays="the next one deletes it once it is over",
)
def test_a_holder_that_has_died_loads_nothing_and_its_lease_is_deleted_in_the_end() -> None:
    async def story(api: ApiServer, _: Line, seen: list[set[str]]) -> None:
        Another(api).write()
        await asyncio.sleep(5.0)
        assert seen[-1] == {SERVER}
        await asyncio.sleep(12.0)
        assert seen[-1] == set()
        assert api.leases, "its holder may have been stopped, and may take it up again"
        await asyncio.sleep(50.0)
        assert api.leases == {}

    following(story)


def test_leases_left_by_older_versions_are_deleted() -> None:
    async def story(api: ApiServer, _: Line, seen: list[set[str]]) -> None:
        for i in range(50):
            Another(api, f"pod-{i}:8000").write(holder="")
        await asyncio.sleep(4 * EVERY_S)
        assert api.leases == {}
        assert seen[-1] == set()

    following(story)


def test_without_the_right_to_delete_they_stay_and_others_are_seen() -> None:
    async def story(api: ApiServer, line: Line, seen: list[set[str]]) -> None:
        api.forbidden.add("delete leases")
        for i in range(50):
            Another(api, f"pod-{i}:8000").write(holder="")
        await Another(api).hold(10.0)
        assert len(api.leases) == 51
        assert seen[-1] == {SERVER}
        assert line.asked.count("delete") <= line.asked.count("list")

    following(story)


@pytest.mark.fault(
    "KU49",
    "The API server is away while Kneewatch looks for other probers",
    area="Kubernetes",
    users_see="nothing",
    stays="the last answer stays in effect",
)
def test_the_last_answer_stays_in_effect_while_the_api_server_is_away() -> None:
    async def story(api: ApiServer, line: Line, seen: list[set[str]]) -> None:
        another = Another(api)
        await another.hold(5.0)
        line.up = False
        reported = len(seen)
        await another.hold(30.0)
        assert len(seen) == reported
        assert seen[-1] == {SERVER}
        line.up = True
        await another.hold(15.0)
        assert len(seen) > reported
        assert all(one == {SERVER} for one in seen[reported:])

    following(story)


@pytest.mark.fault(
    "KU40",
    "The Role lacks `list` for Leases",
    area="Kubernetes",
    users_see="one log line",
    stays="canaries; other probers' load is not known",
)
def test_a_missing_role_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(api: ApiServer, _: Line, seen: list[set[str]]) -> None:
        api.forbidden.add("list leases")
        await asyncio.sleep(60.0)
        assert all(one == set() for one in seen)

    following(story)
    said = capsys.readouterr().out
    assert said.count("cannot list the servers that other probers load") == 1
    assert "it needs a Role in its own namespace with get, list, create, update and delete of leases" in said


# Files.

_HOLDER = """
import asyncio, sys
from pathlib import Path
from probe.core.clock import SystemClock
from probe.capacity.run.locks import FileLock

async def main():
    async with FileLock(sys.argv[1], Path(sys.argv[2]), SystemClock()):
        print("held", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


@contextmanager
def another_process(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Hold the lock in another process until its input ends."""
    command = [sys.executable, "-c", _HOLDER, SERVER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_file_that_another_process_has_locked(tmp_path: Path) -> None:
    assert not locked_by_others(SERVER, tmp_path)
    with another_process(tmp_path) as process:
        assert locked_by_others(SERVER, tmp_path)
        assert not locked_by_others("llama:8000", tmp_path)
        process.kill()
        process.wait()
        assert list(tmp_path.iterdir()), "it has left its file"
        assert not locked_by_others(SERVER, tmp_path)


def test_a_file_that_we_have_locked_ourselves_is_not_others(tmp_path: Path) -> None:
    async def ours() -> None:
        async with FileLock(SERVER, tmp_path, SystemClock()):
            assert not locked_by_others(SERVER, tmp_path)

    virtually(ours())
    with another_process(tmp_path):
        assert locked_by_others(SERVER, tmp_path), "it was ours, and is not any more"


_LOOKER = """
import sys, time
from pathlib import Path
from probe.capacity.run.locks import locked_by_others

print("looks", flush=True)
while True:
    locked_by_others(sys.argv[1], Path(sys.argv[2]))
    time.sleep(0.0002)
"""


@pytest.mark.slow
def test_checking_a_lock_does_not_block_it(tmp_path: Path) -> None:
    async def taken() -> None:
        for _ in range(1000):
            async with FileLock(SERVER, tmp_path, SystemClock()):
                pass

    command = [sys.executable, "-c", _LOOKER, SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            asyncio.run(taken())
        finally:
            process.kill()


@pytest.mark.slow
def test_files_are_looked_at_where_there_are_no_leases(tmp_path: Path) -> None:
    async def story(_: ApiServer, line: Line, seen: list[set[str]]) -> None:
        assert seen[-1] == set()
        with another_process(tmp_path):
            await asyncio.sleep(EVERY_S)
            assert seen[-1] == {SERVER}
        await asyncio.sleep(4 * EVERY_S)
        assert seen[-1] == set()
        assert line.asked == []

    following(story, lease=None, lock_dir=str(tmp_path))
