"""A dashboard's panels with their data: every query asked, as Grafana would ask it.

In: the dashboard's JSON, what was chosen, a Prometheus. Out: a `View`: rows of panels, annotations, variables, times.
The panel of a failed query shows the error; the others are drawn.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.dashboards.preview import variables
from benchmarks.dashboards.preview.answers import Asked, Json, drawn, legend
from benchmarks.dashboards.preview.asking import Asker, QueryError, on_grid
from benchmarks.dashboards.preview.intervals import MOST_POINTS, Window, grid_of, rate_interval, step_of
from benchmarks.dashboards.preview.places import Shown, View, placed, without_paper
from probe.core.durations import format_duration, parse_duration

_DEFAULT_S = 3 * 3600.0


@dataclass(frozen=True, slots=True)
class Sitting:
    """What all dashboards written together share. `pages`: uid to the file of the dashboard."""

    asker: Asker
    now_s: float
    scrape_s: float
    given: Mapping[str, str]
    pages: Mapping[str, str]
    hours: float | None = None


async def gather(dashboard: Mapping[str, Any], sitting: Sitting) -> View:
    """Return the dashboard with its data."""
    window = Window(sitting.now_s, sitting.now_s).last(_range_s(dashboard, sitting.hours))
    choices = await variables.choose(dashboard, sitting.given, sitting.asker, window)
    look = _Look(dashboard, sitting, window, choices)
    there = placed(dashboard["panels"])
    panels, events = await asyncio.gather(
        asyncio.gather(*(look.panel(panel, top) for _, panel, top in there)), look.events()
    )
    rows = {id(row): row for row, _, _ in there}
    for (row, _, _), panel in zip(there, panels, strict=True):
        row.panels.append(panel)
    for row in rows.values():
        row.panels = without_paper(row.panels)
    return View(
        str(dashboard["title"]),
        str(dashboard.get("description", "")),
        window,
        choices,
        list(rows.values()),
        events,
        look.links(dashboard.get("links", ())),
    )


def _range_s(dashboard: Mapping[str, Any], hours: float | None) -> float:
    if hours is not None:
        return hours * 3600
    return _past_s(str(dashboard.get("time", {}).get("from", ""))) or _DEFAULT_S


def _past_s(text: str) -> float | None:
    """Parse now-3h, 3h or a number of seconds; return None for anything else."""
    try:
        return parse_duration(text.removeprefix("now-"))
    except ValueError:
        return None


class _Look:
    """One dashboard, at one time range and with one choice of the variables."""

    def __init__(
        self, dashboard: Mapping[str, Any], sitting: Sitting, window: Window, choices: Sequence[variables.Choice]
    ) -> None:
        self._dashboard, self._sitting, self._window = dashboard, sitting, window
        self._queried, self._shown = variables.queried(choices), variables.shown(choices)

    async def panel(self, panel: Mapping[str, Any], top: int) -> Shown:
        own_s = _past_s(str(panel.get("timeFrom") or ""))
        window = self._window.last(own_s) if own_s else self._window
        data, problem = None, ""
        try:
            targets = [one for one in panel.get("targets", ()) if one.get("expr") and not one.get("hide")]
            asked = await asyncio.gather(*(self._ask(panel, one, window) for one in targets))
            data = drawn(panel, asked, self.link)
            if data is not None:
                data |= {"from": window.start_s, "to": window.end_s}
        except QueryError as error:
            problem = str(error)
        grid = panel["gridPos"]
        return Shown(
            id=int(panel["id"]),
            kind=str(panel["type"]),
            title=variables.filled(str(panel.get("title", "")), self._shown),
            description=str(panel.get("description", "")),
            place=(grid["x"], grid["y"] - top, grid["w"], grid["h"]),
            links=self.links(panel.get("links", ())),
            note=f"last {format_duration(own_s)}" if own_s else "",
            data=data,
            problem=problem,
            empty=str(panel.get("fieldConfig", {}).get("defaults", {}).get("noValue") or "no data"),
            text=str(panel.get("options", {}).get("content", "")) if panel["type"] == "text" else "",
        )

    async def events(self) -> list[Json]:
        """Return the marks on the time axis. An annotation that fails has none, and carries the error."""
        annotations = [one for one in self._dashboard.get("annotations", {}).get("list", ()) if _expr(one)]
        return list(await asyncio.gather(*(self._event(one) for one in annotations)))

    def links(self, links: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Return titles and addresses of the links that work from a page."""
        found = [(str(one.get("title", "")), self.link(str(one.get("url") or one.get("uri") or ""))) for one in links]
        return [(title, address) for title, address in found if address]

    def link(self, address: str) -> str | None:
        """Return the address as it works from a page: for a dashboard of the same target, that dashboard's page."""
        parts = urlsplit(variables.filled(address, self._shown))
        if parts.scheme in ("http", "https"):
            return parts.geturl()
        uid = parts.path.removeprefix("/d/").partition("/")[0]
        if parts.scheme or parts.netloc or not parts.path.startswith("/d/") or uid not in self._sitting.pages:
            return None
        wanted = {name.removeprefix("var-"): values[0] for name, values in parse_qs(parts.query).items()}
        given = self._sitting.given
        return None if any(given.get(k, v) != v for k, v in wanted.items()) else self._sitting.pages[uid]

    async def _ask(self, panel: Mapping[str, Any], target: Mapping[str, Any], window: Window) -> Asked:
        own_s = _past_s(str(target.get("interval") or ""))
        scrape_s = own_s or self._sitting.scrape_s
        points = min(int(panel.get("maxDataPoints") or MOST_POINTS), MOST_POINTS)
        step_s = step_of(window, max(_past_s(str(panel.get("interval") or "")) or 0.0, scrape_s), points)
        expr = self._query(str(target["expr"]), window, step_s, scrape_s)
        if target.get("instant") and not target.get("range"):
            return Asked(target, await self._sitting.asker.instant(expr, window.end_s))
        grid = grid_of(window, step_s)
        return Asked(target, await self._sitting.asker.range(expr, grid), grid)

    def _query(self, expr: str, window: Window, step_s: float, scrape_s: float) -> str:
        times = variables.time_values(window, step_s, rate_interval(step_s, scrape_s))
        return variables.filled(expr, {**self._queried, **times})

    async def _event(self, annotation: Mapping[str, Any]) -> Json:
        event: Json = {
            "name": str(annotation.get("name", "")),
            "color": str(annotation.get("iconColor", "blue")),
            "shown": bool(annotation.get("enable", True)),
            "marks": [],
            "problem": "",
        }
        scrape_s = _past_s(str((annotation.get("target") or {}).get("interval") or "")) or self._sitting.scrape_s
        step_s = step_of(self._window, scrape_s)
        grid = grid_of(self._window, step_s)
        try:
            answers = await self._sitting.asker.range(
                self._query(_expr(annotation), self._window, step_s, scrape_s), grid
            )
        except QueryError as error:
            return event | {"problem": str(error)}
        for answer in answers:
            text = legend(str(annotation.get("textFormat") or annotation.get("name", "")), answer.labels)
            if annotation.get("useValueForTime"):
                times = {value / 1000 for _, value in answer.samples}
            else:  # one mark at its beginning
                values = [value or 0.0 for value in on_grid(answer, grid)]
                begun = [i for i, value in enumerate(values) if value > 0 and (i == 0 or values[i - 1] <= 0)]
                times = {grid.start_s + i * step_s for i in begun}
            inside = (at_s for at_s in times if self._window.start_s <= at_s <= self._window.end_s)
            event["marks"] += [{"at": at_s, "text": text} for at_s in inside]
        event["marks"].sort(key=lambda mark: mark["at"])
        return event


def _expr(annotation: Mapping[str, Any]) -> str:
    target = annotation.get("target")
    return str((target.get("expr") if isinstance(target, dict) else None) or annotation.get("expr") or "")
