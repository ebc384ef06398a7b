"""The questions about every server's past, asked of what answers unlike a Prometheus that has it all."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest
from threaded_server import Request, threaded_server

from probe.config.prometheus import PrometheusConfig
from probe.core.errors import TargetError
from probe.core.objectives import Objective, Objectives
from probe.observe.server_past import ServerPast
from probe.prometheus.past import PastReader
from probe.prometheus.queries import Prometheus

CHAT = Objectives("chat", ttft=Objective(0.95, 0.5))
Answer = tuple[int, Mapping[str, object]]


def _vector(*labels: Mapping[str, str], **more: object) -> Answer:
    result = [{"metric": dict(one), "value": [4e7, "1"]} for one in labels]
    return 200, {"status": "success", "data": {"resultType": "vector", "result": result}, **more}


def _matrix() -> Answer:
    return 200, {"status": "success", "data": {"resultType": "matrix", "result": []}}


def _server(pod: str = "a", name: str = "vllm:num_requests_running") -> dict[str, str]:
    return {"__name__": name, "pod": pod, "job": "vllm", "engine": "0", "model_name": "m"}


@contextmanager
def _answering(answer: Callable[[str, str], Answer]) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    def reply(request: Request, _: bytes) -> None:
        parts = urlsplit(request.path)
        query = parse_qs(parts.query)["query"][0]
        asked.append(query)
        status, body = answer(parts.path.rsplit("/", 1)[1], query)
        request.answer(status, json.dumps(body).encode(), "application/json")

    with threaded_server(reply) as url:
        yield url, asked


def _read(url: str, matchers: str = "") -> list[ServerPast]:
    reader = PastReader(Prometheus(PrometheusConfig(url=url)), url, 4e7, 3600.0, matchers)
    return asyncio.run(reader.read(CHAT))


def test_every_question_has_exact_names_and_fits_a_line() -> None:
    """Google's Managed Prometheus takes exact names alone. Only the first question is for all spellings of them."""
    with _answering(lambda kind, _: _vector(_server()) if kind == "query" else _matrix()) as (url, asked):
        (one,) = _read(url, 'namespace="chat"')
    assert one.labels == {"pod": "a", "job": "vllm", "model_name": "m"}
    assert all("__name__" not in query and len(query) < 6000 for query in asked)
    assert all("ray_vllm_" not in query for query in asked[1:]), "this Prometheus has vLLM's own names"
    of_servers = [query for query in asked if "DCGM" not in query]
    assert len(of_servers) > 25
    assert all('namespace="chat"' in query for query in of_servers)


@pytest.mark.fault(
    "PR136",
    "A Prometheus that answers in part, or refuses some of many questions for their size",
    area="Prometheus",
    users_see="one line of it: exit status 2",
    stays="no verdict from half of the data",
)
@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        ("query", _vector(_server(), warnings=["store b does not answer"]), "the answer is partial: "),
        (
            "query_range",
            (422, {"status": "error", "errorType": "execution", "error": "query would load too many samples"}),
            "Prometheus refuses the question (HTTP 422: query would load too many samples); ask for a shorter time",
        ),
        ("query", _vector(*(_server(f"p-{i}") for i in range(501))), "501 servers of vLLM, at most 500; choose some"),
    ],
    ids=["partial", "too many samples", "too many servers"],
)
def test_a_part_of_it_is_no_verdict(kind: str, answer: Answer, words: str) -> None:
    whole = {"query": _vector(_server()), "query_range": _matrix(), kind: answer}
    with _answering(lambda asked, _: whole[asked]) as (url, _), pytest.raises(TargetError) as raised:
        _read(url)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_gpus_that_cannot_be_asked_for_do_not_cost_the_rest() -> None:
    def answer(kind: str, query: str) -> Answer:
        if "DCGM" in query:
            return 422, {"status": "error", "error": "too many series"}
        return _vector(_server()) if kind == "query" else _matrix()

    with _answering(answer) as (url, _):
        reader = PastReader(Prometheus(PrometheusConfig(url=url)), url, 4e7, 3600.0)
        assert len(asyncio.run(reader.read(CHAT))) == 1
    assert "too many series" in (reader.gpu_error or "")
