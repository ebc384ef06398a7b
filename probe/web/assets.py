"""Styles and scripts of the pages, with content hashes in their names, so that browsers can cache them forever."""

import gzip
import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from probe.charts import echarts
from probe.report.html import charts_script, style
from probe.web.headers import takes_gzip

_HERE = Path(__file__).parent
# A curve with a knee.
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="6" fill="#1f5fbf"/>'
    '<path d="M5 25h11c4 0 5-4 9-18" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round"/>'
    '<circle cx="19" cy="23" r="3.5" fill="#f2a33c"/></svg>'
)
_CACHE_FOREVER = "public, max-age=31536000, immutable"


class Assets:
    """The files by their paths, relative to the first page."""

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
