"""The demo: a mock server in its own process, and a monitor that watches it. No GPU needed."""

import asyncio
import sys
import time

from rich.console import Console
from rich.live import Live

from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core import objectives as slo
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.text import one_line
from probe.monitor.app import App
from probe.report.figures import number, percent
from probe.report.result_text import result_lines
from probe.report.steps import step_rows
from probe.report.terminal import live_summary
from probe.runtime.logs import configure_logs

_TARGET = "demo"
_MODEL = "mock-8b"
_START_S = 15.0
# Early enough that a run ends within the shortest demo, late enough for a few canaries before it.
_FIRST_RUN_S = 6.0
_LINE_S = 5.0
_PIPED_WIDTH = 100  # of what the demo prints into a pipe
# The lines of the result that a newcomer needs, in this order; `kneewatch ramp` prints all.
_FOUND = ("Incomplete", "Ended by", "Failure", "Bottleneck", "Knee", "Capacity", "Limited by")


async def run_demo(seconds: float, port: int, *, keep: bool = False) -> None:
    """Run for `seconds`: print a live summary, then the capacity run's result. Raises KneewatchError.

    `keep`: stay after that, until a signal.
    """
    configure_logs(quiet=True)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    # By the name that finds Kneewatch's packages itself: a kept program gets no path of ours.
    program = (
        sys.executable,
        "-P",
        "-m",
        "kneewatch",
        "sim",
        "--port",
        "0",
        "--profile",
        "llama-8b",
        "--model",
        _MODEL,
    )
    server = await asyncio.create_subprocess_exec(  # it ends with this process, whatever ends that
        *(sys.executable, "-P", "-m", "probe.runtime.kept_program", *program),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for this process
    )
    try:
        url = await _address(server)
        console.print(f"A mock vLLM server (simulated timings, no GPU) runs on {url}")
        await _watch(App(_config(url, port, seconds), SystemClock()), seconds, console, keep=keep)
    finally:
        if server.stdin is not None:
            server.stdin.close()
        await server.wait()


async def _address(server: asyncio.subprocess.Process) -> str:
    """Return the address from the first line that the server prints."""
    assert server.stdout is not None  # noqa: S101 - it was asked for above
    try:
        line = await asyncio.wait_for(server.stdout.readline(), _START_S)
    except TimeoutError:
        line = b""
    if b"http://" not in line:
        raise TargetError("the mock server did not start; run `kneewatch sim` to see why", Outcome.UNREACHABLE)
    return line.decode().split()[-1]


def _config(url: str, port: int, seconds: float) -> Config:
    step_s = min(max((seconds - _FIRST_RUN_S) / 12, 2.0), 6.0)
    raw = {
        "listen": f"127.0.0.1:{port}",
        "objectives": {
            "chat": {
                "availability": 0.999,
                "ttft": {"ratio": 0.95, "within": "500ms"},
                "tpot": {"ratio": 0.95, "within": "50ms"},
            }
        },
        "workloads": {
            "short-chat": {"prompt_tokens": 256, "output_tokens": 64},
            "canary": {"prompt_tokens": 128, "output_tokens": 32},
        },
        "targets": [
            {
                "name": _TARGET,
                "base_url": url,
                "scrape": "1s",
                "objectives": "chat",
                "canary": {"every": "3s", "workload": "canary"},
                "capacity": {
                    "mode": "verify",
                    "schedule": {"cron": "0 4 * * *"},
                    "workload": "short-chat",
                    "concurrency": [8, 16, 32],
                    "step": f"{step_s:.1f}s",
                    "confirm": f"{2 * step_s:.1f}s",
                },
            }
        ],
    }
    return config_from(raw, "the demo's configuration")


async def _watch(app: App, seconds: float, console: Console, *, keep: bool) -> None:
    stop = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    monitor = asyncio.create_task(app.run(stop, address.set_result))

    def ended(task: asyncio.Task[None]) -> None:
        if not address.done():
            address.set_exception(task.exception() or RuntimeError("the monitor ended before its pages were served"))

    monitor.add_done_callback(ended)
    url = await address
    try:
        console.print(f"status page  {url}/\nmetrics      {url}/metrics")
        then = "stays until Ctrl-C" if keep else f"ends after {seconds:g} s; --keep lets it stay until Ctrl-C"
        console.print(f"The nightly capacity run starts in {_FIRST_RUN_S:g} s. The demo {then}.\n")
        app.measure_capacity_in(_TARGET, _FIRST_RUN_S)
        await _show(app, seconds, console, monitor, keep=keep)
        _print_found(app, console)
        if keep and not monitor.done():
            console.print(f"The demo stays until Ctrl-C: {url}/")
            await asyncio.wait([monitor])
    finally:
        stop.set()
        await monitor


def _print_found(app: App, console: Console) -> None:
    """Print the steps of the capacity run, and at the end what it found."""
    console.print(live_summary(app.statuses(), time.time(), console.width))
    result = app.monitors[_TARGET].last_result
    if result is not None:
        console.print("The capacity run, closed loop, 256 prompt and 64 output tokens:")
        console.print(step_rows(result.steps, console.width))
        found = [(label, words) for label, words in result_lines(result) if label in _FOUND]
        for label, words in sorted(found, key=lambda line: _FOUND.index(line[0])):
            console.print(f"{f'{label}:':<13}{one_line(words)}", markup=False, soft_wrap=True)


async def _show(app: App, seconds: float, console: Console, monitor: asyncio.Task[None], *, keep: bool) -> None:
    """Redraw the summary on a terminal; print a line every few seconds elsewhere. `keep`: until there is a result."""
    loop = asyncio.get_running_loop()
    end, line_due = loop.time() + seconds, 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not monitor.done() and (loop.time() < end or (keep and app.monitors[_TARGET].last_result is None)):
            if console.is_terminal:
                live.update(live_summary(app.statuses(), time.time(), console.width), refresh=True)
            elif loop.time() >= line_due:
                line_due = loop.time() + _LINE_S
                console.print(_line(app, max(0.0, end - loop.time())))
            await asyncio.sleep(0.5)


def _line(app: App, left_s: float) -> str:
    status = app.statuses()[0]
    good = percent(slo.good_ratio(status.recent, status.objectives).get(slo.ALL))
    capacity = status.capacity.capacity.requests_per_second if status.capacity else None
    found = f", capacity {number(capacity)} req/s" if capacity else f", capacity run: {status.capacity_state or 'due'}"
    return f"{left_s:3.0f} s left: {len(status.recent)} canaries, {good} within every objective{found}"
