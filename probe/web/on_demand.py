"""/probe: send one request to a target now, and return metrics of that request only.

It follows Prometheus' multi-target exporters: `probe_success`, `probe_duration_seconds`, and more. Only monitored
targets can be probed, no address is taken from the query, and the rate is limited: a reader of the pages must not be
able to load the servers.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from exporters.registry import MetricsPage
from exporters.rendered_samples import wants_openmetrics
from probe.core import latency
from probe.core import objectives as slo
from probe.core.errors import TargetError
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.core.target_status import TargetStatus
from probe.core.text import one_line
from probe.web.monitor_protocol import Monitor

# Per target: this many at once, then one per EVERY_S. A Prometheus that probes four times a minute stays within it.
BURST = 6
EVERY_S = 5.0
AT_ONCE = 8  # for all targets together
_MARGIN_S = 0.5  # before the scrape's timeout, so that the answer arrives in time
_MAX_TIMEOUT_S = 55.0  # the web server ends a connection after a minute (serve.py)
_MAX_REASON_CHARS = 300


class RateLimiter:
    """A token bucket per target."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def wait_s(self, name: str) -> float:
        """Return 0 and count a request if it may be sent now; else return the seconds to wait."""
        now = self._clock()
        # Drop full buckets, so that removed targets are forgotten.
        self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        full_at = self._full_at.get(name, now)
        wait = full_at - now - (BURST - 1) * EVERY_S
        if wait > 0:
            return wait
        self._full_at[name] = full_at + EVERY_S
        return 0.0


class OnDemand:
    """Handler of /probe."""

    def __init__(self, monitor: Monitor, limiter: RateLimiter | None = None) -> None:
        self._monitor = monitor
        self._limiter = limiter or RateLimiter()
        self._running = 0

    async def answer(self, request: Request) -> Response:
        """Send the request and return its metrics."""
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
        """Return the target of a request. Raises _RefusedError if it may not be probed."""
        if is_cross_site(request):
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
        """Return the record of the request, or None if it took too long."""
        self._running += 1
        try:
            async with asyncio.timeout(_timeout_s(request)):
                record = await self._monitor.on_demand(target, request.query_params.get("workload"))
        except TargetError as error:
            raise _RefusedError(409, str(error)) from None
        except KeyError:
            self._check_is_there(target)
            raise _RefusedError(404, "no workload has this name; /config shows them") from None
        except TimeoutError:
            return None
        finally:
            self._running -= 1
        if not record.is_up:  # removing a target closes its connections, which is not a failure of the server
            self._check_is_there(target)
        return record

    def _check_is_there(self, target: str) -> None:
        if self._status(target) is None:
            raise _RefusedError(404, "the target was removed during the request") from None


class _RefusedError(Exception):
    """The request is refused; nothing is sent."""

    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.headers = headers


def exposition(
    record: RequestRecord | None, objectives: Objectives, seconds: float, accept: str = ""
) -> tuple[bytes, str]:
    """Return the metrics of one request, in the format that `accept` asks for.

    `record` None: there was no answer within `seconds`.
    """
    registry = CollectorRegistry()

    def gauge(name: str, words: str, value: float | None) -> None:
        if value is not None:
            Gauge(name, words, registry=registry).set(value)

    success = record is not None and bool(record.is_up)
    gauge("probe_success", "1 if the target answered correctly", float(success))
    gauge("probe_duration_seconds", "How long the probe took", seconds)
    outcome = Gauge("probe_outcome_info", "Outcome of the probe", ["outcome", "model", "workload"], registry=registry)
    if record is None:
        outcome.labels("timeout", "", "").set(1)
    else:
        outcome.labels(record.outcome.value, record.model, record.spec.workload).set(1)
        _record_metrics(record, objectives, gauge, registry)
    page, kind = MetricsPage(registry).render(accept)
    given_up = f"given up after {seconds:.1f} s, the time limit of this probe; a longer scrape_timeout raises it"
    reason = given_up if record is None else record.detail
    if reason and not wants_openmetrics(accept):  # OpenMetrics has no comments
        page += f"# reason: {one_line(reason, _MAX_REASON_CHARS)}\n".encode("utf-8", "replace")
    return page, kind


def _record_metrics(
    record: RequestRecord,
    objectives: Objectives,
    gauge: Callable[[str, str, float | None], None],
    registry: CollectorRegistry,
) -> None:
    gauge("probe_http_status_code", "HTTP status of the answer", record.http_status)
    gauge("probe_ttft_seconds", "Time to the first token, from when the request was due", latency.ttft_s(record))
    visible_s, reasoned_s = latency.first_visible_s(record), latency.first_answer_s(record)
    gauge("probe_first_visible_seconds", "Time to the first token with text, after tokens without", visible_s)
    gauge("probe_first_answer_seconds", "Time to the first token after reasoning", reasoned_s)
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


def is_cross_site(request: Request) -> bool:
    """Return whether a browser marks a request as cross-site: such a page can send requests that it may not read.

    Browsers send Sec-Fetch-Site only over https and to localhost, Origin with each POST, and Referer mostly.
    """
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = request.headers.get("origin") or request.headers.get("referer")
    return origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()


def _timeout_s(request: Request) -> float:
    """Return how long to wait: Prometheus' scrape timeout less a margin for the answer."""
    try:
        asked = float(request.headers.get("x-prometheus-scrape-timeout-seconds", ""))
    except ValueError:
        return _MAX_TIMEOUT_S
    return min(max(asked - _MARGIN_S, asked / 2), _MAX_TIMEOUT_S) if asked > 0 else _MAX_TIMEOUT_S
