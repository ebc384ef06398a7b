"""Peak memory of `kneewatch run` and its workers: canary and scrape every second, pages read, capacity runs.

    python benchmarks/memory.py [--seconds 60] [--prometheus URL]

Starts the mock server and the monitor as a user would, in processes of their own, and reads the monitor's
VmHWM (peak resident memory) from /proc; while a capacity run lasts, that of its worker processes too. Prints a JSON
record; exits 1 above the limit.
"""

import argparse
import contextlib
import json
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from probe import __version__

LIMIT_MIB = 120
CONFIG = """
listen: 127.0.0.1:{port}
{prometheus}
store: {{path: {directory}/kneewatch.db}}
targets:
  - name: target
    base_url: {url}
    scrape: 1s
    canary: {{every: 1s}}
    capacity:
      mode: verify
      schedule: {{cron: "* * * * *"}}
      concurrency: [1, 4, 8]
      step: 5s
      confirm: 5s
"""


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a kneewatch command. Return it and the last word of the first line it prints."""
    process = subprocess.Popen([sys.executable, "-m", "probe", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def memory_mib(pid: int) -> dict[str, float]:
    """Return the resident memory of a process, now and at its peak, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {key: round(int(fields[key].split()[0]) / 1024, 1) for key in ("VmRSS", "VmHWM")}


def workers_mib(pid: int) -> float:
    """Return the peak resident memory of a process's children together, in MiB."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, KeyError):  # it ended meanwhile
            parent = stat.read_text().rpartition(")")[2].split()[1]
            total += memory_mib(int(stat.parent.name))["VmHWM"] if int(parent) == pid else 0.0
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--port", type=int, default=19876)
    parser.add_argument("--prometheus", help="address of a Prometheus, to measure with its client loaded")
    options = parser.parse_args()
    server, url = start("sim", "--port", "0", "--profile", "tiny")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kneewatch.yml"
        prometheus = f"prometheus: {{url: {options.prometheus}}}" if options.prometheus else ""
        file.write_text(CONFIG.format(port=options.port, directory=directory, url=url, prometheus=prometheus))
        monitor = subprocess.Popen([sys.executable, "-m", "probe", "run", "-c", file], stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + options.seconds
            workers = 0.0
            while time.monotonic() < end:
                time.sleep(1)
                workers = max(workers, workers_mib(monitor.pid))
                for path in ("/metrics", "/"):
                    urllib.request.urlopen(f"http://127.0.0.1:{options.port}{path}", timeout=5).read()
            with urllib.request.urlopen(f"http://127.0.0.1:{options.port}/api/v1/runs", timeout=5) as answer:
                runs = len(json.load(answer))
            memory = memory_mib(monitor.pid)
        finally:
            monitor.terminate()
            monitor.wait(timeout=15)
            server.terminate()
            server.wait(timeout=15)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python " + " ".join(sys.argv),
        "python": platform.python_version(),
        "kneewatch": __version__,
        "machine": platform.platform(),
        "seconds": options.seconds,
        "capacity_runs": runs,
        "peak_mib": memory["VmHWM"],
        "at_end_mib": memory["VmRSS"],
        "workers_peak_mib": round(workers, 1),
        "limit_mib": LIMIT_MIB,
    }
    print(json.dumps(record, indent=1))
    return int(memory["VmHWM"] + workers > LIMIT_MIB or runs == 0)


if __name__ == "__main__":
    sys.exit(main())
