"""The JSON API of the monitor. Its types are in api_types.py."""

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError
from starlette.requests import Request
from starlette.responses import Response

from probe.core.result import CapacityResult
from probe.core.target_status import TargetStatus
from probe.report.result_json import dumps
from probe.web import overview
from probe.web.api_types import TargetJson, target_json
from probe.web.monitor_protocol import Monitor
from probe.web.openapi import document

_TARGET = TypeAdapter(TargetJson)
_TARGETS = TypeAdapter(list[TargetJson])


class WebApi:
    """Handlers of the API."""

    def __init__(self, monitor: Monitor, overviews: overview.Overview) -> None:
        self._monitor = monitor
        self._overview = overviews

    async def targets(self, _: Request) -> Response:
        return await asyncio.to_thread(self._targets, self._monitor.statuses())

    def _targets(self, statuses: Sequence[TargetStatus]) -> Response:
        return _typed_response(_TARGETS, [target_json(row) for row in self._overview.in_order(statuses)])

    async def target(self, request: Request) -> Response:
        name = request.path_params["name"]
        status = next((one for one in self._monitor.statuses() if one.name == name), None)
        if status is None:
            return as_json({"error": "no target has this name; /api/v1/targets lists them"}, status=404)
        return await asyncio.to_thread(lambda: _typed_response(_TARGET, target_json(overview.row(status))))

    async def runs(self, request: Request) -> Response:
        results = self._monitor.results(request.query_params.get("target"))
        return await asyncio.to_thread(lambda: as_json([_summary(result) for result in results]))

    async def run(self, request: Request) -> Response:
        result = self._monitor.result_of(request.path_params["id"])
        if result is None:
            return as_json({"error": "no run has this id; /api/v1/runs lists them"}, status=404)
        return Response(dumps(result), media_type="application/json")

    async def openapi(self, _: Request) -> Response:
        return as_json(document())


def as_json(content: object, status: int = 200) -> Response:
    """Return a JSON response in ASCII; NaN and infinity become null."""
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(content), allow_nan=False)
    return Response(text, status_code=status, media_type="application/json")


def _typed_response(shape: TypeAdapter[Any], content: object) -> Response:
    """Return a JSON response of this type; NaN and infinity (from a broken server) become null."""
    try:
        return Response(shape.dump_json(content), media_type="application/json")
    except PydanticSerializationError:  # lone surrogates, which a server may have sent, are not UTF-8
        return as_json(shape.dump_python(content, mode="json"))


def _summary(result: CapacityResult) -> dict[str, Any]:
    """Return a run for a list: without its steps, but with their number."""
    whole = json.loads(dumps(result))
    return {key: value for key, value in whole.items() if key != "steps"} | {"steps": len(result.steps)}


def _finite(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
