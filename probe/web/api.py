"""The JSON API of the monitor, and its OpenAPI document with schemas of the types in api_types.py."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from probe import __version__
from probe.charts import json_text
from probe.core.result import CapacityResult
from probe.core.target_status import TargetStatus
from probe.report.result_json import dumps
from probe.web import overview
from probe.web.api_types import ErrorJson, TargetJson, target_json
from probe.web.hosts import ANY_HOST_PATHS
from probe.web.monitor_protocol import Monitor
from probe.web.state import STATES, UNHEALTHY

_TARGET = TypeAdapter(TargetJson)
_TARGETS = TypeAdapter(list[TargetJson])
Json = dict[str, Any]
_REFS = "#/components/schemas/"
_TYPES: tuple[TypeAdapter[Any], ...] = (
    TypeAdapter(TargetJson),
    TypeAdapter(CapacityResult),
    TypeAdapter(ErrorJson),
)
_TEXT = {"text/plain": {"schema": {"type": "string"}}}


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

    async def healthy(self, request: Request) -> Response:
        """Return 200 while the target answers, otherwise 503: also while that is not known."""
        name = request.path_params["name"]
        status = next((one for one in self._monitor.statuses() if one.name == name), None)
        if status is None:
            return PlainTextResponse("no target has this name; /api/v1/targets lists them\n", 404)
        found = await asyncio.to_thread(overview.row, status)
        is_old = status.up is None and bool(status.recent) and not status.passive
        if is_old or found.state in UNHEALTHY:
            return PlainTextResponse("no canary lately\n" if is_old else f"{STATES[found.state]}\n", 503)
        return PlainTextResponse(f"{STATES[found.state]}\n")

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
    return Response(json_text(content), status_code=status, media_type="application/json")


def _typed_response(shape: TypeAdapter[Any], content: object) -> Response:
    """Return a JSON response of this type; NaN and infinity (from a broken server) become null."""
    try:
        return Response(shape.dump_json(content), media_type="application/json")
    except PydanticSerializationError:  # lone surrogates, which a server may have sent, are not UTF-8
        return as_json(shape.dump_python(content, mode="json"))


def _summary(result: CapacityResult) -> dict[str, Any]:
    """Return a run with the number of its steps instead of the steps."""
    whole = json.loads(dumps(result))
    return {key: value for key, value in whole.items() if key != "steps"} | {"steps": len(result.steps)}


@cache
def document() -> Json:
    """Return the document. It is shared: do not change it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Kneewatch",
            "version": __version__,
            "summary": "State of the monitored targets, capacity runs, on-demand probes and reload.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # Relative to the document, so that it is correct behind a proxy's path too.
        "servers": [{"url": "../../"}],
        "paths": {path: _with_refusals(path, operations) for path, operations in _paths().items()},
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        # No password, or basic authentication, as the web configuration file decides.
        "security": [{}, {"basic": []}],
    }


def _paths() -> Json:
    target = _parameter(
        "name", "path", "A target's name. The name of a discovered target has a slash; do not escape it."
    )
    run = _parameter("id", "path", "A run's id, as /api/v1/runs gives it.")
    only = _parameter("target", "query", "Return only the runs of this target.", required=False)
    missing = {"404": _json("There is no target or run with this name or id.", _ref("ErrorJson"))}
    return {
        "/api/v1/targets": _get("targets", "All targets, in the configuration's order", {
            "200": _json("The targets.", {"type": "array", "items": _ref("TargetJson")})}),
        "/api/v1/targets/{name}": _get("target", "One target", {
            "200": _json("The target.", _ref("TargetJson")), **missing}, [target]),
        "/api/v1/runs": _get("runs", "The newest capacity runs, without their steps, newest first", {
            "200": _json("At most 20 runs.", {"type": "array", "items": _ref("RunSummary")})}, [only]),
        "/api/v1/runs/{id}": _get("run", "One capacity run with its steps", {
            "200": _json("The run.", _ref("CapacityResult")), **missing}, [run]),
        "/api/v1/openapi.json": _get("openapi", "This document", {
            "200": _json("OpenAPI 3.1.", {"type": "object"})}),
        "/probe": _get("probe", "Send one request to a target and return its metrics", {
            "200": _text("Prometheus text format: probe_success and more, also if the request failed."),
            "400": _text("The parameter target is missing."),
            "403": _text("The target is passive, or the request is cross-site."),
            "404": _text("There is no target or workload with this name."),
            "429": _text("Too many probes; Retry-After says when to retry.")},
            [_parameter("target", "query", "The target's name."),
             _parameter("workload", "query", "A configured workload. Default: the canary's.", required=False)]),
        "/metrics": _get("metrics", "All metrics", {"200": _text("Prometheus text format, or OpenMetrics.")}),
        "/config": _get("config", "The effective configuration, secrets hidden", {"200": _text("YAML.")}),
        "/-/healthy": _get("healthy", "Whether the process answers", {"200": _text("Yes.")}),
        "/-/healthy/{name}": _get("targetHealthy", "Whether a target answers its canaries, and users", {
            "200": _text("Yes; slow, over its limit and passive are in the text."),
            "404": _text("There is no target with this name."),
            "503": _text("No: failing or asleep; or unknown: starting.")}, [target]),
        "/-/ready": _get("ready", "Whether Kneewatch is monitoring", {
            "200": _text("Yes."), "503": _text("Starting or stopping.")}),
        "/-/reload": {"post": _operation("reload", "Reload the configuration", {
            "200": _text("Reloaded."),
            "403": _text("The request is cross-site."),
            "500": _text("Refused, with the reason; the previous configuration stays in use.")})},
    }  # fmt: skip


def _get(name: str, words: str, answers: Mapping[str, Json], parameters: list[Json] | None = None) -> Json:
    return {"get": _operation(name, words, answers, parameters)}


def _operation(name: str, words: str, answers: Mapping[str, Json], parameters: list[Json] | None = None) -> Json:
    found: Json = {"operationId": name, "summary": words, "responses": dict(answers)}
    return found | ({"parameters": parameters} if parameters else {})


def _with_refusals(path: str, operations: Json) -> Json:
    """Return the operations with the responses that refuse access."""
    refusals = {
        "401": _text("User and password required."),
        "429": _text("Too many requests or password checks; Retry-After says when to retry."),
    }
    if path not in ANY_HOST_PATHS:
        refusals["421"] = _text("The Host header is not an allowed name.")
    return {
        method: {**operation, "responses": {**refusals, **operation["responses"]}}
        for method, operation in operations.items()
    }


def _parameter(name: str, where: str, words: str, *, required: bool = True) -> Json:
    return {"name": name, "in": where, "description": words, "required": required, "schema": {"type": "string"}}


def _json(words: str, schema: Json) -> Json:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _text(words: str) -> Json:
    return {"description": words, "content": _TEXT}


def _ref(name: str) -> Json:
    return {"$ref": f"{_REFS}{name}"}


def _schemas() -> Json:
    asked = [(str(i), "serialization", one) for i, one in enumerate(_TYPES)]
    _, whole = TypeAdapter.json_schemas(asked, ref_template=f"{_REFS}{{model}}")  # type: ignore[arg-type]
    found: Json = whole["$defs"]
    for schema in found.values():
        if "properties" in schema:
            # Answers always have every key; missing values are null.
            schema |= {"required": list(schema["properties"]), "additionalProperties": False}
    summary = deepcopy(found["CapacityResult"])
    summary |= {"title": "RunSummary", "description": "A capacity run in a list: `steps` is their number."}
    summary["properties"]["steps"] = {"title": "Steps", "type": "integer"}
    return {**found, "RunSummary": summary}
