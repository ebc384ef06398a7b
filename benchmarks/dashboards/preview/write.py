"""Write each dashboard as a page, from what Prometheus answers now.

In: the dashboards' JSON text by file name, the address of a Prometheus, a target, a folder. Out: the pages' paths.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.dashboards.preview.asking import Asker
from benchmarks.dashboards.preview.gather import Sitting, gather
from benchmarks.dashboards.preview.page import page
from benchmarks.dashboards.preview.places import View
from probe.report.files import write_files


def write_pages(
    dashboards: Mapping[str, str], url: str, target: str, out: Path, hours: float | None = None
) -> list[Path]:
    """Write kneewatch-target.html for kneewatch-target.json, and so on. Raises QueryError without a Prometheus."""
    return write_files(asyncio.run(_pages(dashboards, url, target, hours)), out)


async def _pages(dashboards: Mapping[str, str], url: str, target: str, hours: float | None) -> dict[str, str]:
    loaded: dict[str, dict[str, Any]] = {
        f"{Path(name).stem}.html": json.loads(text) for name, text in dashboards.items()
    }
    now_s = time.time()
    async with Asker(url) as asker:
        scrape_s = await asker.scrape_interval(now_s)
        files = {str(one["uid"]): name for name, one in loaded.items()}
        sitting = Sitting(asker, now_s, scrape_s, {"target": target}, files, hours)
        views = await asyncio.gather(*(gather(one, sitting) for one in loaded.values()))
    shown: dict[str, View] = dict(zip(loaded, views, strict=True))
    titles = {name: view.title for name, view in shown.items()}
    return {name: page(view, name, titles, url) for name, view in shown.items()}
