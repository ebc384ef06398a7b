"""Kneewatch beside a real vLLM and a real Prometheus while vLLM is killed and comes back. Prints a log of events.

    PYTHONPATH=tests/integration python benchmarks/watch.py --vllm-python .vllm/bin/python --out FILE [--healthy 300]

The rules are those that `kneewatch alerts` writes, with their real windows: nothing is scaled down. It takes about a
quarter of an hour: five minutes of health, an outage until the page fires, then the way back until the page of the
1-hour window has resolved (that of the 6-hour window looks back over 30 minutes, and fires on for as long).
Needs vLLM (`make vllm`), Prometheus, and nothing else on the machine that would make the server slow.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from monitor import Monitor
from process import eventually
from real_prometheus import RealPrometheus
from real_vllm import RealVllm

from alerts.build import write
from probe import __version__

PAGE = "KneewatchAvailabilityBurn"
CONFIG = {
    "objectives": {
        "chat": {
            "window": "30d",
            "availability": 0.999,
            "ttft": {"ratio": 0.95, "within": "500ms"},
            "tpot": {"ratio": 0.95, "within": "50ms"},
        }
    },
    "workloads": {"short-chat": {"prompt_tokens": 128, "output_tokens": 64}},
}


class Timeline:
    """Lines with the seconds since the start, printed as they come and kept."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self._start:6.0f} s  {text}"
        self.lines.append(line)
        print(line, flush=True)

    def until(self, check: Callable[[], object], text: str, within_s: float) -> None:
        """Wait for the condition and print when it held. Raises AssertionError after `within_s`."""
        eventually(check, within_s=within_s, what=text, every_s=0.5)
        self.say(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", required=True)
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--healthy", type=float, default=300.0, help="seconds before the outage")
    parser.add_argument("--out", type=Path, help="file for the record")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to hold the outage, for a look at the page")
    options = parser.parse_args()
    timeline = Timeline()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        server = RealVllm(options.vllm_python, Path(directory))
        stack.callback(server.stop)
        server.start()
        target = {"name": "tiny", "base_url": server.base_url, "objectives": "chat", "scrape": "2s"}
        target["canary"] = {"every": "5s", "workload": "short-chat"}
        with Monitor({**CONFIG, "targets": [target]}, Path(directory) / "monitor") as monitor:
            rules = write(Path(directory) / "rules")
            with RealPrometheus(
                options.prometheus,
                Path(directory) / "prometheus",
                addresses=[monitor.address],
                rule_files=rules,
                every="5s",
            ) as prometheus:
                timeline.say(f"vLLM generates, Kneewatch watches ({monitor.base_url}), Prometheus scrapes")
                watch(timeline, server, prometheus, options.healthy, options.pause)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python " + " ".join(sys.argv),
        "kneewatch": __version__,
        "vllm": "0.32.0 on the CPU, a model of random weights",
        "python": platform.python_version(),
        "machine": platform.platform(),
        "timeline": timeline.lines,
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def watch(timeline: Timeline, server: RealVllm, prometheus: RealPrometheus, healthy_s: float, pause_s: float) -> None:
    """Run the whole scenario."""

    def count(outcome: str) -> int:
        found = prometheus.value(f'sum(kneewatch_requests_total{{traffic="canary", outcome="{outcome}"}})')
        return round(found or 0)

    def up() -> float | None:
        return prometheus.value("kneewatch_target_up")

    def firing() -> str:
        alerts = [f"{a['alertname']} ({a['severity']})" for a in prometheus.firing()]
        return ", ".join(sorted(alerts)) or "nothing"

    def paging() -> bool:
        return any(a["alertname"] == PAGE and a["severity"] == "page" for a in prometheus.firing())

    time.sleep(healthy_s)
    ttft = prometheus.value("1000 * sum(kneewatch_ttft_seconds_sum) / sum(kneewatch_ttft_seconds_count)")
    timeline.say(f"healthy so far: {count('ok')} canaries ok, mean TTFT {ttft:.1f} ms, firing: {firing()}")
    server.kill()
    timeline.say("vLLM is killed")
    timeline.until(lambda: up() == 0, "kneewatch_target_up is 0 in Prometheus", 60)
    timeline.until(paging, f"{PAGE} pages", 300)
    timeline.say(f"{count('unreachable') + count('broken_stream')} canaries have failed, firing: {firing()}")
    time.sleep(pause_s)
    timeline.say("vLLM is started again")
    server.start()
    timeline.until(lambda: up() == 1, "kneewatch_target_up is 1 again", 60)
    before = count("ok")
    timeline.until(lambda: count("ok") >= before + 5, "five more canaries succeeded", 60)
    timeline.until(lambda: not paging(), "the page of the 1 h window has resolved", 900)
    timeline.say(f"firing: {firing()}")


if __name__ == "__main__":
    sys.exit(main())
