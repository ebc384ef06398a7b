"""/probe: one request to a configured target, now, as a page of metrics of that request alone.

As the multi-target exporters of Prometheus do it: `probe_success`, `probe_duration_seconds`, and what else was seen.
Only targets that are watched can be asked, no address is taken from the query, and no more than a few requests in a
while: whoever may read the pages may not load the servers.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from exporters.exposition_format import wants_openmetrics
from exporters.metrics_page import MetricsPage
from probe.core import latency
from probe.core import objectives as slo
from probe.core.objectives import Objectives
from probe.core.request import UP, RequestRecord
from probe.core.target_status import TargetStatus
from probe.core.text import one_line
from probe.web.monitor_protocol import Monitor

# Of each target: so many at once, then one in so many seconds. A Prometheus that asks four times a minute is answered.
BURST, EVERY_S = 6, 5.0
AT_ONCE = 8  # of all targets together
_MARGIN_S = 0.5  # before the scrape's own end, so that its answer arrives
_LONGEST_S = 120.0
_SAID = 300


class RateLimiter:
    """A bucket a target: filled with time, emptied by requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def wait_s(self, name: str) -> float:
        """0 where a request may be sent now, which is then counted; else for how long not."""
        now = self._clock()
        # Kept is only who is not full: a name that went away is forgotten.
        self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        full_at = self._full_at.get(name, now)
        wait = full_at - now - (BURST - 1) * EVERY_S
        if wait > 0:
            return wait
        self._full_at[name] = full_at + EVERY_S
        return 0.0


class OnDemand:
    """The page."""

    def __init__(self, monitor: Monitor, limiter: RateLimiter | None = None) -> None:
        self._monitor = monitor
        self._limiter = limiter or RateLimiter()
        self._running = 0

    async def answer(self, request: Request) -> Response:
        """Sends the request, and says what came of it."""
        try:
            status = self._target(request)
            started = time.monotonic()
            record = await self._send(request, status.name)
        except _RefusedError as refused:
            return PlainTextResponse(f"{refused}\n", status_code=refused.status, headers=refused.headers)
        accept = request.headers.get("accept", "")
        page, kind = exposition(record, status.objectives, time.monotonic() - started, accept)
        return Response(page, headers={"content-type": kind})

    def _target(self, request: Request) -> TargetStatus:
        """Whom to ask, if one may."""
        if from_elsewhere(request):
            raise _RefusedError(403, "cross-site request refused; only Kneewatch's own pages may send this")
        target = request.query_params.get("target")
        if not target:
            raise _RefusedError(400, "target is missing: /probe?target=NAME, with a name that /api/v1/targets lists")
        if (status := self._status(target)) is None:
            raise _RefusedError(404, "no target has this name; /api/v1/targets lists them")
        if status.passive:
            raise _RefusedError(403, "the target is passive: it gets no requests")
        wait_s = self._limiter.wait_s(target) if self._running < AT_ONCE else 1.0
        if wait_s > 0:
            words = f"too many on-demand probes; each target gets at most one in {EVERY_S:g} s"
            raise _RefusedError(429, words, {"Retry-After": str(int(wait_s) + 1)})
        return status

    def _status(self, target: str) -> TargetStatus | None:
        return next((one for one in self._monitor.statuses() if one.name == target), None)

    async def _send(self, request: Request, target: str) -> RequestRecord | None:
        """What became of the request; None: it was given up."""
        self._running += 1
        try:
            async with asyncio.timeout(_patience_s(request)):
                record = await self._monitor.on_demand(target, request.query_params.get("workload"))
        except KeyError:
            self._check_is_there(target)
            raise _RefusedError(404, "no workload has this name; /config shows them") from None
        except TimeoutError:
            return None
        finally:
            self._running -= 1
        if record.outcome not in UP:  # its connections were closed with it, and that is no failure of the server's
            self._check_is_there(target)
        return record

    def _check_is_there(self, target: str) -> None:
        if self._status(target) is None:
            raise _RefusedError(404, "the target was removed during the request") from None


class _RefusedError(Exception):
    """Nothing is sent."""

    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.headers = headers


def exposition(
    record: RequestRecord | None, objectives: Objectives, seconds: float, accept: str = ""
) -> tuple[bytes, str]:
    """What was seen of one request, in the format that `accept` asks for; None: it was given up after `seconds`."""
    registry = CollectorRegistry()

    def gauge(name: str, words: str, value: float | None) -> None:
        if value is not None:
            Gauge(name, words, registry=registry).set(value)

    success = record is not None and record.outcome in UP
    gauge("probe_success", "1 if the target answered correctly", float(success))
    gauge("probe_duration_seconds", "How long the probe took", seconds)
    outcome = Gauge("probe_outcome_info", "Outcome of the probe", ["outcome", "model", "workload"], registry=registry)
    if record is None:
        outcome.labels("timeout", "", "").set(1)
    else:
        outcome.labels(record.outcome.value, record.model, record.spec.workload).set(1)
        _seen(record, objectives, gauge, registry)
    page, kind = MetricsPage(registry).render(accept)
    reason = f"given up after {seconds:.1f} s" if record is None else record.detail
    if reason and not wants_openmetrics(accept):  # which knows no comments
        page += f"# reason: {one_line(reason, _SAID)}\n".encode("utf-8", "replace")
    return page, kind


def _seen(
    record: RequestRecord,
    objectives: Objectives,
    gauge: Callable[[str, str, float | None], None],
    registry: CollectorRegistry,
) -> None:
    gauge("probe_http_status_code", "HTTP status of the answer", record.http_status)
    gauge("probe_ttft_seconds", "Time to the first token, from when the request was due", latency.ttft_s(record))
    gauge("probe_tpot_seconds", "Mean time per output token after the first", latency.tpot_s(record))
    gauge("probe_e2e_seconds", "Time to the last token, from when the request was due", latency.e2e_s(record))
    gauge("probe_itl_max_seconds", "Longest gap between two token events", latency.stall_s(record))
    gauge("probe_schedule_lag_seconds", "How late Kneewatch sent the request", latency.schedule_lag_s(record))
    tokens = Gauge("probe_tokens", "Tokens of the request, as counted by the server", ["kind"], registry=registry)
    tokens.labels("prompt").set(record.prompt_tokens)
    tokens.labels("output").set(record.output_tokens)
    met = Gauge("probe_objective_met", "Whether the request met the objective", ["objective"], registry=registry)
    for objective, good in slo.met(record, objectives).items():
        met.labels(objective).set(good)


def from_elsewhere(request: Request) -> bool:
    """Whether a browser says that another site's page asks: it could send requests of ours that it may not read.

    Sec-Fetch-Site comes with https and from this machine alone; Origin with each POST, and Referer mostly.
    """
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    said = request.headers.get("origin") or request.headers.get("referer")
    return said is not None and urlsplit(said).netloc.lower() != request.headers.get("host", "").lower()


def _patience_s(request: Request) -> float:
    """As long as Prometheus waits, less what the answer needs."""
    try:
        asked = float(request.headers.get("x-prometheus-scrape-timeout-seconds", ""))
    except ValueError:
        return _LONGEST_S
    return min(max(asked - _MARGIN_S, asked / 2), _LONGEST_S) if asked > 0 else _LONGEST_S
