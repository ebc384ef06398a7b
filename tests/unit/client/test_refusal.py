"""A refusal is an overload only where the answer shows a server that is up; doubt makes it a server error."""

import re
from http import HTTPStatus

import pytest

from probe.client.refusal import BROKEN, OVERLOADED, Refusal, Wording
from probe.core.request import Outcome

ENGINES = [row for row in OVERLOADED if row.also_429]
# nginx answers its limits (limit_req, limit_conn) and `return 503` alike, ingress-nginx a Service without endpoints.
NGINX = (
    "<html><head><title>503 Service Temporarily Unavailable</title></head><body><center><h1>503</h1></center></html>"
)
ENVOY = "upstream connect error or disconnect/reset before headers. "


@pytest.mark.parametrize("row", [*OVERLOADED, *BROKEN], ids=lambda row: row.said[:40])
def test_the_words_that_a_row_names_are_found(row: Wording) -> None:
    assert re.search(row.pattern, row.said, re.IGNORECASE)


@pytest.mark.parametrize("row", OVERLOADED, ids=lambda row: row.source)
def test_the_words_of_an_overload_make_any_server_error_one(row: Wording) -> None:
    for status in (500, 502, 503, 529):
        assert Refusal(status, row.said).is_overload
        assert Refusal(status, row.said).outcome is Outcome.REJECTED
    assert Refusal(200, row.said).outcome is Outcome.REJECTED  # inside a stream
    assert Refusal(400, row.said).outcome is Outcome.BAD_REQUEST


@pytest.mark.parametrize(
    "words",
    [
        "Model too busy, unable to get response in less than 60 second(s)",
        "All available GPUs are busy",
        "Server busy, please try again later",
        "too many concurrent requests",
        "too many requests in queue",
        "Maximum number of concurrent requests reached",
        "Server is at capacity, please retry",
        "max concurrency reached",
        "The server is under heavy load",
        "The model is currently overloaded. Please try again later.",
        "Waiting queue is full",
    ],
)
def test_the_same_in_other_words_is_an_overload(words: str) -> None:
    assert Refusal(503, words).is_overload


@pytest.mark.parametrize("row", BROKEN, ids=lambda row: row.source)
def test_a_broken_server_is_no_overload_whatever_else_is_said(row: Wording) -> None:
    for words in (row.said, f"Model is overloaded; {row.said}"):
        for status in (200, 429, 500, 502, 503, 529):
            refusal = Refusal(status, words, retry_after="1")
            assert not refusal.is_overload
            assert refusal.outcome is Outcome.SERVER_ERROR


def test_a_429_is_a_rate_limit_unless_the_engine_says_that_it_is_full() -> None:
    limited = Refusal(429, "Rate limit reached for key sk-1: 60 requests per minute")
    assert (limited.outcome, limited.is_overload) == (Outcome.REJECTED, False)
    assert Refusal(429, "").outcome is Outcome.REJECTED
    assert not Refusal(429, "too many concurrent requests").is_overload, "the limit of a key"
    assert all(Refusal(429, row.said).is_overload for row in ENGINES)


@pytest.mark.parametrize(
    ("status", "words", "retry_after"),
    [
        (503, NGINX, ""),
        (503, "", ""),
        (503, "Service Unavailable", ""),  # uvicorn's limit of connections, and many a dead server
        (503, NGINX, "3600"),  # maintenance
        (503, NGINX, "Fri, 27 Nov 2026 23:00:00 GMT"),
        (503, "Request failed; please retry", ""),  # vLLM: a KV transfer failed
        (503, "The model is currently scaling. Please try again later.", "5"),
        (503, "The server is temporarily unable due to maintenance downtime or capacity problems.", "30"),
        (503, "The model is overloaded or not ready yet.", ""),
        (503, ENVOY + "retried and the latest reset reason: remote connection failure", ""),
        (503, "No server is available to handle this request.", "5"),
        (502, "<html><head><title>502 Bad Gateway</title></head></html>", "1"),
        (504, "upstream request timeout", "1"),
        (500, "RuntimeError: Overloaded torch operator invoked from Python failed to match any schema", ""),
        (500, "torch.OutOfMemoryError: CUDA out of memory.", "1"),
        (500, "Internal Server Error", "1"),
        (200, "EngineDeadError", ""),
    ],
)  # fmt: skip
def test_an_answer_that_may_be_of_a_dead_server_is_a_server_error(status: int, words: str, retry_after: str) -> None:
    refusal = Refusal(status, words, retry_after)
    assert (refusal.outcome, refusal.is_overload) == (Outcome.SERVER_ERROR, False)


def test_a_server_that_wants_the_request_again_within_seconds_is_overloaded() -> None:
    assert Refusal(503, NGINX, retry_after="1").is_overload
    assert Refusal(503, "", retry_after="60").is_overload
    assert not Refusal(503, "", retry_after="61").is_overload
    assert not Refusal(500, "", retry_after="1").is_overload, "only a 503 has that meaning"


def test_529_and_the_mark_of_envoy_are_overloads() -> None:
    assert Refusal(529, "").is_overload
    assert Refusal(503, ENVOY, is_marked=True).is_overload


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("words", ["Rate limit exceeded, retry in 3 s", "Too many requests", "Request was throttled"])
def test_a_rate_limit_inside_a_stream_or_as_503_is_rejected_and_no_overload(status: int, words: str) -> None:
    refusal = Refusal(status, words)
    assert (refusal.outcome, refusal.is_overload) == (Outcome.REJECTED, False)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (HTTPStatus.UNAUTHORIZED, Outcome.UNAUTHORIZED),
        (HTTPStatus.FORBIDDEN, Outcome.UNAUTHORIZED),
        (HTTPStatus.NOT_FOUND, Outcome.NOT_FOUND),
        (HTTPStatus.BAD_REQUEST, Outcome.BAD_REQUEST),
        (HTTPStatus.FOUND, Outcome.BAD_REQUEST),
        (HTTPStatus.UNPROCESSABLE_ENTITY, Outcome.BAD_REQUEST),
        (HTTPStatus.INTERNAL_SERVER_ERROR, Outcome.SERVER_ERROR),
        (599, Outcome.SERVER_ERROR),
    ],
)
def test_other_statuses_say_what_they_are(status: int, outcome: Outcome) -> None:
    assert Refusal(status, "queue").outcome is outcome
