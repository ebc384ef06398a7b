"""A configuration that is broken, renamed or deleted while the monitor runs, and a key that is rotated under load."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from mock_servers import MockServer, mock_server
from monitor import Monitor, Sim
from process import eventually
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from probe.capacity.run.request import Budget, RunRequest, StepSettings
from probe.cli.ramp import ramp_target
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.result import CapacityResult, Stopped

SMALL = {"default": {"prompt_tokens": 8, "output_tokens": 3}}
GOOD = "kneewatch_config_last_reload_successful 1.0"
BAD = "kneewatch_config_last_reload_successful 0.0"


def config(tiny: Sim, name: str = "a") -> dict[str, Any]:
    return {"workloads": SMALL, "targets": [{"name": name, "base_url": tiny.base_url, "canary": {"every": "1s"}}]}


@pytest.fixture(scope="module")
def monitor(tiny: Sim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    with Monitor(config(tiny), tmp_path_factory.mktemp("run")) as running:
        eventually(running.is_ready, within_s=40, what="it is ready")
        yield running
        assert "Traceback" not in running.output


@pytest.fixture
def file(monitor: Monitor) -> Iterator[Path]:
    """Return the monitor's configuration file; afterwards it is as before."""
    path, before = monitor.config_file, monitor.config_file.read_text()
    yield path
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.write_text(before)
    assert reload(monitor).status_code == 200
    assert GOOD in monitor.page("/metrics")


def reload(monitor: Monitor) -> httpx.Response:
    return httpx.post(f"{monitor.base_url}/-/reload", timeout=60, trust_env=False)


def canaries(monitor: Monitor) -> float:
    found = re.findall(
        r'^kneewatch_requests_total{target="a".*outcome="ok".*} (.+)$', monitor.page("/metrics"), re.MULTILINE
    )
    return sum(map(float, found))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BREAKS: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "folder": folder,
    "emptied": lambda path: path.write_text(""),
    "cut": lambda path: path.write_text(path.read_text()[:-40] + "\n  - {"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "endless": lambda path: path.write_text(path.read_text() + "#" * 20_000_000),
    "nested": lambda path: path.write_text("[" * 2000),
    "unfolds": lambda path: path.write_text(
        "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9) if i else 1}]\n" for i in range(30))
    ),
    "link-to-itself": lambda path: (path.unlink(), path.symlink_to(path)),
    "no-targets": lambda path: path.write_text("targets: []\n"),
}


@pytest.mark.parametrize("breaks", BREAKS.values(), ids=BREAKS)
@pytest.mark.fault(
    "CO29",
    "The configuration file is deleted while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="deleted",
)
@pytest.mark.fault(
    "CO30",
    "A folder takes the place of the file while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="folder",
)
@pytest.mark.fault(
    "CO31",
    "The file is emptied while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="emptied",
)
@pytest.mark.fault(
    "CO32",
    "The file is cut in the middle while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="cut",
)
@pytest.mark.fault(
    "CO33",
    "The file becomes binary while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="binary",
)
@pytest.mark.fault(
    "CO34",
    "The file grows to 20 MB while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="endless",
)
@pytest.mark.fault(
    "CO35",
    "The file nests 2,000 lists while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="nested",
)
@pytest.mark.fault(
    "CO36",
    "The file unfolds to a billion values by YAML aliases while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="unfolds",
)
@pytest.mark.fault(
    "CO37",
    "The file becomes a link to itself while it runs",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="link-to-itself",
)
@pytest.mark.fault(
    "CO38",
    "The file has no targets any more",
    area="Configuration",
    users_see="refused in lines that begin with the file, `kneewatch_config_last_reload_successful` 0",
    stays="canaries go on as before",
    case="no-targets",
)
def test_a_broken_file_is_refused_in_lines_and_the_former_configuration_stays(
    monitor: Monitor, file: Path, breaks: Callable[[Path], object]
) -> None:
    ok = canaries(monitor)
    breaks(file)
    refused = reload(monitor)
    assert refused.status_code >= 400, refused.text
    assert 0 < len(refused.text) < 2000
    assert refused.text.startswith(str(file))
    assert BAD in monitor.page("/metrics")
    eventually(lambda: canaries(monitor) >= ok + 2, within_s=20, what="canaries go on")


@pytest.mark.fault(
    "CO39",
    "A target is renamed while it runs",
    area="Configuration",
    users_see="its series begin again under the new name",
    stays="nothing of the old name on `/metrics`, pages and API",
)
def test_a_renamed_target_leaves_nothing_of_its_old_name(tiny: Sim, tmp_path: Path) -> None:
    with Monitor(config(tiny, "old"), tmp_path) as one:
        up = 'kneewatch_target_up{target="%s"} 1.0'
        eventually(lambda: up % "old" in one.page("/metrics"), within_s=40, what="a canary under the old name")
        text = one.config_file.read_text()
        one.config_file.write_text(text.replace("name: old", "name: new"))
        assert reload(one).status_code == 200
        eventually(lambda: up % "new" in one.page("/metrics"), within_s=20, what="a canary under the new name")
        assert 'target="old"' not in one.page("/metrics")
        names = [target["name"] for target in json.loads(one.page("/api/v1/targets"))]
        assert names == ["new"]
        assert httpx.get(f"{one.base_url}/targets/old", timeout=20, trust_env=False).status_code == 404


# A key that is rotated.


class Keyed:
    """A mock server that takes the keys of a set."""

    def __init__(self, server: MockServer) -> None:
        self.taken = {"first"}
        self.refused = 0
        self._inner = server.app
        for path in ("/v1/completions", "/v1/models"):
            server.instead[path] = self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        if key in self.taken:
            await self._inner(scope, receive, send)
        else:
            self.refused += 1
            await PlainTextResponse("no such key", 401)(scope, receive, send)


@pytest.mark.fault(
    "CO40",
    "The API key is rotated under load",
    area="Configuration",
    users_see="nothing",
    stays="no request fails where the server takes both keys for 2 s",
)
def test_a_key_that_is_rotated_under_load_fails_no_request(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first\n")

    async def rotate(keyed: Keyed) -> None:
        """Rotate as operators do: both keys are taken for a while."""
        keyed.taken = {"first", "second"}
        key.write_text("second\n")
        await asyncio.sleep(2.0)
        keyed.taken = {"second"}

    async def main() -> tuple[CapacityResult, int]:
        async with mock_server() as server:
            keyed = Keyed(server)
            target = {"name": "a", "base_url": server.url, "api_key_file": str(key)}
            loaded = config_from(yaml.safe_load(yaml.safe_dump({"workloads": SMALL, "targets": [target]})), "test")
            asked = RunRequest(
                "a",
                loaded.objectives_of(loaded.targets[0]),
                Budget(10**9, 60.0, 60.0),
                StepSettings(concurrency=(2,), seconds=6.0),
                workers=1,
            )
            running = asyncio.create_task(ramp_target(loaded, loaded.targets[0], asked, SystemClock(), lambda _: None))
            async with asyncio.timeout(30):
                while server.driver.engine.running < 1:  # noqa: ASYNC110 - workers change it
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1.0)
            await rotate(keyed)
            return await running, keyed.refused

    result, refused = asyncio.run(main())
    assert refused == 0
    assert result.stopped == Stopped("done")
    assert result.steps[0].requests.failed == 0
