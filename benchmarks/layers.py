"""Draw docs/pictures/layers.svg: the packages, layer by layer, and what each imports.

    python benchmarks/layers.py [--out docs/pictures/layers.svg]

The layers are those of the import contract in pyproject.toml, the imports those of the code, and the line in each box
is the first line of the package's docstring.
"""

import argparse
import ast
import textwrap
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
WIDTH, GAP, PADDING = 880, 10, 9  # GitHub shows a page about this wide
TITLE, PURPOSE, IMPORTS = 18, 16, 14  # heights of a line
CHARACTER = 6.8  # mean width of a character of the purpose, in the widest of the fonts below
SMALL_CHARACTER = 5.8
# Foreground, background and borders of each theme; the viewer's preference chooses.
STYLE = """
  svg { color-scheme: light dark; }
  text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
  .name { font-size: 14px; font-weight: 600; }
  .purpose { font-size: 12.5px; }
  .imports { font-size: 11px; fill: #59636e; }
  .page { fill: #ffffff; }
  .probe { fill: #eef4fb; stroke: #5b8dc9; }
  .other { fill: #fdf3e3; stroke: #c08a2d; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .imports { fill: #9198a1; }
    .page { fill: #0d1117; }
    .probe { fill: #14233a; stroke: #4a78b5; }
    .other { fill: #33270f; stroke: #a97c2c; }
  }
"""


@dataclass(frozen=True, slots=True)
class Package:
    """A box of the picture."""

    name: str
    purpose: str
    imports: tuple[str, ...]


def layers() -> list[list[str]]:
    """Return the layers of the contract, the top one first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def purpose(package: str) -> str:
    """Return the first line of a package's docstring."""
    source = (ROOT / package.replace(".", "/") / "__init__.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def short(package: str) -> str:
    """Return a package's name as the picture has it: a path, without the `probe/` that most have."""
    return package.removeprefix("probe.").replace(".", "/")


def packages(names: list[list[str]]) -> list[list[Package]]:
    """Return the packages of each layer, with what they import directly."""
    every = [name for layer in names for name in layer]
    graph = grimp.build_graph(*sorted({name.partition(".")[0] for name in every}))

    def owner(module: str) -> str | None:
        return next((name for name in every if module == name or module.startswith(f"{name}.")), None)

    imports: dict[str, set[str]] = {name: set() for name in every}
    for module in graph.modules:
        if (importer := owner(module)) is not None:
            imported = {owner(other) for other in graph.find_modules_directly_imported_by(module)}
            imports[importer] |= {other for other in imported if other is not None and other != importer}
    return [
        [
            Package(name, purpose(name), tuple(short(other) for other in every if other in imports[name]))
            for name in layer
        ]
        for layer in names
    ]


def lines(package: Package, width: float) -> tuple[list[str], list[str]]:
    """Return the lines of a box: its purpose, and its imports."""
    room = width - 2 * PADDING
    imports = "imports " + ", ".join(package.imports) if package.imports else "imports no other package"
    return (
        textwrap.wrap(package.purpose, int(room / CHARACTER)),
        textwrap.wrap(imports, int(room / SMALL_CHARACTER), break_on_hyphens=False),
    )


def box(package: Package, x: float, y: float, width: float, height: float) -> list[str]:
    """Return the elements of one box."""
    kind = "probe" if package.name.startswith("probe.") else "other"
    text_x, at = x + PADDING, y + TITLE + 2
    parts = [
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>',
        f'<text class="name" x="{text_x:g}" y="{at:g}">{escape(short(package.name))}</text>',
    ]
    for style, size, texts in zip(("purpose", "imports"), (PURPOSE, IMPORTS), lines(package, width), strict=True):
        for text in texts:
            at += size
            parts.append(f'<text class="{style}" x="{text_x:g}" y="{at + 2:g}">{escape(text)}</text>')
    return parts


def draw(rows: list[list[Package]]) -> str:
    """Return the picture as SVG."""
    parts: list[str] = []
    y = float(GAP)
    for row in rows:
        width = (WIDTH - GAP * (len(row) + 1)) / len(row)
        wrapped = [lines(package, width) for package in row]
        height = TITLE + max(len(a) * PURPOSE + len(b) * IMPORTS for a, b in wrapped) + PADDING + 2
        for column, package in enumerate(row):
            parts += box(package, GAP + column * (width + GAP), y, width, height)
        y += height + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" role="img">\n'
        f"<title>Kneewatch's packages, layer by layer; each imports only packages below it</title>\n"
        f'<style>{STYLE}</style>\n<rect class="page" width="{WIDTH}" height="{y:g}"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures/layers.svg")
    parser.parse_args().out.write_text(draw(packages(layers())))


if __name__ == "__main__":
    main()
