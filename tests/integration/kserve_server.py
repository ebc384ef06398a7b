"""KServe's model server with a model that relays to a vLLM server: `python kserve_server.py SERVER PORT`.

Runs in an environment that has kserve. KServe's own proxy model does not stream.
"""

import sys
from collections.abc import AsyncGenerator

import httpx
from fastapi import Request
from kserve import ModelServer
from kserve.protocol.rest.openai import OpenAIGenerativeModel

SERVER, PORT = sys.argv[1], int(sys.argv[2])


class Relay(OpenAIGenerativeModel):
    """The model of the server; it relays requests as they were sent, and the streams of their answers."""

    def __init__(self) -> None:
        super().__init__("mock-model")
        self._client = httpx.AsyncClient(base_url=SERVER, timeout=60, trust_env=False)

    async def create_completion(self, *, raw_request: Request, **_: object) -> AsyncGenerator[bytes, None]:
        return self._relayed("/v1/completions", await raw_request.body())

    async def create_chat_completion(self, *, raw_request: Request, **_: object) -> AsyncGenerator[bytes, None]:
        return self._relayed("/v1/chat/completions", await raw_request.body())

    async def _relayed(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        headers = {"content-type": "application/json"}
        async with self._client.stream("POST", path, content=body, headers=headers) as answer:
            async for part in answer.aiter_raw():
                yield part


if __name__ == "__main__":
    ModelServer(http_port=PORT, enable_grpc=False, workers=1).start([Relay()])
