"""A Ray Serve ingress before a vLLM server: `python ray_serve_app.py SERVER PORT METRICS_PORT`.

Runs in an environment that has ray[serve]. It relays the API, and exports vLLM's series through Ray's metrics with the
names that vLLM's `RayPrometheusStatLogger` gives them.
"""

import sys
import time
from collections.abc import AsyncIterator

import httpx
import ray
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from ray.util import metrics

SERVER, PORT, METRICS_PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LABELS = {"model_name": "mock-model", "engine": "0"}
SECONDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0]
app = FastAPI()


@serve.deployment(num_replicas=1, max_ongoing_requests=1000)
@serve.ingress(app)
class Ingress:
    def __init__(self) -> None:
        keys = (*LABELS, "ReplicaId")
        labels = {**LABELS, "ReplicaId": serve.get_replica_context().replica_id.unique_id}
        self._client = httpx.AsyncClient(base_url=SERVER, timeout=60, trust_env=False)
        self._count = 0
        self._running = metrics.Gauge("vllm_num_requests_running", tag_keys=keys)
        self._waiting = metrics.Gauge("vllm_num_requests_waiting", tag_keys=keys)
        self._output = metrics.Counter("vllm_generation_tokens", tag_keys=keys)
        self._prompt = metrics.Counter("vllm_prompt_tokens", tag_keys=keys)
        self._ttft = metrics.Histogram("vllm_time_to_first_token_seconds", boundaries=SECONDS, tag_keys=keys)
        self._itl = metrics.Histogram("vllm_inter_token_latency_seconds", boundaries=SECONDS, tag_keys=keys)
        self._all = (self._running, self._waiting, self._output, self._prompt, self._ttft, self._itl)
        for each in self._all:
            each.set_default_tags(labels)
        self._running.set(0)
        self._waiting.set(0)

    @app.get("/v1/models")
    async def models(self) -> JSONResponse:
        return JSONResponse((await self._client.get("/v1/models")).json())

    @app.post("/v1/completions")
    async def completions(self, request: Request) -> StreamingResponse:
        body = await request.body()
        return StreamingResponse(self._relayed(body), media_type="text/event-stream")

    async def _relayed(self, body: bytes) -> AsyncIterator[bytes]:
        self._count += 1
        self._running.set(self._count)
        self._prompt.inc(64)
        before, is_first = time.monotonic(), True
        try:
            async with self._client.stream(
                "POST", "/v1/completions", content=body, headers={"content-type": "application/json"}
            ) as answer:
                async for part in answer.aiter_raw():
                    now = time.monotonic()
                    (self._ttft if is_first else self._itl).observe(now - before)
                    before, is_first = now, False
                    self._output.inc(1)
                    yield part
        finally:
            self._count -= 1
            self._running.set(self._count)


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, _metrics_export_port=METRICS_PORT, _node_ip_address="127.0.0.1")
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(Ingress.bind())
    while True:
        time.sleep(1)
