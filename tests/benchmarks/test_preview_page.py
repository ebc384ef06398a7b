"""The file a page is: whole, closed to what is not in it, and honest about whose code it carries."""

import asyncio
import json
import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from example_dashboard import HOSTILE, NOW_S, dashboard, prometheus

from benchmarks.dashboards.preview.asking import Asker
from benchmarks.dashboards.preview.gather import Sitting, gather
from benchmarks.dashboards.preview.page import page


def _made() -> str:
    async def made() -> str:
        async with Asker("http://prometheus:9090", httpx.MockTransport(prometheus)) as asker:
            view = await gather(dashboard(), Sitting(asker, NOW_S, 15.0, {"target": HOSTILE}, {}))
        titles = {"made.html": "Made", "other.html": HOSTILE}
        return page(view, "made.html", titles, "http://prometheus:9090")

    return asyncio.run(made())


PAGE = _made()


class _Parts(HTMLParser):
    """What a browser sees: elements with their attributes, and the text in each script and style."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag
        if tag in ("script", "style"):
            self.texts.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._in = "" if tag == self._in else self._in

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style"):
            tag, before = self.texts[-1]
            self.texts[-1] = (tag, before + data)


@pytest.fixture(scope="module")
def parts() -> _Parts:
    found = _Parts()
    found.feed(PAGE)
    return found


def test_names_given_by_others_are_escaped_as_text(parts: _Parts) -> None:
    """The names would end the script that they are in, and begin one of their own."""
    assert len(parts.texts) == 4
    data: dict[str, Any] = json.loads(parts.texts[1][1])
    assert HOSTILE in json.dumps(data, ensure_ascii=False).replace('\\"', '"')
    assert "<" not in parts.texts[1][1]
    assert not [a for t, a in parts.elements if t == "b"]


def test_every_panel_has_its_heading_its_place_and_its_words(parts: _Parts) -> None:
    panels = [a["id"] for t, a in parts.elements if t == "article"]
    assert panels == [f"p{number}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 12)]
    style = parts.texts[0][1]
    assert all(re.search(rf"#{name}{{grid-area:\d+/\d+/span 8/span 8}}", style) for name in panels)
    for words in ("Of every kind.", "About Lines. Good: low.", "none was seen", "unknown &#34;fails&#34; &lt;b&gt;"):
        assert words in PAGE
    folded = [a for t, a in parts.elements if t == "details" and a.get("class") == "row" and "open" not in a]
    assert len(folded) == 1
