"""The dashboards' previews, as a browser shows them and as a keyboard goes through them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from browser import Browser
from example_dashboard import HOSTILE, NOW_S, dashboard, prometheus
from monitor import Monitor, Sim
from process import eventually
from real_prometheus import RealPrometheus

from benchmarks.dashboards.preview.asking import Asker
from benchmarks.dashboards.preview.gather import Sitting, gather
from benchmarks.dashboards.preview.page import page
from benchmarks.dashboards.preview.write import write_pages
from dashboards.build import render
from probe.config.config_file import load_config

pytestmark = pytest.mark.chromium

TARGET = "mock-server"
UNKNOWN = "\N{EN DASH}"
PAGES = [f"kneewatch-{name}.html" for name in ("fleet", "target", "server", "capacity", "probe")]
# How many of a canvas' pixels are painted.
_INK = """[...document.querySelectorAll('%s canvas')].map((one) =>
    one.getContext('2d').getImageData(0, 0, one.width, one.height).data.filter(
        (value, i) => i %% 4 === 3 && value > 0).length)"""


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with Browser(chromium) as one:
        yield one


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create a page with a panel of every kind and hostile names. Return its address."""

    async def written() -> str:
        async with Asker("http://prometheus:9090", httpx.MockTransport(prometheus)) as asker:
            view = await gather(dashboard(), Sitting(asker, NOW_S, 15.0, {"target": HOSTILE}, {}))
        return page(view, "made.html", {"made.html": "Made"}, "http://prometheus:9090")

    file = tmp_path_factory.mktemp("made") / "made.html"
    file.write_text(asyncio.run(written()), encoding="utf-8")
    return file.as_uri()


def _text(browser: Browser, selector: str) -> str:
    return " ".join(str(browser.evaluate(f"document.querySelector('{selector}').innerText")).split())


@pytest.mark.parametrize(("width", "dark"), [(1400, False)])
def test_every_kind_is_drawn_without_a_complaint(browser: Browser, made: str, width: int, dark: bool) -> None:  # noqa: FBT001
    browser.screen(width, 900, dark=dark)
    browser.open(made)
    for kind in ("p2", "p4", "p5", "p13"):
        browser.until(f"document.querySelector('#{kind} canvas') !== null")
        (ink,) = browser.evaluate(_INK % f"#{kind}")
        assert ink > 1000, kind
    assert browser.complaints == []
    assert browser.evaluate("document.title") == "Made"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(18, 22, 29)" if dark else "rgb(246, 247, 249)")


def test_numbers_are_written_as_their_fields_say(browser: Browser, made: str) -> None:
    browser.screen(1400, 900)
    browser.open(made)
    assert _text(browser, "#p3 .body") == "up"
    assert _text(browser, "#p6 .body") == "25 % a 125 % b"
    assert _text(browser, "#p7 tbody") == f"b up 1.25 s a DOWN 250 ms {' '.join(HOSTILE.split())} up {UNKNOWN}"
    assert _text(browser, "#p8 .body") == "none was seen"
    assert _text(browser, "#p9 .problem") == 'unknown "fails" <b>'
    assert HOSTILE in _text(browser, "#p10 .body")
    assert "objective last 500 ms max 500 ms" in _text(browser, "#p2 .legend")
    assert "objective 500 ms, highest 500 ms" in browser.evaluate("document.querySelector('#p2 .chart').ariaLabel")
    assert _text(browser, "#p5 .legend") == "DOWN up"
    assert _text(browser, "#events") == "marked: Restart (1)"


@pytest.mark.long
@pytest.mark.prometheus
def test_a_running_monitors_dashboards_are_drawn(
    browser: Browser, sim: Sim, prometheus_binary: str, tmp_path: Path
) -> None:
    target = {"name": TARGET, "base_url": sim.base_url, "scrape": "1s", "canary": {"every": "1s", "workload": "short"}}
    workloads = {"short": {"prompt_tokens": 32, "output_tokens": 8}}
    with (
        Monitor({"workloads": workloads, "targets": [target]}, tmp_path / "monitor") as monitor,
        RealPrometheus(prometheus_binary, tmp_path / "prometheus", addresses=[monitor.address]) as real,
    ):
        seen = f'count_over_time(kneewatch_ttft_seconds_count{{target="{TARGET}"}}[30s]) > 10'
        eventually(lambda: real.query(seen), within_s=60, what="ten seconds of canaries")
        dashboards = render(load_config(monitor.config_file), scrape_interval_s=1.0)
        write_pages(dashboards, real.base_url, TARGET, tmp_path / "out", hours=0.01)
    assert sorted(file.name for file in (tmp_path / "out").glob("*.html")) == sorted(PAGES)
    browser.screen(1400, 900)
    for name in PAGES:
        browser.open((tmp_path / "out" / name).as_uri())
        assert browser.complaints == []
        problems = browser.evaluate("[...document.querySelectorAll('.problem')].map((one) => one.innerText)")
        assert problems == []
    assert TARGET in browser.evaluate("document.body.innerText")
    browser.open((tmp_path / "out" / "kneewatch-target.html").as_uri())
    browser.until("document.querySelectorAll('canvas').length >= 10")
    assert all(ink > 500 for ink in browser.evaluate(_INK % ".chart"))
    assert _text(browser, ".kind-stat .value strong") == "up"
    leads = browser.evaluate("[...document.querySelectorAll('nav a')].map((one) => one.getAttribute('href'))")
    assert leads[: len(PAGES)] == PAGES
