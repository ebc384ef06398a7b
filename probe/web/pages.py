"""The pages and routes of the monitor. They can trigger only an on-demand probe and a reload."""

import asyncio
import gzip
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from exporters.discovery import exported_labels
from probe import __version__
from probe.charts import ECHARTS, echarts, notice
from probe.core.result import CapacityResult
from probe.core.target_status import CanaryStatus, FiringAlerts, OwnClock, TargetStatus
from probe.core.text import one_line
from probe.gpu.fields import memory, utilization
from probe.report.figures import kv_size, moment, short
from probe.report.forecast_text import beside_measured, correction_words, forecast_rate
from probe.report.html import charts_script, embedded, environment, report, run_data, style
from probe.web import overview
from probe.web.api import WebApi, as_json
from probe.web.day_chart import day_charts
from probe.web.headers import takes_gzip, with_headers
from probe.web.history import budgets, left_words, periods
from probe.web.hosts import only_allowed_hosts
from probe.web.monitor_protocol import Monitor
from probe.web.on_demand import OnDemand
from probe.web.operations import Operations
from probe.web.overview import TargetRow, failures, newest_of_each, since_words
from probe.web.row_text import users_words
from probe.web.state import ENOUGH, STATES
from probe.web.waterfall import waterfall

__all__ = ["Monitor", "build_pages"]

_TEMPLATES = ("status.html", "target.html", "run.html", "missing.html")
_MAX_RUNS = 10
_RUNS_OF_ALL = 5
_MAX_PROBLEM_CHARS = 300
# A curve with a knee.
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="6" fill="#1f5fbf"/>'
    '<path d="M5 25h11c4 0 5-4 9-18" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round"/>'
    '<circle cx="19" cy="23" r="3.5" fill="#f2a33c"/></svg>'
)
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_CURVES = 3  # charts of a run on a target's page: requests/s, TTFT and TPOT
_HERE = Path(__file__).parent


def build_pages(monitor: Monitor) -> ASGIApp:
    """Return the ASGI app for a monitor."""
    assets, overview_cache = _Assets(), overview.Overview()
    pages, api = _Pages(monitor, assets, overview_cache), WebApi(monitor, overview_cache)
    probe, operations = OnDemand(monitor), Operations(monitor)
    app = Starlette(
        routes=[
            Route("/", pages.status),
            Route("/targets/{name:path}", pages.target),
            Route("/runs/{id}", pages.run),
            Route("/assets/{file}", assets.answer),
            Route("/metrics", operations.metrics),
            Route("/config", operations.config),
            Route("/probe", probe.answer, methods=["GET"]),
            Route("/api/v1/targets", api.targets),
            Route("/api/v1/targets/{name:path}", api.target),
            Route("/api/v1/runs", api.runs),
            Route("/api/v1/runs/{id}", api.run),
            Route("/api/v1/openapi.json", api.openapi),
            Route("/-/healthy", operations.healthy),
            Route("/-/healthy/{name:path}", api.healthy),
            Route("/-/ready", operations.ready),
            Route("/-/reload", operations.reload, methods=["POST"]),
        ],
        exception_handlers={404: pages.missing},
    )
    # No redirects: they would change a target's name.
    app.router.redirect_slashes = False
    return with_headers(only_allowed_hosts(app, lambda: monitor.allowed_hosts))


class _Assets:
    """Styles, scripts and the icon, with content hashes in their names, so that browsers can cache them forever."""

    def __init__(self) -> None:
        live = (_HERE / "templates/live.js").read_text(encoding="utf-8")
        self._files: dict[str, tuple[str, str]] = {}
        self.icon = self._put("icon.svg", "image/svg+xml", _ICON)
        self.style = self._put("kneewatch.css", "text/css", style())
        self.live = self._put("live.js", "text/javascript", live)
        self.library = self._put("echarts.js", "text/javascript", echarts())
        self.charts = self._put("charts.js", "text/javascript", charts_script())

    def answer(self, request: Request) -> Response:
        """Return the requested file."""
        found = self._files.get(request.url.path.lstrip("/"))
        if found is None:
            return PlainTextResponse("no such file\n", status_code=404)
        kind, text = found
        headers = {"Cache-Control": _CACHE_FOREVER, "Vary": "Accept-Encoding"}
        if takes_gzip(request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            return Response(_gzipped(text), media_type=kind, headers=headers)
        return Response(text, media_type=kind, headers=headers)

    def _put(self, name: str, kind: str, text: str) -> str:
        stem, _, ending = name.partition(".")
        path = f"assets/{stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.{ending}"
        self._files[path] = (kind, text)
        return path


@cache
def _gzipped(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


class _Pages:
    def __init__(self, monitor: Monitor, assets: _Assets, overview_cache: overview.Overview) -> None:
        self._monitor = monitor
        self._assets = assets
        self._overview = overview_cache
        # Load templates now: loading them during a request would delay the timestamps of canaries.
        self._templates = _templates()

    async def status(self, request: Request) -> Response:
        # In a thread, like all slow work, so that timestamps of canaries are not delayed.
        statuses, runs = self._monitor.statuses(), self._monitor.results()[:_RUNS_OF_ALL]
        problems, alerts = self._monitor.discovery_problems(), self._monitor.firing_alerts()
        clock = self._monitor.own_clock()
        return await asyncio.to_thread(self._status, request, statuses, runs, problems, alerts, clock=clock)

    def _status(
        self,
        request: Request,
        statuses: Sequence[TargetStatus],
        runs: Sequence[CapacityResult],
        problems: Mapping[str, str],
        alerts: FiringAlerts | None,
        *,
        clock: OwnClock | None,
    ) -> Response:
        rows = self._overview.rows(statuses)
        return self._page(
            request,
            "status.html",
            live=True,
            is_overview=True,
            rows=rows,
            tally=overview.tally(rows),
            failures=newest_of_each(failures(statuses, time.time())),
            firing=alerts,
            runs=runs,
            warnings=overview.warnings_of(rows, clock),
            clock=clock,
            problems=[(name, one_line(words, _MAX_PROBLEM_CHARS)) for name, words in problems.items()],
        )

    async def target(self, request: Request) -> Response:
        name = request.path_params["name"]
        statuses = self._monitor.statuses()
        status = next((one for one in statuses if one.name == name), None)
        if status is None:
            return self._not_found(request, "No target has this name.")
        runs, alerts = self._monitor.results(status.name), self._monitor.firing_alerts()
        if alerts is not None:
            alerts = replace(alerts, alerts=[one for one in alerts.alerts if one.target == status.name])
        clock = self._monitor.own_clock()
        return await asyncio.to_thread(self._target, request, status, statuses, runs, alerts, clock=clock)

    def _target(
        self,
        request: Request,
        status: TargetStatus,
        statuses: Sequence[TargetStatus],
        runs: Sequence[CapacityResult],
        alerts: FiringAlerts | None,
        *,
        clock: OwnClock | None,
    ) -> Response:
        curve = next((run for run in runs if run.steps), None)
        data: dict[str, Any] = {"waterfall": waterfall(status.recent, status.objectives)}
        if curve is not None:
            data |= {"charts": run_data(curve)["charts"][:_CURVES]}
        row = overview.row(status)
        now_s = time.time()
        history = status.history
        generates = not status.recent or status.recent[0].spec.api.generates
        firing = len(alerts.alerts) if alerts is not None else 0
        return self._page(
            request,
            "target.html",
            live=True,
            charts=True,
            data=data,
            row=row,
            labels=exported_labels(status.labels),
            periods=periods(history, now_s) if history else [],
            budgets=budgets(history, status.objectives, now_s) if history else [],
            days=day_charts(day, status.objectives, now_s, generates=generates) if (day := status.latencies) else [],
            failures=failures([status], now_s),
            warnings=overview.warnings_of(self._overview.in_order(statuses), clock),
            clock=clock,
            firing=alerts,
            firing_words=f"{firing} alert{'s' if firing > 1 else ''} firing" if firing else "",
            curve=curve,
            runs=runs[:_MAX_RUNS],
        )

    async def run(self, request: Request) -> Response:
        run = self._monitor.result_of(request.path_params["id"])
        if run is None:
            return self._not_found(request, "No run has this id. Only the newest runs are kept.")
        if "download" in request.query_params:
            text = await asyncio.to_thread(report, run)
            # The file has its own policy; the pages' policy would block its inline scripts.
            headers = {"Content-Security-Policy": "sandbox allow-scripts", "Content-Disposition": "attachment"}
            return _html(text, headers=headers)
        target = overview.href(run.target)
        return await asyncio.to_thread(
            self._page, request, "run.html", charts=True, data=run_data(run), run=run, target=target
        )

    async def missing(self, request: Request, _: Exception) -> Response:
        if request.url.path.startswith("/api/"):
            return as_json({"error": "no such path; /api/v1/openapi.json lists all paths"}, status=404)
        return self._not_found(request, "There is no such page.")

    def _not_found(self, request: Request, what: str) -> Response:
        return self._page(request, "missing.html", status_code=404, what=what)

    def _page(
        self,
        request: Request,
        template: str,
        *,
        live: bool = False,
        charts: bool = False,
        is_overview: bool = False,
        data: object = None,
        status_code: int = 200,
        **values: object,
    ) -> Response:
        scripts = [self._assets.library, self._assets.charts] if charts else []
        text = self._templates[template].render(
            root=_root(request),
            assets=self._assets,
            scripts=[*scripts, self._assets.live] if live else scripts,
            live=live,
            is_overview=is_overview,
            now=time.time(),
            data=None if data is None else embedded(data),
            knows_no_alerts=values.get("firing") is None,
            **values,
        )
        return _html(text, status_code=status_code)


@cache
def _templates() -> Mapping[str, jinja2.Template]:
    env = environment(_HERE / "templates")
    env.filters |= {"beside": _beside, "busy": utilization, "memory": memory, "slow": overview.is_slow}
    env.filters |= {"kv_size": kv_size, "forecast_rate": forecast_rate, "corrected": correction_words}
    env.filters |= {
        "href": overview.href,
        "since": _since,
        "users_words": users_words,
        "short": short,
        "ms": short,
        "moment": lambda wall_s: moment(wall_s, time.time()),
        "left": left_words,
    }
    env.globals |= {"states": STATES, "enough": ENOUGH, "version": __version__, "echarts": ECHARTS, "notice": notice()}
    return {name: env.get_template(name) for name in _TEMPLATES}


def _root(request: Request) -> str:
    """Return the relative path to the first page, so that a proxy may serve the pages under a path."""
    # The path as sent: to a browser, an escaped slash is not a slash.
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return "../" * (path.partition(b"?")[0].count(b"/") - 1)


def _html(text: str, **more: Any) -> Response:  # noqa: ANN401 - what starlette takes
    # A lone surrogate, which a server may have sent in a name, cannot be encoded.
    return Response(text.encode("utf-8", "replace"), media_type="text/html", **more)


def _beside(forecast: CapacityResult, measured: CapacityResult | None) -> str:
    """Compare a forecast with the measurement; "" if they are not comparable."""
    return beside_measured(forecast, measured, time.time())


def _since(shown: TargetRow | CanaryStatus) -> str:
    return since_words(shown, time.time())
