"""What a server answers that does not have the API it was asked for."""

import asyncio

from probe.client.client import Client
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import Api, Outcome, Traffic
from probe.core.workload import Workload, requests
from probe.monitor.wiring import endpoint

_PROMPT_TOKENS = 16
_COUNTED_WITHIN_S = 1.0  # the server counts the request about when it answers; who watches next must not see it come


class OtherApiError(TargetError):
    """A server that has another API than the one it was asked for: `api`."""

    def __init__(self, url: str, asked: Api, api: Api) -> None:
        super().__init__(
            f"{url}: has no API for {asked.value}, and answers {api.value}; use --api {api.value} (in a configuration:"
            f" a workload with api: {api.value}, and objectives with e2e alone)",
            Outcome.NOT_FOUND,
        )
        self.api = api


async def serves_embeddings(target: TargetConfig, model: str, clock: Clock) -> bool:
    """Ask for one short embedding, where what was asked for was not found. Return whether there was one."""
    one = next(requests(Workload("embedding", Api.EMBEDDINGS, _PROMPT_TOKENS, 0)))
    async with Client(endpoint(target), clock, target.canary.timeout) as client:
        has_answered = (await client.send(one, model, Traffic.ONDEMAND, clock.monotonic_ns())).outcome is Outcome.OK
    if has_answered:
        await asyncio.sleep(_COUNTED_WITHIN_S)
    return has_answered
