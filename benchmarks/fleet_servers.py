"""The servers of benchmarks/fleet.py: mock servers, whose metrics pages show what simulated users have asked for.

The users are in virtual time, which is brought up to now when a page is read: they cost next to nothing.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from benchmarks.capacity.cases import Case
from benchmarks.capacity.cold import true_rps
from benchmarks.capacity.timed_cases import timed_case
from benchmarks.capacity.truth_file import read
from benchmarks.timed.cases import CASES
from probe.core.snapshot import ServerSnapshot
from probe.mock_server.server import build_app
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

LOADS = 0.2, 0.8  # of the capacity


@dataclass(frozen=True, slots=True)
class Server:
    """One server of the fleet, and what its users send."""

    case: Case
    rate_rps: float


def fleet(count: int) -> list[Server]:
    """Return the servers: all cases in turn, with loads spread evenly."""
    known, names, low, high = read(), list(CASES), *LOADS
    truths = {name: true_rps(name, known)[0] for name in names}
    return [
        Server(timed_case(name), truths[name] * (low + (high - low) * (i * 0.618 % 1.0)))
        for i, name in enumerate(islice(cycle(names), count))
    ]


# Names of vLLM's page, and where a simulated server's snapshot has the value.
_COUNTED: Mapping[str, Callable[[ServerSnapshot], float | None]] = {
    "vllm:num_requests_running": lambda seen: seen.running,
    "vllm:num_requests_waiting": lambda seen: seen.waiting,
    "vllm:kv_cache_usage_perc": lambda seen: seen.kv_cache_usage,
    "vllm:num_preemptions_total": lambda seen: seen.preemptions,
    "vllm:prompt_tokens_total": lambda seen: seen.prompt_tokens,
    "vllm:generation_tokens_total": lambda seen: seen.generation_tokens,
}
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "ttft",
    "vllm:inter_token_latency_seconds": "itl",
    "vllm:request_time_per_output_token_seconds": "tpot",
    "vllm:e2e_request_latency_seconds": "e2e",
    "vllm:request_queue_time_seconds": "queue",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:iteration_tokens_total": "iteration_tokens",
    "vllm:request_prompt_tokens": "prompt_length",
    "vllm:request_generation_tokens": "output_length",
}


def with_users(page: str, seen: ServerSnapshot) -> str:
    """Return a mock server's page with what the users of a simulated server have added to it."""
    added = {name: float(value(seen) or 0.0) for name, value in _COUNTED.items()}
    for name, field in _HISTOGRAMS.items():
        one = seen.histograms[field]
        added |= {f"{name}_count": one.count, f"{name}_sum": one.sum}
        added |= {f"{name}_bucket {'+Inf' if bound == float('inf') else bound}": count for bound, count in one.buckets}
    added["vllm:request_success_total length"] = seen.finished["length"]
    return "".join(_line(line, added) for line in page.splitlines(keepends=True))


def _line(line: str, added: Mapping[str, float]) -> str:
    name, _, rest = line.partition("{")
    if not rest:
        return line
    labels, _, value = rest.rpartition(" ")
    key = re.search(r'(?:le|finished_reason)="([^"]+)"', labels)
    more = added.get(f"{name} {key[1]}" if key is not None else name)
    return line if more is None else f"{name}{{{labels} {float(value) + more}\n"


def server_app(server: Server, seed: int) -> Starlette:
    """Return a mock server whose metrics page shows users."""
    case, began_s = server.case, time.monotonic()
    mock = build_app(case.profile, model=f"model-{seed}", seed=seed)
    users = BackgroundTraffic(server.rate_rps, case.workload)
    simulated = VirtualServer(case.profile, seed=seed, users=users)
    simulated.advance(60.0)  # they have been there for a while
    of_mock = next(route for route in mock.routes if isinstance(route, Route) and route.path == "/metrics").endpoint

    async def metrics(request: Request) -> Response:
        plain = await of_mock(request)
        simulated.advance(60.0 + time.monotonic() - began_s)
        simulated.ended_requests.clear()
        page = with_users(bytes(plain.body).decode(), simulated.snapshot())
        return Response(page, headers={"content-type": plain.headers["content-type"]})

    return Starlette(routes=[Route("/metrics", metrics), Mount("/", mock)])


def serve(count: int, port: int, *, has_users: bool) -> None:
    """Serve the fleet in this process, at /t0 and so on."""
    apps = []
    for i, server in enumerate(fleet(count)):
        app = server_app(server, i) if has_users else build_app(server.case.profile, model=f"model-{i}", seed=i)
        apps.append(Mount(f"/t{i}", app))
    uvicorn.run(Starlette(routes=apps), host="127.0.0.1", port=port, log_level="error", access_log=False)
