"""The configuration file, watched while the monitor runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from probe.config.config_file import changes

INTERVAL_S = 0.01


async def _next(found: AsyncIterator[None]) -> None:
    await asyncio.wait_for(anext(found), 10)


def test_each_change_of_the_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text("a: 1\n")

    async def watch() -> None:
        found = changes(file, INTERVAL_S)
        waiting = asyncio.create_task(_next(found))
        await asyncio.sleep(10 * INTERVAL_S)
        assert not waiting.done(), "nothing has changed"
        file.write_text("a: 23\n")
        await waiting
        file.unlink()
        await _next(found)
        file.write_text("a: 1\n")
        await _next(found)

    asyncio.run(watch())


@pytest.mark.fault(
    "CO13",
    "A ConfigMap is swapped by its link",
    area="Configuration",
    users_see="the change is taken",
    stays="never no target in between",
)
def test_a_config_map_changes_by_its_link(tmp_path: Path) -> None:
    """As kubelet does it: the file is a link through a folder that is swapped."""
    for name, text in (("v1", "a: 1\n"), ("v2", "a: 2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kneewatch.yml").write_text(text)
    (tmp_path / "data").symlink_to("v1")
    (tmp_path / "kneewatch.yml").symlink_to("data/kneewatch.yml")

    async def watch() -> None:
        found = changes(tmp_path / "kneewatch.yml", INTERVAL_S)
        waiting = asyncio.create_task(_next(found))
        await asyncio.sleep(5 * INTERVAL_S)
        (tmp_path / "new").symlink_to("v2")
        os.replace(tmp_path / "new", tmp_path / "data")  # noqa: PTH105 - as kubelet does
        await waiting

    asyncio.run(watch())
