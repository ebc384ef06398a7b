"""The parts of a dashboard before Grafana's JSON: queries, panels with a size, rows, columns, annotations. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 24  # of the grid
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED, BLUE, GREY = "green", "orange", "red", "blue", "text"
PAGES = "Kneewatch"  # title of links to the monitor's own pages
# Shown instead of values: what is missing, or what would fill the panel.
NO_GPU = "no GPU metrics"
NOT_SCRAPED = "nothing: Kneewatch is down, or this Prometheus does not scrape it"

# A lower bound and the colour from there on; the first bound is None.
Steps = Sequence[tuple[float | None, str]]
# Text instead of a number: value to (text, colour). A value such as "<=-1" stands for all up to it.
Texts = Mapping[str, tuple[str, str]]
# A target that was down when it was new has an error budget of -100,000 %, which would make all others illegible.
OVERSPENT = -1
OVERSPENT_TEXTS: Texts = {f"<={OVERSPENT}": (f"{OVERSPENT:.0%} or less".replace("%", " %"), RED)}


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and its legend. A legend that begins with "objective" is drawn as a dashed limit.

    `is_on_right_axis`: on the right axis, which has a unit of its own.
    """

    expr: str
    legend: str
    is_on_right_axis: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: an instant query with the table's key among its labels.

    `steps` or `texts` colour the cell. `expr` of the key's own column is "".
    """

    title: str
    expr: str
    unit: str = "short"
    steps: Steps = ()
    texts: Texts | None = None
    width: int = 96
    decimals: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedPanel:
    """A panel and its size in the grid of rows WIDTH wide."""

    panel: Any
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A question, and the panels that answer it. A collapsed row sends no queries until it is opened."""

    title: str
    panels: Sequence[PlacedPanel]
    is_collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks on the time axis: where `expr` is above 0.

    `has_timestamps`: they are at the timestamps (ms) that it returns.
    """

    name: str
    expr: str
    text: str  # with labels as {{label}}
    color: str
    has_timestamps: bool = False
