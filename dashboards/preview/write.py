"""`kneewatch dashboards --preview`: each dashboard as a page, from what Prometheus answers now.

In: the dashboards' JSON text by file name, what was chosen, a folder. Out: the pages' paths.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from dashboards.preview.asking import Asker, QueryError, UnreachableError
from dashboards.preview.chosen import Chosen
from dashboards.preview.gather import Sitting, count, gather
from dashboards.preview.page import page
from dashboards.preview.places import View
from probe.core.errors import ConfigError
from probe.report.files import write_files

_QUIET_S = 2.0


def write_pages(
    dashboards: Mapping[str, str], chosen: Chosen, out: Path, clock: Callable[[], float] = time.time
) -> list[Path]:
    """Writes kneewatch-target.html for kneewatch-target.json, and so on. Raises ConfigError."""
    return write_files(asyncio.run(_pages(dashboards, chosen, clock())), out)


async def _pages(dashboards: Mapping[str, str], chosen: Chosen, now_s: float) -> dict[str, str]:
    loaded: dict[str, dict[str, Any]] = {
        f"{Path(name).stem}.html": json.loads(text) for name, text in dashboards.items()
    }
    given = {"target": chosen.target} | ({"workload": chosen.workload} if chosen.workload else {})
    with _progress(sum(map(count, loaded.values()))) as done:
        async with Asker(chosen.url) as asker:
            try:
                scrape_s = await asker.scrape_interval(now_s)
            except QueryError as error:
                raise ConfigError(_unusable(chosen.url, error)) from None
            files = {str(one["uid"]): name for name, one in loaded.items()}
            sitting = Sitting(asker, now_s, scrape_s, given, files, chosen.hours, done)
            views = await asyncio.gather(*(gather(one, sitting) for one in loaded.values()))
    shown: dict[str, View] = dict(zip(loaded, views, strict=True))
    titles = {name: view.title for name, view in shown.items()}
    return {name: page(view, name, titles, chosen.url) for name, view in shown.items()}


def _unusable(url: str, error: QueryError) -> str:
    if isinstance(error, UnreachableError):
        return f"--preview {url}: {error}; check that Prometheus runs there, and the address"
    return f"--preview {url}: a query is refused ({error}); check that the address is of Prometheus itself"


@contextmanager
def _progress(panels: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, once it has taken some seconds; calls of what it yields move it."""
    bar = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
    task = bar.add_task("asking Prometheus", total=panels)
    timer = asyncio.get_running_loop().call_later(_QUIET_S, bar.start)
    try:
        yield lambda: bar.advance(task)
    finally:
        timer.cancel()
        if bar.live.is_started:
            bar.stop()
