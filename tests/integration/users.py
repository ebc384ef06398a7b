"""Users of a server: each sends a request, waits for its answer, thinks, and sends the next."""

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from random import Random
from typing import Self

import httpx


class Users:
    """`count` users from a thread of their own, all of them gone at the end of the block. A context manager.

    `fields`: of each request's body, over the usual ones; None leaves one out. `largest_id`: above all token ids of
    prompts. `patience_s`: how long they wait for their last answers at the end. `answered`, `output_tokens`: of their
    requests that were answered so far.
    """

    def __init__(
        self,
        base_url: str,
        count: int,
        *,
        prompt_tokens: int = 64,
        output_tokens: int = 32,
        think_s: float = 0.0,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, object] | None = None,
        largest_id: int = 30_000,
        patience_s: float = 0.0,
    ) -> None:
        self._url = f"{base_url}/v1/completions"
        self._headers, self._fields, self._largest_id = headers, fields or {}, largest_id
        self.answered = self.output_tokens = 0
        self._count, self._think_s, self._patience_s = count, think_s, patience_s
        self._prompt_tokens, self._asked_tokens = prompt_tokens, output_tokens
        self._random = Random(base_url)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started, self._leave = threading.Event(), asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _all(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        limits = httpx.Limits(max_connections=self._count)
        async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:
            users = [asyncio.create_task(self._one(client)) for _ in range(self._count)]
            await self._leave.wait()
            await asyncio.wait(users, timeout=self._patience_s)
            for user in users:
                user.cancel()
            await asyncio.gather(*users, return_exceptions=True)

    async def _one(self, client: httpx.AsyncClient) -> None:
        await asyncio.sleep(self._random.random() * self._think_s)
        while not self._leave.is_set():
            prompt = [self._random.randrange(1000, self._largest_id) for _ in range(self._prompt_tokens)]
            body: dict[str, object] = {
                "model": "mock-model",
                "prompt": prompt,
                "max_tokens": self._asked_tokens,
                "ignore_eos": True,
            }
            body = {name: value for name, value in (body | self._fields).items() if value is not None}
            with contextlib.suppress(httpx.HTTPError):  # the server may be ill: that is what the test is about
                answer = await client.post(self._url, json=body, headers=self._headers)
                if answer.is_success:
                    self.answered += 1
                    self.output_tokens += answer.json()["usage"]["completion_tokens"]
            await asyncio.sleep(max(self._think_s, 0.01))
