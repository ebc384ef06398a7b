"""What `kneewatch sim` stages beside the server: users of its own, and a stall that comes and goes.

Users' requests arrive at random and do not wait for each other. They go through the same routes as requests over HTTP,
so the server's page shows them like any others.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

import httpx
from starlette.applications import Starlette

from probe.mock_server.driver import HEALTHY, Driver, Faults
from probe.mock_server.request_parser import VOCABULARY

# Users' tokens, from the fewest to the most: 128 + 64 on average.
PROMPT_TOKENS = (64, 192)
OUTPUT_TOKENS = (32, 96)
_PATIENCE_S = 30.0  # then a user leaves


@dataclass(frozen=True, slots=True)
class Staging:
    """What is on. Times are seconds: `stall_after_s` from the start, `recover_after_s` from the stall."""

    users_rps: float = 0.0
    faults: Faults = HEALTHY
    stall_after_s: float | None = None
    recover_after_s: float | None = None

    @property
    def words(self) -> str:
        """Say what is on; "" for a healthy server without users."""
        parts = []
        if self.users_rps:
            parts.append(f"users send {self.users_rps:g} requests/s (128 + 64 tokens on average)")
        if self.faults.error_ratio:
            parts.append(f"{100 * self.faults.error_ratio:g} % of the requests get HTTP 500")
        if self.faults.extra_step_s:
            parts.append(f"each token takes {1e3 * self.faults.extra_step_s:g} ms longer")
        if self.stall_after_s is not None:
            end = f", for {self.recover_after_s:g} s" if self.recover_after_s is not None else ", for good"
            parts.append(f"requests hang after {self.stall_after_s:g} s{end}")
        return "; ".join(parts)

    async def run(self, app: Starlette, model: str, seed: int) -> None:
        """Stage it all until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.users_rps:
                group.create_task(_users(app, self.users_rps, model, Random(seed)))
            if self.stall_after_s is not None:
                group.create_task(_stall(app.state.driver, self.stall_after_s, self.recover_after_s))


NOTHING = Staging()


async def _stall(driver: Driver, after_s: float, recover_after_s: float | None) -> None:
    await asyncio.sleep(after_s)
    driver.faults = replace(driver.faults, is_stalled=True)
    if recover_after_s is not None:
        await asyncio.sleep(recover_after_s)
        driver.faults = replace(driver.faults, is_stalled=False)


async def _users(app: Starlette, rps: float, model: str, random: Random) -> None:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    async with httpx.AsyncClient(transport=transport, base_url="http://users") as client, asyncio.TaskGroup() as group:
        while True:
            due_s += random.expovariate(rps)
            await asyncio.sleep(due_s - loop.time())
            prompt = random.choices(range(VOCABULARY), k=random.randint(*PROMPT_TOKENS))
            body = {"model": model, "prompt": prompt, "max_tokens": random.randint(*OUTPUT_TOKENS), "stream": True}
            group.create_task(_ask(client, body))


async def _ask(client: httpx.AsyncClient, body: dict[str, object]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            await client.post("/v1/completions", json=body)
