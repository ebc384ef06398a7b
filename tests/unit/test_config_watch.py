"""The configuration file, looked at again while the monitor runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from probe.config_watch import verdicts

GOOD = "targets: [{name: a, base_url: 'http://127.0.0.1:9'}]\n"
INTERVAL_S = 0.01


async def _next(found: AsyncIterator[bool]) -> bool:
    return await asyncio.wait_for(anext(found), 10)


def test_a_file_that_changes_is_judged_each_time(tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(GOOD)

    async def watch() -> None:
        found = verdicts(file, INTERVAL_S)
        waiting = asyncio.create_task(_next(found))
        await asyncio.sleep(10 * INTERVAL_S)
        assert not waiting.done(), "nothing has changed"
        file.write_text(GOOD + "nonsense: 1\n")
        assert await waiting is False
        file.write_text(GOOD + "# mended\n")
        assert await _next(found) is True
        file.unlink()
        assert await _next(found) is False

    asyncio.run(watch())


def test_a_config_map_changes_by_its_link(tmp_path: Path) -> None:
    """As kubelet does it: the file is a link through a folder that is swapped."""
    for name, text in (("v1", GOOD), ("v2", "targets: []\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kneewatch.yml").write_text(text)
    (tmp_path / "data").symlink_to("v1")
    (tmp_path / "kneewatch.yml").symlink_to("data/kneewatch.yml")

    async def watch() -> None:
        found = verdicts(tmp_path / "kneewatch.yml", INTERVAL_S)
        waiting = asyncio.create_task(_next(found))
        await asyncio.sleep(5 * INTERVAL_S)
        (tmp_path / "new").symlink_to("v2")
        os.replace(tmp_path / "new", tmp_path / "data")  # noqa: PTH105 - as kubelet does
        assert await waiting is False

    asyncio.run(watch())
