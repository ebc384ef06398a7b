"""The cost of one `kneewatch run` that watches a fleet, and whether it is ever late.

    python benchmarks/fleet.py [--targets 200] [--minutes 5] [--out FILE]

Two processes beside this one: 200 mock servers (one process, an address each; a metrics page as a real vLLM 0.32
writes it), and `kneewatch run`, which scrapes each every 15 s and sends it a canary every 30 s, by default with
forecasts. Prometheus is played by a scrape of /metrics every 15 s. CPU and memory of the monitor are read from /proc
(of the processes that compute forecasts too), lateness from its own series. Exits 1 where a limit is missed.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from probe import __version__
from probe.mock_server.profiles import PROFILES
from probe.mock_server.server import build_app

CORES, MEMORY_MIB, LATE_S, PAGE_S = 0.5, 300.0, 1.0, 0.5
SCRAPE_S = 15.0
_TICKS = 100.0  # of a second, in /proc


def serve(count: int, port: int) -> None:
    """Serve `count` mock servers in this process, at /t0 and so on."""
    profile = PROFILES["tiny"]
    apps = [Mount(f"/t{i}", build_app(profile, model=f"model-{i}", seed=i)) for i in range(count)]
    uvicorn.run(Starlette(routes=apps), host="127.0.0.1", port=port, log_level="error", access_log=False)


def config(targets: int, base_url: str, port: int) -> str:
    """Return the monitor's configuration, as YAML (JSON is)."""
    return json.dumps(
        {
            "listen": f"127.0.0.1:{port}",
            "workloads": {"default": {"prompt_tokens": 256, "output_tokens": 128}},
            "targets": [
                {"name": f"t{i}", "base_url": f"{base_url}/t{i}", "scrape": "15s", "canary": {"every": "30s"}}
                for i in range(targets)
            ],
        }
    )


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def children_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / _TICKS


def memory_mib(pid: int, field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return round(int(found[1]) / 1024, 1)


def get(url: str) -> tuple[str, float]:
    """Return a page, and how long it took."""
    began = time.perf_counter()
    request = urllib.request.Request(url, headers={"accept": "application/openmetrics-text"})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return answer.read().decode(), time.perf_counter() - began


def histogram(page: str, name: str, labels: str = "") -> Mapping[str, float]:
    """Return cumulative counts by bound, over all series with these labels."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith(f"{name}_bucket{{") and labels in line:
            bound, count = re.search(r'le="([^"]+)"} (\S+)', line).groups()  # type: ignore[union-attr]
            found[bound] = found.get(bound, 0.0) + float(count)
    return found


def lateness(before: str, after: str, name: str, labels: str = "") -> dict[str, object]:
    """Return the number of samples, the bound of all of them, and the bound of all but a thousandth."""
    then, now = histogram(before, name, labels), histogram(after, name, labels)
    grown = {bound: count - then.get(bound, 0.0) for bound, count in now.items()}
    total = grown.get("+Inf", 0.0)
    bounds = sorted(grown, key=float)

    def below(share: float) -> str:
        return next((bound for bound in bounds if total and grown[bound] >= share * total), "none")

    return {"count": total, "all_below_s": below(1.0), "p999_below_s": below(0.999), "median_below_s": below(0.5)}


def measure(minutes: float, url: str, pid: int) -> dict[str, object]:
    """Measure for the given time, after a minute of warming up."""
    time.sleep(60)
    before, _ = get(f"{url}/metrics")
    began, cpu, of_children = time.monotonic(), cpu_s(pid), children_s(pid)
    pages: list[tuple[float, int, int]] = []
    while time.monotonic() < began + 60 * minutes:
        page, took = get(f"{url}/metrics")
        pages.append((took, len(page), page.count("\n")))
        time.sleep(SCRAPE_S)
    after, _ = get(f"{url}/metrics")
    seconds = time.monotonic() - began
    status, status_s = get(url)
    return {
        "seconds": round(seconds, 1),
        "cores": round((cpu_s(pid) - cpu) / seconds, 3),
        "cores_of_forecasts": round((children_s(pid) - of_children) / seconds, 3),
        "memory_mib": memory_mib(pid, "VmRSS"),
        "memory_peak_mib": memory_mib(pid, "VmHWM"),
        "page_s": {"median": sorted(took for took, _, _ in pages)[len(pages) // 2], "max": max(p[0] for p in pages)},
        "page_bytes": pages[-1][1],
        "page_lines": pages[-1][2],
        "status_page_s": round(status_s, 3),
        "status_page_bytes": len(status),
        "lateness": {
            task: lateness(before, after, "kneewatch_task_lateness_seconds", f'task="{task}"')
            for task in ("canary", "scrape", "forecast")
        },
        "canary_schedule_lag": lateness(before, after, "kneewatch_schedule_lag_seconds"),
        "event_loop_lag": lateness(before, after, "kneewatch_event_loop_lag_seconds"),
        "outcomes": outcomes(after),
        "scrape_errors": scrape_errors(after),
    }


def scrape_errors(page: str) -> float:
    name = "kneewatch_server_scrape_errors_total{"
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


def outcomes(page: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith("kneewatch_requests_total{"):
            outcome, count = re.search(r'outcome="(\w+)"} (\S+)', line).groups()  # type: ignore[union-attr]
            found[outcome] = found.get(outcome, 0.0) + float(count)
    return {outcome: count for outcome, count in found.items() if count}


def missed(found: Mapping[str, object]) -> list[str]:
    """Return the limits that were exceeded."""
    late = [task for task, limits in found["lateness"].items() if float(limits["all_below_s"]) > LATE_S]  # type: ignore[attr-defined]
    page = found["page_s"]["max"]  # type: ignore[index]
    said = {
        f"{found['cores']} cores, more than {CORES}": found["cores"] > CORES,  # type: ignore[operator]
        f"{found['memory_peak_mib']} MiB, more than {MEMORY_MIB:g}": found["memory_peak_mib"] > MEMORY_MIB,  # type: ignore[operator]
        f"{', '.join(late)} late by more than {LATE_S:g} s": bool(late),
        f"/metrics took {page:.2f} s, more than {PAGE_S:g}": page > PAGE_S,
    }
    return [words for words, is_so in said.items() if is_so]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--port", type=int, default=18_700)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.targets, options.port)
        return 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        file = directory / "fleet.yml"
        file.write_text(config(options.targets, f"http://127.0.0.1:{options.port}", options.port + 1))
        servers = subprocess.Popen(
            [sys.executable, __file__, "--serve", "--targets", str(options.targets), "--port", str(options.port)]
        )
        monitor = subprocess.Popen(
            [sys.executable, "-m", "probe", "run", "-c", str(file)], stdout=(directory / "log").open("w")
        )
        try:
            found = measure(options.minutes, f"http://127.0.0.1:{options.port + 1}", monitor.pid)
        finally:
            for process in (monitor, servers):
                process.terminate()
            for process in (monitor, servers):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python " + " ".join(sys.argv),
        "kneewatch": __version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "targets": options.targets,
        **found,
    }
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    problems = missed(found)
    print("\n".join(problems) or "every limit was kept")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
