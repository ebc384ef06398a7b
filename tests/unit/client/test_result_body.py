"""Answers without a stream: when they came, and whether their numbers can be right."""

import asyncio
import json
from array import array
from base64 import b64encode
from typing import Any

import pytest
from hostile_server import Asked, Script, hostile, whole
from plain_records import record, spec
from test_stream_parser import GOLDEN

from probe.client.api_request import PLAIN_REQUESTS, RequestShape, body_of
from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.exchange import read_answer
from probe.client.judgement import Transcript, judge
from probe.core import latency
from probe.core.clock import SystemClock
from probe.core.objectives import Objective, Objectives, met
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, Traffic

MS = 1_000_000
CLOCK = SystemClock()
OK = (Outcome.OK, None)
RESULTS = [Api.EMBEDDINGS, Api.RERANK, Api.SCORE]


def body(name: str) -> bytes:
    return (GOLDEN / f"{name}.txt").read_text().split("-" * 40 + "\n")[1].partition("\n\n")[2].encode()


def said(data: object, api: Api = Api.EMBEDDINGS) -> Transcript:
    encoded = data if isinstance(data, bytes) else json.dumps(data).encode()
    half = len(encoded) // 2
    return read_answer([(90 * MS, 89 * MS, encoded[:half]), (100 * MS, 98 * MS, encoded[half:])], api)


def vectors(*each: object, prompt: Any = 3) -> dict[str, Any]:
    data = [{"index": i, "object": "embedding", "embedding": one} for i, one in enumerate(each)]
    return {"object": "list", "model": "tiny", "data": data, "usage": {"prompt_tokens": prompt}}


def scored(api: Api, *scores: object) -> dict[str, Any]:
    if api is Api.RERANK:
        return {"model": "tiny", "results": [{"index": i, "relevance_score": s} for i, s in enumerate(scores)]}
    return {"model": "tiny", "data": [{"index": i, "score": s} for i, s in enumerate(scores)]}


def verdict(answer: Transcript, api: Api = Api.EMBEDDINGS, shape: RequestShape = PLAIN_REQUESTS) -> tuple[Outcome, str]:
    outcome, detail = judge(spec(3, 0, api), answer, shape)
    return outcome, detail or ""


@pytest.mark.parametrize(
    ("name", "api", "results", "length"),
    [
        ("embeddings", Api.EMBEDDINGS, 1, 128),
        ("embeddings-base64", Api.EMBEDDINGS, 1, 128),
        ("score", Api.SCORE, 1, 1),
        ("rerank", Api.RERANK, 1, 1),
    ],
)
def test_what_the_real_server_answers_is_good(name: str, api: Api, results: int, length: int) -> None:
    answer = said(body(name), api)
    assert answer.numbers is not None
    assert (answer.numbers.results, answer.numbers.length, answer.numbers.corrupt) == (results, length, None)
    assert (answer.model, answer.output_tokens) == ("tiny", 0)
    assert verdict(answer, api) == (Outcome.OK, "")


def test_the_answers_end_is_its_only_event_and_has_no_token() -> None:
    answer = said(vectors([0.5, -0.5]))
    measured = record(events=answer.events, output_tokens=0, spec=spec(3, 0, Api.EMBEDDINGS), tokens=0)
    assert latency.e2e_s(measured) == pytest.approx(0.1)
    assert (latency.ttft_s(measured), latency.tpot_s(measured), list(latency.itl_s(measured))) == (None, None, [])
    assert latency.ttft_error_s(measured) == pytest.approx(0.002)
    objectives = Objectives("a", availability=0.99, e2e=Objective(0.95, 0.2))
    assert met(measured, objectives) == {"availability": True, "e2e": True, "all": True}


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        ([0.0, 0.0, 0], "the vector is all zeros"),
        ([], "the vector is empty"),
        ([0.5, None], "the vector holds NaN"),
        ([0.5, float("nan")], "the vector holds NaN"),
        ([0.5, float("-inf")], "the vector holds an infinite number"),
        ([0.5, "x"], "the vector holds a value that is not a number"),
        ([0.5, True], "the vector holds a value that is not a number"),
        (b64encode(array("f", [0.0, float("nan")])).decode(), "the vector holds NaN"),
    ],
)
@pytest.mark.fault(
    "TR16",
    "An embedding server answers 200 with NaN, zeros, or another number of vectors",
    area="Truth",
    users_see="canary `corrupt`",
    stays="-",
)
def test_numbers_that_cannot_be_right_are_corrupt(vector: object, words: str) -> None:
    assert verdict(said(vectors(vector))) == (Outcome.CORRUPT, words)


@pytest.mark.parametrize("api", [Api.RERANK, Api.SCORE])
def test_a_score_may_be_zero_and_not_nan(api: Api) -> None:
    assert verdict(said(scored(api, 0.0), api), api) == (Outcome.OK, "")
    assert verdict(said(scored(api, float("nan")), api), api)[0] is Outcome.CORRUPT


@pytest.mark.parametrize("api", RESULTS)
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.fault("TR16")
def test_another_number_of_results_is_corrupt(api: Api, count: int) -> None:
    answer = vectors(*[[0.5]] * count) if api is Api.EMBEDDINGS else scored(api, *[0.5] * count)
    assert verdict(said(answer, api), api) == (Outcome.CORRUPT, f"{count} results, 1 was asked for")


def test_a_vector_of_another_length_than_configured_is_corrupt() -> None:
    expected = RequestShape(vector_length=3)
    assert verdict(said(vectors([1, 2, 3])), shape=expected) == (Outcome.OK, "")
    outcome, words = verdict(said(vectors([1, 2])), shape=expected)
    assert (outcome, words) == (Outcome.CORRUPT, "the vector has 2 numbers, request.vector_length is 3")


def test_a_prompt_of_another_length_is_wrong_unless_it_was_text() -> None:
    answer = said(vectors([0.5], prompt=4))
    assert verdict(answer) == (Outcome.WRONG_ANSWER, "the server counted 4 prompt tokens of 3")
    assert verdict(answer, shape=RequestShape(is_text=True)) == (Outcome.OK, "")


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"no", b"[]", b"{}", b'{"data":{}}', b'{"data":[1]}', b'{"data":[{}]}', b'{"data":[{"embedding":5}]}',
        b'{"data":[{"embedding":"%%%%"}]}', b'{"data":[{"embedding":"AAA="}]}', b"[" * 5000, b'{"a":' + b"1," * 60_000,
        b"\xff\xfe",
    ],
)  # fmt: skip
def test_what_is_no_result_breaks_the_answer(answer: bytes) -> None:
    outcome, words = verdict(said(answer))
    assert outcome is Outcome.BROKEN_STREAM
    assert words.startswith("the answer is not a result of embeddings: ")
    assert words.isprintable()
    assert len(words) < 300


def test_an_error_in_an_answer_of_200_is_the_servers() -> None:
    outcome, words = verdict(said({"error": {"message": "engine\ndied"}}))
    assert (outcome, words) == (Outcome.SERVER_ERROR, "error in the answer: engine died")


# --- Over a connection ---------------------------------------------------------------------------------------


def asked_of(script: Any, what: RequestSpec, shape: RequestShape = PLAIN_REQUESTS) -> RequestRecord:
    async def main() -> RequestRecord:
        async with hostile(script) as server:
            where = Endpoint("a", server.base_url, verify=False, shape=shape)
            async with Client(where, CLOCK, 2.0) as to:
                return await to.send(what, "tiny", Traffic.CANARY, CLOCK.monotonic_ns())

    return asyncio.run(main())


def test_a_request_for_a_vector_has_the_ids_and_gets_a_record() -> None:
    asked: list[dict[str, Any]] = []

    def answer(one: Asked) -> Script:
        asked.append(one.json())
        return [whole(200, vectors([0.5, 0.25]))]

    found = asked_of(answer, spec(3, 0, Api.EMBEDDINGS))
    assert asked == [{"model": "tiny", "input": [1000, 1001, 1002]}]
    assert (found.outcome, found.detail) == (Outcome.OK, None)
    assert (found.prompt_tokens, found.output_tokens, len(found.events)) == (3, 0, 1)
    assert 0 < (latency.e2e_s(found) or 0) < 2


def test_a_long_vector_is_read_and_a_longer_answer_than_any_is_cut_off() -> None:
    found = asked_of(lambda _: [whole(200, vectors([0.12345678901234567] * 16_384))], spec(3, 0, Api.EMBEDDINGS))
    assert found.outcome is Outcome.OK
    found = asked_of(lambda _: [whole(200, vectors([0.12345678901234567] * 80_000))], spec(3, 0, Api.EMBEDDINGS))
    assert found.outcome is Outcome.BROKEN_STREAM
    assert found.detail == "the answer was cut off: more than 1 MiB"


@pytest.mark.parametrize(
    ("api", "sent"),
    [
        (Api.RERANK, {"query": "a", "documents": ["b c d"]}),
        (Api.SCORE, {"text_1": "a", "text_2": ["b c d"]}),
        (Api.EMBEDDINGS, {"input": "a b c d"}),
    ],
)
def test_a_pair_is_a_query_and_a_document(api: Api, sent: dict[str, Any]) -> None:
    asked = RequestSpec("w", api, "a b c d", 4, 0)
    assert body_of(asked, "tiny", RequestShape({"dimensions": 8})) == {"model": "tiny", "dimensions": 8, **sent}
    one = body_of(RequestSpec("w", Api.SCORE, "a", 1, 0), "tiny", PLAIN_REQUESTS)
    assert one == {"model": "tiny", "text_1": "a", "text_2": ["a"]}
