"""The documentation's site as `make site` builds it: whole, readable on a telephone, and searchable."""

import functools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import Browser

from benchmarks.site import broken_links, prepare

ROOT = Path(__file__).parents[2]
PAGES = ("index", "overview", "doctor", "configuration", "metrics", "reliability", "capacity", "runbooks/index")

pytestmark = [pytest.mark.long, pytest.mark.chromium]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documentation") / "site"
    prepare(folder)
    (version,) = re.findall(r"^ZENSICAL := (\S+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    uv = str(Path(sys.executable).with_name("uv"))
    build = [
        uv,
        "tool",
        "run",
        "-q",
        "--from",
        version,
        "zensical",
        "build",
        "--strict",
        "--config-file",
        "zensical.toml",
    ]
    subprocess.run(build, cwd=folder, check=True, timeout=200)
    return folder / "site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 80
    assert broken_links(site) == []


def test_it_is_readable_at_every_width_and_can_be_searched(address: str, chromium: str) -> None:
    with Browser(chromium) as browser:
        for width in (390, 1400):
            browser.screen(width, 1000)
            for page in PAGES:
                browser.open(f"{address}/{page}.html")
                assert browser.evaluate("document.documentElement.scrollWidth") <= width, page
                assert browser.complaints == []
        browser.open(f"{address}/index.html")
        browser.evaluate("document.querySelector('.md-search__button').click()")
        box = "document.activeElement.shadowRoot"  # the search is a part of its own, which has the focus
        browser.until(f"{box}?.activeElement?.role === 'combobox'")
        browser.call("Input.insertText", text="preemption")
        browser.until(f"{box}.querySelectorAll('a').length > 3")
        assert "capacity.html" in browser.evaluate(f"[...{box}.querySelectorAll('a')].map((one) => one.href).join()")
