"""The OpenAPI document: a valid one, of every path there is, and what the API really answers fits it."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest
from example_fleet import fleet, run
from example_records import failing, record, result, snapshot, status, whole_snapshot
from fake_monitor import FakeMonitor
from openapi_spec_validator import validate
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from starlette.routing import Route

from probe.core.request import Outcome
from probe.core.result import CapacityResult, Correction, PriorForecast, Roofline
from probe.core.snapshot import CrossChecks, Gpu, GpuSnapshot, UserLoad
from probe.web import pages
from probe.web.api import document

pytestmark = pytest.mark.slow

URI = "urn:kneewatch"


def everything() -> FakeMonitor:
    """A target with all that there can be, one with nothing, and some in between."""
    roofline = Roofline("H100", sure=True, step_s=0.01, floor_s=0.008, decode_ratio=0.8)
    correction = Correction(6, -0.1, PriorForecast(11.0, 0.1))
    known: CapacityResult = result()
    whole = status(
        name="whole/pod-1",
        up=True,
        recent=[record(), record(outcome=Outcome.TIMEOUT)],
        **failing(record(), record(outcome=Outcome.TIMEOUT)),
        server=whole_snapshot(),
        users=UserLoad(1.0, 2.0),
        checks=CrossChecks(ttft_gap_s={"matched": 0.1}, counted={"output": 0.5}, pressure={"usage": True}),
        gpus=GpuSnapshot(0, 1.0, "nvml", (Gpu({"gpu": "0"}, {"DCGM_FI_DEV_GPU_UTIL": 5.0}),)),
        gpu_error="gone",
        capacity=known,
        measured=known,
        forecast=_with(known, roofline=roofline, learnt_from=(1.0, 2.0), mode="forecast", correction=correction),
        for_users=_with(known, mode="forecast"),
        capacity_state="running",
        discovery="whole",
        labels={"app.kubernetes.io/name": "qwen", "\ud800": "\udfff"},
    )
    odd = status(name="odd", server=snapshot(running=float("nan"), waiting=None), server_error="x")
    return FakeMonitor([whole, status(name="empty"), odd, *fleet(20, recent=3)], [run(), known])


def _with(known: CapacityResult, **changes: Any) -> CapacityResult:
    return replace(known, capacity=replace(known.capacity, **changes))


def _get(path: str, method: str = "GET", host: str = "monitor") -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(pages.build_pages(everything()))
        async with httpx.AsyncClient(transport=transport, base_url="http://monitor") as client:
            return await client.request(method, path, headers={"host": host})

    return asyncio.run(ask())


@pytest.mark.slow
def test_it_is_a_valid_document_and_what_is_served() -> None:
    served = _get("/api/v1/openapi.json").json()
    assert served == json.loads(json.dumps(document()))
    validate(served)


def test_every_path_that_is_no_page_is_in_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Route] = []

    class Seen(pages.Starlette):
        def __init__(self, *, routes: list[Route], **more: Any) -> None:
            seen.extend(routes)
            super().__init__(routes=routes, **more)

    monkeypatch.setattr(pages, "Starlette", Seen)
    pages.build_pages(FakeMonitor())
    of_people = {"/", "/targets/{name:path}", "/runs/{id}", "/assets/{file}"}
    served = {
        route.path.replace(":path", ""): {method.lower() for method in route.methods or ()} - {"head"}
        for route in seen
        if route.path not in of_people
    }
    assert served == {path: set(operations) for path, operations in document()["paths"].items()}


@pytest.mark.parametrize(
    ("path", "operation", "code"),
    [
        ("/api/v1/targets", "/api/v1/targets", 200),
        ("/api/v1/targets/whole/pod-1", "/api/v1/targets/{name}", 200),
        ("/api/v1/targets/empty", "/api/v1/targets/{name}", 200),
        ("/api/v1/targets/odd", "/api/v1/targets/{name}", 200),
        ("/api/v1/targets/nope", "/api/v1/targets/{name}", 404),
        ("/api/v1/runs", "/api/v1/runs", 200),
        ("/api/v1/runs?target=a", "/api/v1/runs", 200),
        ("/api/v1/runs/20260921T141320-abcdef", "/api/v1/runs/{id}", 200),
        ("/api/v1/runs/nope", "/api/v1/runs/{id}", 404),
        ("/api/v1/openapi.json", "/api/v1/openapi.json", 200),
    ],
)
def test_responses_match_the_openapi_document(path: str, operation: str, code: int) -> None:
    answer = _get(path)
    assert answer.status_code == code
    content = document()["paths"][operation]["get"]["responses"][str(code)]["content"]
    schema = content[answer.headers["content-type"]]["schema"]
    _validator(schema).validate(json.loads(answer.text, parse_constant=pytest.fail))


@pytest.mark.parametrize(
    ("path", "operation", "method", "code"),
    [
        ("/probe?target=empty", "/probe", "GET", 200),
        ("/probe", "/probe", "GET", 400),
        ("/probe?target=nope", "/probe", "GET", 404),
        ("/metrics", "/metrics", "GET", 200),
        ("/config", "/config", "GET", 200),
        ("/-/healthy", "/-/healthy", "GET", 200),
        ("/-/healthy/whole/pod-1", "/-/healthy/{name}", "GET", 200),
        ("/-/healthy/empty", "/-/healthy/{name}", "GET", 503),
        ("/-/healthy/nope", "/-/healthy/{name}", "GET", 404),
        ("/-/ready", "/-/ready", "GET", 200),
        ("/-/reload", "/-/reload", "POST", 200),
    ],
)
def test_texts_are_documented_as_texts(path: str, operation: str, method: str, code: int) -> None:
    answer = _get(path, method)
    assert answer.status_code == code
    content = document()["paths"][operation][method.lower()]["responses"][str(code)]["content"]
    assert answer.headers["content-type"].partition(";")[0] in content


@pytest.mark.slow
def test_who_calls_by_another_name_gets_what_is_documented_for_it() -> None:
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            answer = _get(path.format(name="empty", id="x"), method, host="evil.test")
            assert ("421" in operation["responses"]) == (answer.status_code == 421), path
            assert str(answer.status_code) in operation["responses"], path


def test_the_schemas_refuse_what_is_not_answered() -> None:
    whole = _get("/api/v1/targets/whole/pod-1").json()
    validator = _validator({"$ref": "#/components/schemas/TargetJson"})
    validator.validate(whole)
    for wrong in ({**whole, "more": 1}, {**whole, "up": "yes"}, {k: v for k, v in whole.items() if k != "state"}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


def _validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    registry: Registry[Any] = Registry().with_resource(URI, Resource(document(), DRAFT202012))
    absolute = json.loads(json.dumps(schema).replace('"#/', f'"{URI}#/'))
    return jsonschema.Draft202012Validator(absolute, registry=registry)
