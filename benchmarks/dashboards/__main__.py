"""How long the dashboards' queries take, on 30 days of 50 targets: `python -m benchmarks.dashboards`.

    --targets 50  --days 30  --interval 30   what is stored: seconds between samples
    --quick                                  a week at 60 s: a minute or two
    --keep FOLDER                            keep the data there; filled only if it is empty
    --out FILE                               the record; for 50 targets and 30 days, else none:
                                             benchmarks/results/dashboards-DATE.json

Run it in the repository. Stores every series that Kneewatch exports for a target (pages.py) and every recorded one, for
every target, in blocks of 54 hours, as Prometheus does with 30 days of retention (fill.py, blocks.py). A Prometheus
opens them, and is asked every query of every generated dashboard as Grafana would for the last 30 days (ask.py): tables
and single values for now, lines and annotations at half an hour from point to point, heat maps at six. Each three
times, one at a time. Prints the slowest ten; exits 1 if the median of a query is above a second. Needs prometheus on
PATH, and 15 GB of disk for a while.
"""

import argparse
import json
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alerts.windows import DAY_S
from benchmarks.backfill import Prometheus
from benchmarks.dashboards.ask import Asked, ask, queries
from benchmarks.dashboards.fill import END_S, Stored, fill
from benchmarks.dashboards.pages import GPUS
from dashboards.build import render
from probe import __version__
from probe.config.config import Config
from probe.config.config_file import config_from

RESULTS = Path(__file__).parents[1] / "results"
MOST_S = 1.0
_STORED = "stored.json"


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Prometheus goes with us
    if shutil.which("prometheus") is None:
        sys.exit("benchmarks.dashboards needs prometheus on PATH (Debian: apt-get install prometheus)")
    targets = [f"llm-{i:02d}" for i in range(options.targets)]
    config = _config(targets)
    with tempfile.TemporaryDirectory(prefix="kneewatch-bench-") as name:
        folder = options.keep or Path(name) / "tsdb"
        stored, seconds = _stored(folder, targets, options)
        print(
            f"{stored.series} series, {stored.samples / 1e9:.2f} thousand million samples", file=sys.stderr, flush=True
        )
        with Prometheus(block="54h", storage=folder) as prometheus:
            range_s = options.days * DAY_S
            dashboards = {file.removesuffix(".json"): json.loads(text) for file, text in sorted(render(config).items())}
            wanted = [one for name, each in dashboards.items() for one in queries(name, each, targets[7], range_s)]
            asked = [ask(prometheus, one, END_S - 1, range_s) for one in wanted]
            memory = prometheus.memory_mib()
    slow = sorted(asked, key=lambda one: -one.median_s)
    for one in slow[:10]:
        print(_line(one))
    problems = [f"above {MOST_S:g} s: {_line(one)}" for one in slow if one.median_s > MOST_S]
    empty = [one for one in asked if not one.series]
    print(f"{len(asked)} queries, the median {slow[len(slow) // 2].median_s:.3f} s; {len(empty)} without an answer")
    print("\n".join(problems) or f"none took more than {MOST_S:g} s")
    whole = options.targets >= 50 and options.days >= 30
    out = options.out or (RESULTS / f"dashboards-{datetime.now(UTC):%Y-%m-%d}.json" if whole else None)
    if out is not None:
        command = " ".join(["python -m benchmarks.dashboards", *(sys.argv[1:] if argv is None else argv)])
        record = _record(command, options, stored, asked) | {"fill_s": seconds, "prometheus_memory_mib": memory}
        out.write_text(json.dumps(record | {"problems": problems}, indent=1) + "\n")
        print(f"written: {out}")
    return 1 if problems else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboards", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if options.quick:
        options.days, options.interval = 7.0, 60.0
    return options


def _config(targets: Sequence[str]) -> Config:
    chat = {
        "availability": 0.999,
        "ttft": {"ratio": 0.95, "within": "500ms"},
        "tpot": {"ratio": 0.95, "within": "50ms"},
    }
    return config_from(
        {
            "objectives": {"chat": chat},
            "workloads": {"chat": {"prompt_tokens": 256, "output_tokens": 128}},
            "targets": [
                {
                    "name": name,
                    "base_url": f"http://{name}:8000",
                    "objectives": "chat",
                    "canary": {"every": "15s", "workload": "chat"},
                }
                for name in targets
            ],
        },
        "benchmarks/dashboards",
    )


def _stored(folder: Path, targets: Sequence[str], options: argparse.Namespace) -> tuple[Stored, float | None]:
    """Fill the folder if it is empty. Return what is stored there and how long storing took, or None if it was there
    before.
    """
    note = folder / _STORED
    if note.exists():
        return Stored(**json.loads(note.read_text())), None
    began = time.monotonic()
    stored = fill(folder, targets, days=options.days, step_s=options.interval)
    note.write_text(json.dumps(asdict(stored)))
    return stored, round(time.monotonic() - began, 1)


def _line(one: Asked) -> str:
    how = f"every {one.query.step_s:g} s" if one.query.step_s else "now"
    return (
        f"{one.median_s:6.3f} s (first {one.first_s:.3f}, CPU {one.cpu_s:.3f}) {one.query.dashboard},"
        f" {one.query.title!r} {how}: {one.series} series"
    )


def _record(command: str, options: argparse.Namespace, stored: Stored, asked: Sequence[Asked]) -> dict[str, Any]:
    said = subprocess.run(["prometheus", "--version"], check=True, capture_output=True, text=True)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": platform.platform(),
        "python": platform.python_version(),
        "prometheus": (said.stdout or said.stderr).split(" (")[0],
        "kneewatch": __version__,
        "targets": options.targets,
        "gpus_a_target": GPUS,
        "days": options.days,
        "interval_s": options.interval,
        "stored": asdict(stored),
        "queries": [
            {
                **asdict(one.query),
                "median_s": round(one.median_s, 4),
                "first_s": round(one.first_s, 4),
                "cpu_s": round(one.cpu_s, 4),
                "series": one.series,
            }
            for one in sorted(asked, key=lambda one: -one.median_s)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
