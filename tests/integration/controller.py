"""A controller in a process of its own, to be killed: `python controller.py BASE_URL CONCURRENCY`."""

import asyncio
import sys

from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.request import Api
from probe.core.step import StepPlan
from probe.core.workload import Workload
from probe.load.request_source import RequestSource
from probe.load.worker_pool import WorkerPool


async def main(base_url: str, concurrency: int) -> None:
    source = RequestSource(Endpoint("a", base_url), "tiny", Workload("w", Api.COMPLETIONS, 16, 400), limits=60.0)
    async with WorkerPool(source, 2, SystemClock()) as workers:
        print(*(worker.process.pid for worker in workers._workers), flush=True)  # noqa: T201
        await workers.run(StepPlan(concurrency, 60.0), asyncio.Event(), lambda _: None)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
