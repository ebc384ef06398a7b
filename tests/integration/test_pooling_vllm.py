"""Embeddings, scores and rankings of the real vLLM with a pooling model; and how true our E2E of each API is."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from kneewatch_command import kneewatch, measured
from real_vllm import MODEL, RealVllm

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core import latency
from probe.core.clock import SystemClock
from probe.core.request import Api, Outcome, RequestRecord, Traffic
from probe.core.workload import Workload, requests

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.alone]

LIMITS = ("--max-model-len=1024", "--max-num-seqs=16", "--max-num-batched-tokens=1024")
REQUESTS = 12
_E2E = "vllm:e2e_request_latency_seconds"


class PoolingVllm(RealVllm):
    """The real vLLM with the tiny model as an embedding model."""

    def generates(self) -> bool:
        try:
            answer = httpx.post(
                f"{self.base_url}/v1/embeddings", json={"model": MODEL, "input": [5]}, timeout=20, trust_env=False
            )
        except httpx.HTTPError:
            return False
        return answer.is_success


@pytest.fixture(scope="module")
def pooling(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolingVllm]:
    flags = (*LIMITS, "--runner=pooling", "--convert=embed")
    server = PoolingVllm(vllm_python, tmp_path_factory.mktemp("pooling"), flags)
    server.start()
    yield server
    server.stop()


async def _sent(url: str, api: Api, output_tokens: int) -> list[RequestRecord]:
    clock, specs = SystemClock(), requests(Workload("w", api, 64, output_tokens))
    async with Client(Endpoint("vllm", url), clock, 60.0) as client:
        return [await client.send(next(specs), MODEL, Traffic.ONDEMAND, clock.monotonic_ns()) for _ in range(REQUESTS)]


def _beside_the_servers(server: RealVllm, api: Api, output_tokens: int) -> tuple[float, float]:
    """Send requests. Return how long they took in sum, by our stamps and by the server's own histogram."""
    before = server.settled_metrics()
    records = asyncio.run(_sent(server.base_url, api, output_tokens))
    after = server.settled_metrics()
    assert {(r.outcome, r.detail) for r in records} == {(Outcome.OK, None)}
    assert after[f"{_E2E}_count"] - before[f"{_E2E}_count"] == REQUESTS
    counted = after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"]
    assert counted == sum(r.prompt_tokens for r in records)
    made = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert made == sum(r.output_tokens for r in records)
    return sum(latency.e2e_s(r) or 0.0 for r in records), after[f"{_E2E}_sum"] - before[f"{_E2E}_sum"]


@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_the_end_of_a_stream_is_when_the_server_says(vllm: RealVllm, api: Api) -> None:
    """Outside the server's histogram are HTTP, the chat template and tokenizing: some ms of each request."""
    ours, theirs = _beside_the_servers(vllm, api, 64)
    assert 0.97 < ours / theirs < 1.3


def test_the_end_of_an_embedding_is_when_the_server_says(pooling: PoolingVllm) -> None:
    ours, theirs = _beside_the_servers(pooling, Api.EMBEDDINGS, 0)
    assert theirs < ours < 3 * theirs + REQUESTS * 0.02  # a request of some ms: HTTP is a large part of it


@pytest.mark.parametrize("api", ["embeddings", "rerank", "score"])
def test_a_canary_gets_its_numbers(pooling: PoolingVllm, api: str) -> None:
    done = measured("check", "--base-url", pooling.base_url, "--api", api, "--json")
    (answer,) = json.loads(done.out)
    assert answer["outcome"] == "ok", answer
    assert (answer["ttft_s"], answer["tpot_s"], answer["output_tokens"]) == (None, None, 0)
    assert answer["e2e_s"] > 0
    assert answer["prompt_tokens"] == 256 if api == "embeddings" else 200 < answer["prompt_tokens"] < 600


def test_another_vector_length_than_configured_is_corrupt(pooling: PoolingVllm, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    target = {"name": "e", "base_url": pooling.base_url, "objectives": "v", "canary": {"workload": "v"}}
    config = {
        "objectives": {"v": {"availability": 0.9}},
        "workloads": {"v": {"api": "embeddings", "prompt_tokens": 16}},
    }
    for length, status in ((128, 0), (129, 1)):
        file.write_text(json.dumps({**config, "targets": [{**target, "request": {"vector_length": length}}]}))
        done = kneewatch("check", "-c", file)
        assert done.status == status, done.out + done.err
    assert "corrupt: the vector has 128 numbers, request.vector_length is 129" in done.out


def test_doctor_finds_the_embedding_model(pooling: PoolingVllm) -> None:
    done = measured("doctor", "--base-url", pooling.base_url, "--seconds", "15", "--fail-on", "never")
    assert done.status == 0, done.out + done.err
    assert "API:        embeddings: it generates no text" in done.out


def test_fixed_rates_of_embeddings(pooling: PoolingVllm, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = kneewatch(
        *("ramp", "--base-url", pooling.base_url, "--api", "embeddings", "--prompt-tokens", "64", "--e2e", "20s"),
        *("--rates", "4,8", "--requests-per-step", "24", "--confirm-seconds", "0", "--json", file),
        within_s=600,
    )
    result = json.loads(file.read_text())
    assert done.status == 0, done.out + done.err
    assert result["cost"]["tokens"] == 64 * result["cost"]["requests"]
    assert [step["requests"]["failed"] for step in result["steps"]] == [0, 0]
