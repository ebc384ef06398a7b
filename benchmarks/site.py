"""The documentation as a site: `make site`, which runs this before and after Zensical.

`prepare FOLDER` copies the pages and Zensical's configuration to a folder, where every link leads to another page or to
the repository on GitHub. `check FOLDER` reports each link of the built site that leads nowhere, and what a page loads
from another machine. Neither needs a network.
"""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/kneewatch/kneewatch"
# Code, in which what looks like a link is none; or a link, with code among its words.
_CODE_OR_LINK = re.compile(r"```.*?```|`[^`\n]*`|\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^)\s]+)\)", re.DOTALL)
# Python-Markdown wants an empty line before a list, GitHub does not.
_LIST_AFTER_TEXT = re.compile(r"^((?![-*#|>\s]|\d+\. ).+\n)(?=(?:- |\d+\. ))", re.MULTILINE)
# Pages from elsewhere than docs/, and their place in the site.
_ELSEWHERE = {
    "README.md": "overview.md",
    "deploy/README.md": "deploy.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
# Folders that docs/README.md links as a whole.
_FOLDERS = {"docs/runbooks": "Runbooks", "docs/adr": "Decisions", "docs/evidence": "Evidence"}


def places() -> dict[str, str]:
    """Return each page's place in the site, by its path in the repository."""
    pages = {str(page.relative_to(ROOT)): str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    return {**pages, "docs/README.md": "index.md", **_ELSEWHERE}


def prepare(folder: Path) -> None:
    """Write the pages, their pictures and Zensical's configuration to the folder, replacing what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs/pictures", folder / "pages/pictures")
    known = places()
    for source, place in known.items():
        target = folder / "pages" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(converted((ROOT / source).read_text(), source, known))
    for directory, title in _FOLDERS.items():
        target = folder / "pages" / directory.removeprefix("docs/") / "index.md"
        target.write_text(f"# {title}\n\n" + "\n".join(_listed(ROOT / directory)) + "\n")
    shutil.copy(ROOT / "docs/zensical.toml", folder)


def _listed(directory: Path) -> Iterator[str]:
    for page in sorted(directory.glob("*.md")):
        yield f"- [{_title(page)}]({page.name})"


def converted(text: str, source: str, known: dict[str, str]) -> str:
    """Return a page for the site: its links as they are there, and its lists as Python-Markdown reads them."""

    def in_site(found: re.Match[str]) -> str:
        return found[0] if found[2] is None else _link(found[1], found[2], source, known)

    return _LIST_AFTER_TEXT.sub(r"\1\n", _CODE_OR_LINK.sub(in_site, text))


def _link(words: str, link: str, source: str, known: dict[str, str]) -> str:
    """Return a link as it is in the site; one that has a page's file name as its words gets the page's title."""
    page = ROOT / normpath(str(PurePosixPath(source).parent / link))
    if words == page.name and page.suffix == ".md":
        words = _title(page)
    return f"[{words}]({_target(link, source, known)})"


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def _target(link: str, source: str, known: dict[str, str]) -> str:
    """Return the link as it is from that page's place in the site."""
    path, hash_, fragment = link.partition("#")
    if urlsplit(link).scheme or not path:
        return link
    inside = normpath(str(PurePosixPath(source).parent / path))
    if inside in known:
        place = known[inside]
    elif inside in _FOLDERS:
        place = f"{inside.removeprefix('docs/')}/index.md"
    elif inside.startswith("docs/pictures/"):
        place = inside.removeprefix("docs/")
    else:
        kind = "tree" if (ROOT / inside).is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{inside}{hash_}{fragment}"
    return f"{relpath(place, str(PurePosixPath(known[source]).parent))}{hash_}{fragment}"


class _Page(HTMLParser):
    """The names of a page's parts, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        values = {name: value for name, value in attrs if value}
        self.names.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in {"script", "img", "source"} and "src" in values:
            self.loads.append(values["src"])
        elif tag == "link" and values.get("rel") in {"stylesheet", "icon"} and "href" in values:
            self.loads.append(values["href"])


def broken_links(site: Path) -> list[str]:
    """Return a line for each link to a page, part or file that the site lacks, and for what it loads from elsewhere."""
    pages = {file: _Page(file.read_text()) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}
    found = []
    for file, page in pages.items():
        where = file.relative_to(site)
        found += [f"{where}: loads {load} from another machine" for load in page.loads if urlsplit(load).netloc]
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{where}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                found.append(f"{where}: {link} has no such part")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run `prepare FOLDER` or `check FOLDER`, and return the exit status."""
    command, folder = arguments
    if command == "prepare":
        prepare(Path(folder))
        return 0
    found = broken_links(Path(folder).resolve())
    print("\n".join(found) or f"{folder}: every link leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
