"""The pages of the documentation's site: links rewritten, and none forgotten in its menu."""

import tomllib
from pathlib import Path

import pytest

from benchmarks.site import broken_links, converted, places

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("source", "link", "there"),
    [
        ("docs/guard.md", "[x](capacity.md#a)", "[x](capacity.md#a)"),
        ("docs/guard.md", "[x](../README.md#limits)", "[x](overview.md#limits)"),
        ("docs/guard.md", "[x](runbooks/)", "[x](runbooks/index.md)"),
        ("docs/adr/0013-packages-in-layers.md", "[x](../README.md)", "[x](../index.md)"),
        ("README.md", "[x](docs/capacity.md)", "[x](capacity.md)"),
        ("README.md", "![x](docs/pictures/layers.svg)", "![x](pictures/layers.svg)"),
        ("deploy/README.md", "[x](examples/)", "[x](https://github.com/kneewatch/kneewatch/tree/main/deploy/examples)"),
        ("docs/guard.md", "[x](../Makefile)", "[x](https://github.com/kneewatch/kneewatch/blob/main/Makefile)"),
        ("docs/guard.md", "[x](https://a.example/b.md)", "[x](https://a.example/b.md)"),
        ("docs/guard.md", "[x](#part)", "[x](#part)"),
        ("docs/README.md", "[configuration.md](configuration.md)", "[Configuration](configuration.md)"),
        ("docs/guard.md", "[`x` y](../README.md)", "[`x` y](overview.md)"),
        ("docs/guard.md", "`[x](../README.md)`", "`[x](../README.md)`"),
    ],
)
def test_a_link_leads_to_the_page_or_to_the_repository(source: str, link: str, there: str) -> None:
    assert converted(link, source, places()) == there


def test_a_list_is_one_without_an_empty_line_before_it() -> None:
    assert converted("So:\n- a\n- b\n", "docs/guard.md", places()) == "So:\n\n- a\n- b\n"
    assert converted("So:\n\n- a\n  b\n- c\n", "docs/guard.md", places()) == "So:\n\n- a\n  b\n- c\n"


def test_the_menu_has_every_page() -> None:
    sections = tomllib.loads((ROOT / "docs/zensical.toml").read_text())["project"]["nav"]
    listed = [
        page for each in sections for pages in each.values() for page in ([pages] if isinstance(pages, str) else pages)
    ]
    pages = {place for place in places().values() if not place.startswith(("adr/", "evidence/", "runbooks/"))}
    assert sorted(listed) == sorted({*pages, "adr/index.md", "evidence/index.md", "runbooks/index.md"})


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#x">1</a><a href="#here">2</a><a href="c.html">3</a>')
    (tmp_path / "b.html").write_text('<img src="http://a.example/x.png"><a href="a.html#here">')
    assert broken_links(tmp_path) == [
        "a.html: b.html#x has no such part",
        "a.html: c.html leads nowhere",
        "b.html: loads http://a.example/x.png from another machine",
    ]
