"""The check of a server before load, by its state and its firing alerts. Scheduled runs check more (admission.py)."""

from collections.abc import Awaitable, Callable
from functools import partial

from probe.config.config import Config
from probe.core import reasons
from probe.core.errors import TargetError
from probe.core.snapshot import ServerSnapshot
from probe.observe.guard import GO, GuardVerdict, denied, may_start
from probe.observe.guard_limits import GuardLimits


async def preflight(
    read_server: Callable[[], Awaitable[ServerSnapshot]],
    limits: GuardLimits,
    firing_pages: Callable[[], Awaitable[list[str]]] | None = None,
    *,
    by_stream: bool = False,
) -> tuple[GuardVerdict, ServerSnapshot | None]:
    """Check the server once. Return whether load may begin, and the server's state. Raises nothing.

    `by_stream`: the run is guarded by its own answers, so metrics that cannot be read refuse nothing.
    """
    server: ServerSnapshot | None = None
    try:
        server = await read_server()
        verdict = may_start(server, limits)
    except TargetError as error:
        verdict = denied(reasons.NO_SERVER_METRICS, str(error))
    if by_stream and verdict.reason == reasons.NO_SERVER_METRICS.word:
        verdict = GO
    try:
        if verdict.allows_load and firing_pages is not None and (firing := await firing_pages()):
            verdict = denied(reasons.ALERT_FIRING, f"{', '.join(firing)} fires for the target")
    except TargetError as error:
        verdict = denied(reasons.NO_PROMETHEUS, str(error))
    return verdict, server


def firing_pages(config: Config, target: str) -> Callable[[], Awaitable[list[str]]] | None:
    """Return a function that lists a target's firing paging alerts; None where no Prometheus is configured."""
    if config.prometheus is None:
        return None
    from probe.prometheus.queries import Prometheus  # noqa: PLC0415 - memory that only this option needs

    prometheus = Prometheus(config.prometheus.url, config.prometheus.ca_file)
    return partial(prometheus.firing_pages, target)
