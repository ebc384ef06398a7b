"""The mock server over loopback: what a client, a scrape and an operator see."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest
from sim_running import MockServer, running
from sim_transcripts import exchange

from probe.mock_server.driver import Faults
from probe.mock_server.profiles import PROFILES
from probe.mock_server.request_parser import text_tokens
from probe.mock_server.server import serve
from probe.simulator.cost import FrontEnd, Jitter, Profile, StepCost

# A step lasts 20 ms: time enough to look at a request that runs, and 900 tokens would take 18 s.
SLOW = replace(PROFILES["tiny"], cost=StepCost(0.02, 0, 0), max_num_seqs=2, jitter=Jitter())
FAST = replace(PROFILES["tiny"], cost=StepCost(0.0002, 0, 0))
SHORT: dict[str, Any] = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}
LONG = SHORT | {"prompt": [1] * 100, "max_tokens": 900}


@pytest.fixture(scope="module")
def slow() -> Iterator[MockServer]:
    with running(SLOW) as server:
        yield server


@pytest.fixture(scope="module")
def fast() -> Iterator[MockServer]:
    with running(FAST) as server:
        yield server


def _until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def _post(server: MockServer, body: dict[str, Any]) -> socket.socket:
    """Return a connection with a request in flight."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    connection.sendall(_bytes(body))
    return connection


def _bytes(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks_and_is_in_no_counter(slow: MockServer, *, stream: bool) -> None:
    before = slow.samples()["vllm:generation_tokens_total"]
    finished = slow.samples()["vllm:request_success_total"]
    with _post(slow, LONG | {"stream": stream}):
        _until(lambda: slow.samples()["vllm:generation_tokens_total"] > before + 1, "no token came")
        seen = slow.samples()
        assert seen["vllm:num_requests_running"] == 1
        assert seen["vllm:kv_cache_usage_perc"] > 0
    _until(lambda: slow.samples()["vllm:num_requests_running"] == 0, "the request still runs")
    seen = slow.samples()
    assert seen["vllm:kv_cache_usage_perc"] == 0
    assert seen["vllm:request_success_total"] == finished
    assert seen["vllm:generation_tokens_total"] < before + 900


@pytest.mark.slow
def test_a_client_that_leaves_the_queue_is_gone_from_it(slow: MockServer) -> None:
    with _post(slow, LONG), _post(slow, LONG):
        _until(lambda: slow.samples()["vllm:num_requests_running"] == 2, "two do not run")
        with _post(slow, LONG):
            _until(lambda: slow.samples()["vllm:num_requests_waiting"] == 1, "the third does not wait")
        _until(lambda: slow.samples()["vllm:num_requests_waiting"] == 0, "the third still waits")
        assert slow.samples()["vllm:num_requests_running"] == 2
    _until(lambda: slow.samples()["vllm:num_requests_running"] == 0, "the others still run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_num_queued_reqs": 1}, "The engine is currently busy and cannot accept new requests."),
        ({"max_num_queued_tokens": 100}, "The engine has reached its prefill token backlog limit."),
    ],
)
def test_a_full_queue_refuses_as_vllm_does(limit: dict[str, int], words: str) -> None:
    """Its body as vLLM 0.32 with these flags; it sends no Retry-After."""
    (name,) = limit
    with running(replace(SLOW, **limit)) as server:  # type: ignore[arg-type]
        server.breaks(Faults(is_stalled=True))  # so that the first request stays in prefill
        with _post(server, LONG):
            _until(lambda: server.samples()["vllm:num_requests_running"] == 1, "the first does not run")
            refused = server.post("/v1/completions", SHORT, status=503)
        assert refused == {
            "error": {
                "message": f"{words} Please try again later or on a different instance.",
                "type": "Service Unavailable",
                "param": None,
                "code": 503,
            }
        }
        counted = server.get("/metrics")
        assert f'vllm:admission_rejections_total{{model_name="tiny",reason="{name}"}} 1.0' in counted


def test_a_connection_serves_one_request_after_the_other(fast: MockServer) -> None:
    connection = HTTPConnection("127.0.0.1", fast.port, timeout=5)
    for _ in range(3):
        connection.request(
            "POST", "/v1/completions", json.dumps(SHORT | {"stream": True}), {"content-type": "application/json"}
        )
        events = connection.getresponse().read().decode().split("\n\n")
        assert len(events) == 4 + 1 + 1
        assert events[-2:] == ["data: [DONE]", ""]
    connection.close()


def test_the_server_counts_what_the_client_got(fast: MockServer) -> None:
    before = fast.samples()
    answer = fast.post("/v1/completions", SHORT | {"max_tokens": 17})
    after = fast.samples()
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 17, 20)
    for name, change in (
        ("vllm:generation_tokens_total", 17),
        ("vllm:prompt_tokens_total", 3),
        ("vllm:request_success_total", 1),
        ("vllm:time_to_first_token_seconds_count", 1),
        ("vllm:inter_token_latency_seconds_count", 16),
    ):
        assert after[name] - before[name] == change, name


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_an_answer_has_exactly_max_tokens_with_and_without_ignore_eos(fast: MockServer, *, ignore_eos: bool) -> None:
    answer = fast.post("/v1/completions", SHORT | {"max_tokens": 33, "ignore_eos": ignore_eos})
    assert answer["usage"]["completion_tokens"] == 33
    assert len(answer["choices"][0]["text"].split()) == 33
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream_says_the_words_of_the_whole_answer(fast: MockServer) -> None:
    with _post(fast, SHORT | {"stream": True, "max_tokens": 25}) as connection:
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(65536)
    events = [json.loads(line[6:]) for line in received.decode().splitlines() if line.startswith("data: {")]
    words = "".join(event["choices"][0]["text"] for event in events)
    assert len(events) == len(words.split()) == 25
    assert len({event["id"] for event in events}) == 1


def test_only_the_question_with_a_known_answer_is_answered(fast: MockServer) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    answer = fast.post("/v1/chat/completions", asked)["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == (" Paris", "stop")
    ignoring = fast.post("/v1/chat/completions", asked | {"ignore_eos": True, "max_tokens": 9})
    assert ignoring["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize(
    ("prompt", "tokens"), [("", 0), ("abcd", 1), ("abcde", 2), ("\u00e9\u00e9\u00e9", 2), ("a" * 400, 100)]
)
def test_text_is_a_token_for_every_four_bytes(prompt: str, tokens: int) -> None:
    assert text_tokens(prompt) == tokens


@pytest.mark.parametrize("prompt", ["x" * 40, ["x" * 40], [7] * 10, [[7] * 10]])
def test_a_prompt_may_be_text_or_ids_alone_or_in_a_list(fast: MockServer, prompt: object) -> None:
    assert fast.post("/v1/completions", SHORT | {"prompt": prompt})["usage"]["prompt_tokens"] == 10


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"prompt": [[1], [2]]}, "one prompt"),
        ({"prompt": ["a", "b"]}, "one prompt"),
        ({"n": 2}, "n must be 1"),
        ({"prompt": [[]]}, "at least one prompt"),
        ({"prompt": [[1], "a"]}, "valid"),
        ({"prompt": {"a": 1}}, "valid"),
        ({"stream_options": 3}, "valid"),
        ({"max_tokens": None, "prompt": [5] * 1024}, "at least 1"),
    ],
)
def test_an_unsupported_request_is_refused_with_the_reason(fast: MockServer, change: dict[str, Any], word: str) -> None:
    body = fast.post("/v1/completions", SHORT | change, status=400)
    assert word in body["error"]["message"]
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("body", ["\xff", "[" * 100_000, "", "null", "3", '{"prompt": NaN}'])
def test_bytes_that_are_no_request_are_refused(fast: MockServer, body: str) -> None:
    status, answer = fast.call("POST", "/v1/completions", body.encode("latin-1"))
    assert status == 400
    assert json.loads(answer)["error"]["code"] == 400


def test_it_says_that_it_is_no_vllm(fast: MockServer) -> None:
    assert json.loads(fast.get("/version")) == {"version": "0.32.0-sim"}
    assert fast.post("/v1/completions", SHORT)["system_fingerprint"] == "vllm-0.32.0-sim"


def test_metrics_have_the_real_servers_content_type(fast: MockServer) -> None:
    answer = exchange("GET /metrics", "127.0.0.1", fast.port)
    assert "\ncontent-type: text/plain; version=1.0.0; charset=utf-8\n" in answer


def test_a_key_guards_v1_and_nothing_else() -> None:
    with running(FAST, api_key="sesame") as server:
        for header in ("accept: */*", "authorization: Bearer simsalabim", "authorization: sesame"):
            answer = exchange(f"GET /v1/models\n{header}", "127.0.0.1", server.port)
            assert answer.startswith("HTTP/1.1 401 ")
            assert answer.endswith('\n\n{"error":"Unauthorized"}')
        assert '"tiny"' in exchange("GET /v1/models\nauthorization: Bearer sesame", "127.0.0.1", server.port)
        assert server.get("/health") == ""
        assert "vllm:" in server.get("/metrics")


def test_a_stalled_engine_is_healthy_and_silent() -> None:
    with running(FAST) as server:
        server.breaks(Faults(is_stalled=True))
        with _post(server, SHORT) as connection:
            _until(lambda: server.samples()["vllm:num_requests_running"] == 1, "it does not run")
            time.sleep(0.1)
            assert server.get("/health") == ""
            assert server.samples()["vllm:generation_tokens_total"] == 0
            server.breaks(Faults())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_faults_answer_with_500_for_their_share() -> None:
    with running(FAST) as server:
        server.breaks(Faults(error_ratio=1.0))
        error = server.post("/v1/completions", SHORT, status=500)["error"]
        assert (error["type"], error["code"]) == ("InternalServerError", 500)
        assert server.get("/health") == ""
        server.breaks(Faults(error_ratio=0.0))
        assert server.post("/v1/completions", SHORT)["usage"]["completion_tokens"] == 4


def test_a_server_that_stops_ends_its_streams_with_an_error_event() -> None:
    with running(SLOW) as server:
        connection = _post(server, LONG | {"stream": True})
        _until(lambda: server.samples()["vllm:num_requests_running"] == 1, "it does not run")
    with connection:
        received = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert '"error"' in received
    assert received.endswith("data: [DONE]\n\n\r\n0\r\n\r\n")


_CHILD = """
import asyncio
from probe.mock_server.profiles import PROFILES
from probe.mock_server.server import serve
say = lambda port: print(port, flush=True)
asyncio.run(serve(PROFILES["tiny"], host="127.0.0.1", port=0, model="m", ready=say))
print("stopped", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert int(child.stdout.readline()) > 0
        child.send_signal(number)
        assert child.stdout.read() == "stopped\n"
        assert child.stderr.read() == ""
        assert child.wait(5) == 0


def test_tokens_do_not_wait_for_the_client_s_acknowledgement(fast: MockServer) -> None:
    """With Nagle's algorithm an answer on a used connection comes in two parts: its head, and 40 ms later the rest."""
    streamed = SHORT | {"max_tokens": 20, "stream": True}
    with _post(fast, streamed) as connection:

        def parts() -> int:
            end, seen = b"", 0
            while not end.endswith(b"\r\n0\r\n\r\n"):
                end, seen = end[-8:] + connection.recv(2**16), seen + 1
            return seen

        parts()
        most = 0
        for _ in range(5):
            connection.sendall(_bytes(streamed))
            most = max(most, parts())
    assert most > 2


def test_a_port_that_is_taken_is_an_error_of_the_system(fast: MockServer) -> None:
    profile: Profile = FAST
    with pytest.raises(OSError, match="in use"):
        asyncio.run(serve(profile, host="127.0.0.1", port=fast.port, model="m"))


@pytest.mark.parametrize("chat", [False, True])
def test_prompts_that_begin_alike_hit_the_prefix_cache_from_the_third_on(*, chat: bool) -> None:
    with running(replace(FAST, prefix_caching=True)) as server:
        for n in range(4):
            if chat:
                content = "x" * 4 * 96 + f"{n}" * 80
                body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
                server.post("/v1/chat/completions", body)
            else:
                server.post("/v1/completions", SHORT | {"prompt": [7] * 100 + [n] * 20})
        seen = server.samples()
        assert seen["vllm:prefix_cache_queries_total"] == seen["vllm:prompt_tokens_total"]
        assert seen["vllm:prefix_cache_hits_total"] == 2 * 96
        assert 'enable_prefix_caching="True"' in server.get("/metrics")


@pytest.mark.slow
def test_a_slow_front_end_is_seen_by_clients_and_not_by_the_servers_own_ttft() -> None:
    with running(replace(FAST, front_end=FrontEnd(per_request_s=0.2))) as server:
        began = time.monotonic()
        server.post("/v1/completions", SHORT)
        assert time.monotonic() - began >= 0.2
        assert server.samples()["vllm:time_to_first_token_seconds_sum"] < 0.15
