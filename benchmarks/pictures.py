"""Draw the pictures in docs/pictures: the dashboards, and Kneewatch's own pages.

    PYTHONPATH=.:tests:tests/integration python benchmarks/pictures.py --out docs/pictures [--seconds 110]

In: nothing. Out: dashboard-fleet.png, -target, -server, -capacity and -probe; page-status.png and page-target.png.
`kneewatch run` watches six mock servers with changing numbers of users, and a real Prometheus scrapes it with the
generated rules, their windows scaled to minutes. One server has too small a KV cache for its users, one dies.
benchmarks/dashboards/preview then queries that Prometheus, and Chromium takes the pictures. The capacities of the
fortnight before are copies of one run's, a few percent apart; the GPUs are a recorded page of dcgm-exporter.
"""

import argparse
import asyncio
import base64
import math
import random
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
from browser import Browser
from kneewatch_command import kneewatch
from monitor import Monitor, Sim
from real_prometheus import RealPrometheus
from stub_server import stub_server

from benchmarks.dashboards.preview.write import write_pages
from dashboards.build import render
from probe.config.config_file import load_config
from probe.monitor.store import Store
from probe.report.result_json import loads

_ROOT = Path(__file__).parents[1]
_WIDTH = 1400
_SHOWN = "chat-8b"  # the target of the pictures that are of one
_DIES = "search-1b"
_BEFORE_RUN_S = 45.0  # so that the one run at the full minute ends well before the users do
# Rows that a picture leaves out, by position: those that are empty for a mock server, or too many for a page.
_CLOSED = {"server": (1, 2, 3, *range(6, 20))}


@dataclass(frozen=True, slots=True)
class Watched:
    """A mock server, and its users: how many at most, the pause between requests, and the lengths of those."""

    name: str
    profile: str
    users: int
    pause_s: float
    words: tuple[int, int] = (40, 220)
    tokens: tuple[int, int] = (8, 40)
    steps: tuple[int, ...] = ()


_FLEET = (
    Watched(_SHOWN, "llama-8b", 5, 0.7, steps=(8, 16, 32)),  # the knee lies between the last two
    Watched("code-14b", "14b-a100", 3, 1.0),
    Watched("rag-70b", "70b-a100", 2, 1.5),
    Watched("mixtral", "moe-h200", 2, 1.2),
    Watched(_DIES, "1b-h100", 2, 0.8),
    Watched("batch-tiny", "small-kv", 14, 0.2, (120, 240), (40, 80)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=110.0, help="how long users come and go")
    parser.add_argument("--pages", type=Path, help="keep the pages in this folder too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kneewatch-pictures-") as folder, Browser("chromium") as browser:
        browser.screen(_WIDTH, 900)
        given.out.mkdir(parents=True, exist_ok=True)
        for page in _pages(Path(folder), given.seconds, partial(_picture_of_own, browser, given.out)):
            print(_picture(browser, page, given.out))
        if given.pages:
            shutil.copytree(Path(folder) / "out", given.pages, dirs_exist_ok=True)


def _pages(folder: Path, seconds: float, draw: Callable[[str, str], None]) -> Sequence[Path]:
    """Return the dashboards' pages. `draw` takes the name and the address of each of Kneewatch's own pages."""
    with ExitStack() as running:
        # What it starts is killed with its thread, so that has to last.
        starter = running.enter_context(ThreadPoolExecutor(1))
        sims = {one.name: running.enter_context(Sim(folder / one.name, one.profile)) for one in _FLEET}
        page = (_ROOT / "tests/pages/gpu/dcgm-4.9.prom").read_text()
        monitor = Monitor(_config(sims, running.enter_context(stub_server(200, page)), folder), folder / "monitor")
        _fortnight(monitor.config_file, folder)
        running.enter_context(monitor)
        rules = folder / "rules"
        done = kneewatch("alerts", "-c", monitor.config_file, "-o", rules, "--window-scale", "0.01")
        assert done.status == 0, done.err
        prometheus = running.enter_context(
            RealPrometheus("prometheus", folder, addresses=[monitor.address], rule_files=sorted(rules.iterdir()))
        )
        dashboards = render(load_config(monitor.config_file), scrape_interval_s=1.0)
        ask = partial(write_pages, dashboards, prometheus.base_url, _SHOWN, folder / "out", seconds / 3600)
        pages = asyncio.run(_use(sims, seconds, ask, starter))
        draw("page-status", monitor.base_url)
        draw("page-target", f"{monitor.base_url}/targets/{_SHOWN}")
    return pages


def _config(sims: dict[str, Sim], gpus: str, folder: Path) -> dict[str, object]:
    targets: list[dict[str, object]] = []
    for one in _FLEET:
        target: dict[str, object] = {
            "name": one.name, "base_url": sims[one.name].base_url, "objectives": "chat", "scrape": "1s",
            "canary": {"every": "2s", "workload": "canary", "timeout": "5s"},
        }  # fmt: skip
        if one.steps:
            minute = datetime.fromtimestamp(time.time() + _BEFORE_RUN_S + 60, UTC).minute
            target["capacity"] = {
                "mode": "verify", "workload": "short-chat", "concurrency": list(one.steps), "step": "3s",
                "schedule": {"cron": f"{minute} * * * *", "timezone": "UTC"},
            }  # fmt: skip
        if one.name == _SHOWN:
            target["gpu"] = {"dcgm_urls": [f"{gpus}/metrics"], "every": "1s"}
        targets.append(target)
    latencies = {"ttft": {"ratio": 0.95, "within": "500ms"}, "tpot": {"ratio": 0.95, "within": "50ms"}}
    return {
        "store": {"path": str(folder / "kneewatch.db")},
        "objectives": {"chat": {"availability": 0.95, **latencies}},
        "workloads": {
            "short-chat": {"prompt_tokens": 128, "output_tokens": 24},
            "canary": {"prompt_tokens": 64, "output_tokens": 12},
        },
        "targets": targets,
    }


def _fortnight(config: Path, folder: Path) -> None:
    """Store one capacity run of each measured target, and a similar one for each day before."""
    noise, store = random.Random(5), Store(folder / "kneewatch.db")  # noqa: S311 - no secrets
    for one in _FLEET:
        if not one.steps:
            continue
        file, steps = folder / f"{one.name}.json", ",".join(map(str, one.steps))
        short = ("--concurrency", steps, "--step-seconds", "3", "--confirm-seconds", "0", "--out", file)
        kneewatch("ramp", "-c", config, "--target", one.name, *short)
        measured = loads(file.read_text())
        found = measured.capacity.requests_per_second
        assert found is not None, f"{one.name}: {measured.capacity.reason}"
        for days in range(14, 0, -1):
            rps = found * noise.gauss(1.0, 0.015)
            upper = 1.03 * rps if measured.capacity.upper else None  # where no level broke an objective there is none
            figures = replace(measured.capacity, requests_per_second=rps, lower=0.97 * rps, upper=upper)
            started = datetime.now(UTC) - timedelta(days=days)
            store.add(replace(measured, id=f"{one.name}-{days}", capacity=figures, started=started))
    store.close()


async def _use(sims: dict[str, Sim], seconds: float, ask: Callable[[], list[Path]], starter: Executor) -> list[Path]:
    """Send the requests of every server's users until `ask` has been answered. One server dies, twice."""
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client, asyncio.TaskGroup() as group:
        users = [
            group.create_task(_user(client, sims[one.name].base_url, one, place))
            for one in _FLEET
            for place in range(one.users)
        ]
        loop = asyncio.get_running_loop()
        for part, switch in ((0.5, sims[_DIES].__exit__), (0.07, sims[_DIES].__enter__), (0.38, sims[_DIES].__exit__)):
            await asyncio.sleep(part * seconds)
            await loop.run_in_executor(starter, switch)
        await asyncio.sleep(0.05 * seconds)
        answer = await asyncio.to_thread(ask)
        for user in users:
            user.cancel()
    return answer


async def _user(client: httpx.AsyncClient, url: str, one: Watched, place: int) -> None:
    noise = random.Random(f"{one.name}-{place}")  # noqa: S311 - no secrets
    while True:
        busy = 0.5 + 0.5 * math.sin(time.monotonic() / 12 + len(one.name))  # a day of a minute and a quarter
        if place >= one.users * (0.3 + 0.7 * busy):
            await asyncio.sleep(1.0)
            continue
        prompt = "word " * noise.randint(*one.words)
        body = {"model": "mock-model", "prompt": prompt, "max_tokens": noise.randint(*one.tokens)}
        with suppress(httpx.HTTPError):
            await client.post(f"{url}/v1/completions", json=body)
        await asyncio.sleep(noise.expovariate(1 / one.pause_s))


def _picture(browser: Browser, page: Path, out: Path) -> str:
    name = page.stem.removeprefix("kneewatch-")
    browser.open(page.as_uri())
    for place in _CLOSED.get(name, ()):
        browser.evaluate(f"document.querySelectorAll('details.row')[{place}]?.removeAttribute('open')")
    return _taken(browser, out / f"dashboard-{name}.png")


def _picture_of_own(browser: Browser, out: Path, name: str, address: str) -> None:
    browser.open(address)
    print(_taken(browser, out / f"{name}.png"))


def _taken(browser: Browser, file: Path) -> str:
    """Take a picture of the whole open page, once it has been drawn."""
    browser.evaluate("new Promise((done) => setTimeout(done, 500))")
    assert not browser.complaints, browser.complaints
    browser.picture(file)
    file.write_bytes(_smaller(browser, file.read_bytes()))
    return f"{file}: {file.stat().st_size / 1000:.0f} kB"


# The 256 most frequent colours, and for each pixel the nearest of them: text and lines have few.
_PALETTE = """(async () => {
  const image = await createImageBitmap(await (await fetch('data:image/png;base64,%s')).blob());
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const one of pixels) counts.set(one, (counts.get(one) ?? 0) + 1);
  const kept = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([one]) => one);
  const parts = (one) => [one & 255, (one >> 8) & 255, (one >> 16) & 255];
  const nearest = new Map();
  for (const one of counts.keys()) {
    const [r, g, b] = parts(one);
    let [best, least] = [0, Infinity];
    kept.forEach((other, i) => {
      const [x, y, z] = parts(other);
      const far = (r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2;
      if (far < least) [best, least] = [i, far];
    });
    nearest.set(one, best);
  }
  let text = '';
  for (const one of pixels) text += String.fromCharCode(nearest.get(one));
  return {width: image.width, height: image.height, palette: kept.map(parts), indices: btoa(text)};
})()"""


def _smaller(browser: Browser, png: bytes) -> bytes:
    """Return the same picture with a palette: a third of the size."""
    browser.open("about:blank")
    read = browser.evaluate(_PALETTE % base64.b64encode(png).decode())
    width, indices = read["width"], base64.b64decode(read["indices"])
    rows = b"".join(b"\0" + indices[at : at + width] for at in range(0, len(indices), width))
    head = struct.pack(">IIBBBBB", width, read["height"], 8, 3, 0, 0, 0)
    palette = bytes(part for one in read["palette"] for part in one)
    chunks = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


if __name__ == "__main__":
    main()
