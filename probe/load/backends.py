"""Where a run's workers are started, as configured: on this machine, or on a Ray cluster."""

from probe.config.load import LoadConfig
from probe.core.clock import Clock
from probe.load.ray_backend import RayBackend
from probe.load.request_source import RequestSource
from probe.load.worker_pool import STREAMS_PER_WORKER, WorkerPool, most_workers, workers_for


def workers_of(
    load: LoadConfig | None, source: RequestSource, streams: int, clock: Clock, asked: int | None = None
) -> WorkerPool:
    """Return workers for this number of streams, or as many as `asked` for on the command line."""
    if load is None or load.ray is None:
        return WorkerPool(source, workers_for(streams, asked), clock, most=asked or most_workers())
    count = asked or load.ray.workers or max(-(-streams // STREAMS_PER_WORKER), 1)
    return WorkerPool(source, count, clock, RayBackend(load.ray.address, load.ray.start_timeout))
