"""The cost of one `kneewatch run` that watches a fleet with users, and whether it is ever late.

    python -m benchmarks.fleet [--targets 200] [--minutes 7] [--interval 30m] [--no-users] [--out FILE]

Three processes beside this one. One is all servers, each at an address of its own: mock servers with the page of a
vLLM 0.32, to which the traffic of users is added that a simulation of the server has had by then. They are the ten of
benchmarks/timed/cases.py in turn, at 20 to 80 % of their capacity. `kneewatch run` scrapes each every 15 s, sends it a
canary every 30 s and makes forecasts. A Prometheus, where one is installed, scrapes that and evaluates all rules.

For the first minutes there is too little evidence for a forecast; what canaries are late by then is compared with what
they are late by afterwards. CPU and memory are read from /proc, of the processes that compute forecasts too; the rest
from /metrics. The budget of forecasts lets the age of all of them be foretold: `round_min` is how long a turn of each
target takes. Exits 1 where a limit is missed.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.fleet_servers import Server, fleet, serve
from benchmarks.timed.cases import CASES
from probe import __version__
from probe.config.config import Config

ROOT = Path(__file__).resolve().parents[1]
CORES, MEMORY_MIB, LATE_S, PAGE_S, AGE_MIN = 0.4, 300.0, 0.05, 0.5, 30.0
SCRAPE_S, CANARY_S = 15.0, 30.0
_WARM_S, _UNTIL_FORECASTS_S = 45.0, 165.0  # twelve scrapes are needed for one
_TICKS = 100.0  # of a second, in /proc
_AGE, _FORECASTS = "kneewatch_capacity_last_success_timestamp_seconds", 'mode="forecast"'
_TURN, _OF_FORECASTS = "kneewatch_task_last_success_timestamp_seconds", 'task="forecast"'
BUDGET = Config.model_fields["forecast_cores"].default


def config(servers: Sequence[Server], base_url: str, port: int, interval: str) -> str:
    """Return the monitor's configuration, as YAML (JSON is)."""
    cases = {server.case.name: server.case for server in servers}
    workloads = {
        name: {"prompt_tokens": timed.prompt_tokens, "output_tokens": timed.output_tokens}
        for name, timed in ((f"timed-{name}", timed) for name, timed in CASES.items())
        if name in cases
    }
    objectives = {
        name: {
            latency: {"ratio": promised.ratio, "within": f"{1000 * promised.within_s:g}ms"}
            for latency, promised in case.objectives.latencies().items()
        }
        for name, case in cases.items()
    }
    targets = []
    for i, server in enumerate(servers):
        name, profile = server.case.name, server.case.profile
        limits = {"max_num_seqs": profile.max_num_seqs, "max_num_batched_tokens": profile.max_num_batched_tokens}
        targets.append(
            {
                "name": f"t{i}",
                "base_url": f"{base_url}/t{i}",
                "objectives": name,
                "scrape": f"{SCRAPE_S:g}s",
                "canary": {"every": f"{CANARY_S:g}s"},
                "capacity": {"workload": name, "forecast_every": interval, "server": limits},
            }
        )
    workloads["default"] = {"prompt_tokens": 64, "output_tokens": 32}
    return json.dumps(
        {"listen": f"127.0.0.1:{port}", "workloads": workloads, "objectives": objectives, "targets": targets}
    )


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process; 0 if it has gone."""
    return _times_s(pid, slice(11, 13))


def children_s(pid: int) -> float:
    """Return the CPU seconds of a process' children, those that run and those that have ended."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return _times_s(pid, slice(13, 15)) + sum(cpu_s(int(child)) for task in tasks for child in task.read_text().split())


def _times_s(pid: int, fields: slice) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    return sum(map(int, stat.rpartition(")")[2].split()[fields])) / _TICKS


def memory_mib(pid: int, field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return round(int(found[1]) / 1024, 1)


def helpers_mib(pid: int) -> float:
    """Return the memory of the processes that compute forecasts now."""
    children = [int(one) for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()]
    found = 0.0
    for child in children:
        with suppress(OSError, AssertionError):
            found += memory_mib(child, "VmRSS")
    return found


def get(url: str) -> tuple[str, float]:
    """Return a page, and how long it took."""
    began = time.perf_counter()
    request = urllib.request.Request(url, headers={"accept": "application/openmetrics-text"})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return answer.read().decode(), time.perf_counter() - began


def samples(page: str, name: str, labels: str = "") -> Iterator[tuple[str, float]]:
    """Yield the labels and the value of each series with these labels."""
    for line in page.splitlines():
        if line.startswith(f"{name}{{") and labels in line:
            found, _, value = line.removeprefix(f"{name}{{").rpartition("} ")
            yield found, float(value.split()[0])


def lateness(before: str, after: str, name: str, labels: str = "") -> dict[str, object]:
    """Return the number of samples, and the bounds of all of them, of 99 and 99.9 % and of half."""
    grown: dict[str, float] = {}
    for page, sign in ((before, -1), (after, 1)):
        for found, count in samples(page, f"{name}_bucket", labels):
            bound = re.search(r'le="([^"]+)"', found)
            assert bound is not None
            grown[bound[1]] = grown.get(bound[1], 0.0) + sign * count
    total = grown.get("+Inf", 0.0)

    def below(share: float) -> str:
        return next((one for one in sorted(grown, key=float) if total and grown[one] >= share * total), "none")

    shares = {"all": 1.0, "p999": 0.999, "p99": 0.99, "median": 0.5}
    return {"count": total, **{f"{words}_below_s": below(share) for words, share in shares.items()}}


def late(before: str, after: str) -> dict[str, object]:
    return {
        **{
            task: lateness(before, after, "kneewatch_task_lateness_seconds", f'task="{task}"')
            for task in ("canary", "scrape")
        },
        "canary_schedule_lag": lateness(before, after, "kneewatch_schedule_lag_seconds"),
        "event_loop_lag": lateness(before, after, "kneewatch_event_loop_lag_seconds"),
    }


class Prometheus:
    """A Prometheus that scrapes the monitor and evaluates all rules; nothing where none is installed."""

    def __init__(
        self, folder: Path, port: int, monitor_port: int, start: Callable[..., "subprocess.Popen[bytes]"]
    ) -> None:
        self.pid, self._url = 0, f"http://127.0.0.1:{port}"
        if (binary := shutil.which("prometheus")) is None:
            return
        file = folder / "prometheus.yml"
        scrape = {"job_name": "kneewatch", "static_configs": [{"targets": [f"127.0.0.1:{monitor_port}"]}]}
        rules = [str(ROOT / "alerts/generated/kneewatch.rules.yml")]
        every = {"scrape_interval": f"{SCRAPE_S:g}s", "evaluation_interval": "15s"}
        file.write_text(json.dumps({"global": every, "scrape_configs": [scrape], "rule_files": rules}))
        command = [binary, f"--config.file={file}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        self.pid = start(*command, f"--storage.tsdb.path={folder / 'tsdb'}").pid

    def used(self) -> tuple[float, float]:
        """Return the CPU seconds of all, and the seconds that rules took."""
        if not self.pid:
            return 0.0, 0.0
        page, _ = get(f"{self._url}/metrics")
        took = re.search(r"^prometheus_rule_evaluation_duration_seconds_sum (\S+)", page, re.MULTILINE)
        return cpu_s(self.pid), float(took[1]) if took else 0.0


def measure(minutes: float, url: str, pid: int, prometheus: Prometheus, targets: int) -> dict[str, object]:
    """Measure for the given time, from a start without evidence on."""
    began = time.monotonic()
    _wait(began + _WARM_S)
    first, _ = get(f"{url}/metrics")
    _wait(began + _UNTIL_FORECASTS_S)
    quiet, _ = get(f"{url}/metrics")
    from_s, cpu, of_children, of_rules = time.monotonic(), cpu_s(pid), children_s(pid), prometheus.used()
    pages: list[tuple[float, int, int]] = []
    helpers: list[float] = []
    turns: set[tuple[str, float]] = set()
    while time.monotonic() < began + 60 * minutes:
        page, took = get(f"{url}/metrics")
        pages.append((took, len(page), page.count("\n")))
        helpers.append(helpers_mib(pid))
        turns.update(samples(page, _TURN, _OF_FORECASTS))
        time.sleep(SCRAPE_S)
    after, _ = get(f"{url}/metrics")
    seconds = time.monotonic() - from_s
    all_s, rules_s = (now - then for now, then in zip(prometheus.used(), of_rules, strict=True))
    monitor, forecasts = (cpu_s(pid) - cpu) / seconds, (children_s(pid) - of_children) / seconds
    status, status_s = get(url)
    return {
        "seconds": round(seconds, 1),
        "cores": round(monitor + forecasts, 3),
        "cores_of_monitor": round(monitor, 3),
        "cores_of_forecasts": round(forecasts, 3),
        "cores_of_prometheus": round(all_s / seconds, 3),
        "rules_s_per_s": round(rules_s / seconds, 4),
        "memory_mib": memory_mib(pid, "VmRSS"),
        "memory_peak_mib": memory_mib(pid, "VmHWM"),
        "helpers_peak_mib": max(helpers),
        "page_s": {"median": statistics.median(took for took, _, _ in pages), "max": max(p[0] for p in pages)},
        "page_bytes": pages[-1][1],
        "page_lines": pages[-1][2],
        "status_page_s": round(status_s, 3),
        "status_page_bytes": len(status),
        "forecasts": forecasts_of(
            after, len(turns.difference(samples(quiet, _TURN, _OF_FORECASTS))), targets, children_s(pid) - of_children
        ),
        "late_without_forecasts": late(first, quiet),
        "late": late(quiet, after),
        "outcomes": outcomes(after),
        "scrape_errors": sum(value for _, value in samples(after, "kneewatch_server_scrape_errors_total")),
        "task_failures": sum(value for _, value in samples(after, "kneewatch_task_failures_total")),
    }


def forecasts_of(page: str, turns: int, targets: int, spent_s: float) -> dict[str, object]:
    """Return how old forecasts are, what a target's turn costs, and how long a round of all takes within the budget.

    A turn is up to two forecasts; `turns`: those that have ended.
    """
    known = dict(samples(page, _AGE, _FORECASTS))
    ages = sorted((time.time() - at_s) / 60 for at_s in known.values())
    each_s = spent_s / turns if turns else 0.0
    return {
        "targets_with_one": len({re.search(r'target="([^"]+)"', labels)[1] for labels in known}),  # type: ignore[index]
        "forecasts": len(known),
        "turns": turns,
        "cpu_s_a_turn": round(each_s, 2),
        "oldest_min": round(ages[-1], 1) if ages else None,
        "median_min": round(statistics.median(ages), 1) if ages else None,
        "round_min": round(targets * each_s / BUDGET / 60, 1),
    }


def outcomes(page: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, count in samples(page, "kneewatch_requests_total"):
        outcome = re.search(r'outcome="(\w+)"', labels)
        assert outcome is not None
        found[outcome[1]] = found.get(outcome[1], 0.0) + count
    return {outcome: count for outcome, count in found.items() if count}


def missed(found: Mapping[str, Any], *, has_users: bool) -> list[str]:
    """Return the limits that were exceeded."""
    memory, page_s, of = (
        found["memory_peak_mib"] + found["helpers_peak_mib"],
        found["page_s"]["max"],
        found["forecasts"],
    )
    canaries = found["late"]["canary"]["p99_below_s"]
    said = {
        f"{found['cores']} cores, more than {CORES}": found["cores"] > CORES,
        f"{memory:.0f} MiB, more than {MEMORY_MIB:g}": memory > MEMORY_MIB,
        f"1 % of canaries late by more than {LATE_S:g} s": not float(canaries) <= LATE_S,
        f"/metrics took {page_s:.2f} s, more than {PAGE_S:g}": page_s > PAGE_S,
        "no forecast was made": has_users and not of["forecasts"],
        f"a round of forecasts takes {of['round_min']} min, more than {AGE_MIN:g}": of["round_min"] > AGE_MIN,
    }
    return [words for words, is_so in said.items() if is_so]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--interval", default="30m", help="of forecasts")
    parser.add_argument("--no-users", action="store_true")
    parser.add_argument("--port", type=int, default=18_700)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.targets, options.port, has_users=not options.no_users)
        return 0
    with tempfile.TemporaryDirectory() as name:
        found = run(Path(name), options)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks.fleet " + " ".join(sys.argv[1:]),
        "kneewatch": __version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "load_average": os.getloadavg(),
        "targets": options.targets,
        **found,
    }
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    problems = missed(found, has_users=not options.no_users)
    print("\n".join(problems) or "every limit was kept")
    return int(bool(problems))


def run(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Run everything, and return what was measured, with how often the log has each line."""
    file, base_url, port = folder / "fleet.yml", f"http://127.0.0.1:{options.port}", options.port + 1
    file.write_text(config(fleet(options.targets), base_url, port, options.interval))
    serving = ["--serve", "--targets", str(options.targets), "--port", str(options.port)]
    serving += ["--no-users"] if options.no_users else []
    log = folder / "log"
    with ExitStack() as ending:

        def start(*command: str, **output: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
            process = subprocess.Popen(command, cwd=ROOT, **output)
            ending.callback(_end, process)
            return process

        start(sys.executable, "-m", "benchmarks.fleet", *serving)
        _until_served(f"{base_url}/t0/metrics")
        command = (sys.executable, "-m", "probe", "--log-format", "json", "run", "-c", str(file))
        monitor = start(*command, stdout=subprocess.DEVNULL, stderr=log.open("w"))
        prometheus = Prometheus(folder, options.port + 2, port, start)
        found = measure(options.minutes, f"http://127.0.0.1:{port}", monitor.pid, prometheus, options.targets)
    return {**found, "log": Counter(re.findall(r'"event": ?"([^"]+)"', log.read_text()))}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()


def _until_served(url: str) -> None:
    for _ in range(120):
        with suppress(OSError):
            get(url)
            return
        time.sleep(0.5)
    raise SystemExit(f"no answer from {url}")


def _wait(until_s: float) -> None:
    time.sleep(max(until_s - time.monotonic(), 0.0))


if __name__ == "__main__":
    sys.exit(main())
