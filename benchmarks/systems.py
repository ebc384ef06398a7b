"""Which parts of Kneewatch work with gateways and servers of others: each is run, and a record is written.

    make systems        # installs them in .systems, runs each for about two minutes, and writes the record
    make generate       # writes its table to docs/systems.md
    PYTHONPATH=tests/integration python -m benchmarks.systems --only 'Ray Serve;llama.cpp'

Gateways stand in front of `kneewatch sim --profile tiny`, some in front of two. Asked of each: `check`; a guarded
`ramp` over two steps, whose capacity may not be above what a step measured; `forecast` beside users; and whether
`kneewatch run` counts these users' requests, or else their output tokens, within a tenth.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from kneewatch_command import kneewatch, measured
from monitor import Monitor
from process import eventually
from system_setups import SETUPS, Placed
from systems import install, version_of
from users import Users

from probe import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PARTS = ("check", "load", "forecast", "users")
_LEVELS = ("--concurrency", "2,4", "--requests-per-step", "48", "--confirm-seconds", "0")
_FORECAST_S, _WATCHED_S = 40, 15.0
_WITHIN_S = 600.0  # a command
_MORE = 1.001  # ratio of a capacity to the highest rate of a level that still is not above it
_OFF = 0.1
_PATIENCE_S = 20.0  # of users, so that no request is counted whose answer they did not wait for


@dataclass(frozen=True)
class Finding:
    """Whether a part works; the words are those of the table, the detail has the figures."""

    works: bool
    words: str
    detail: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=";".join(SETUPS), help="names of the table, separated by semicolons")
    parser.add_argument("--install", action="store_true", help="install them before")
    options = parser.parse_args()
    names = options.only.split(";")
    if options.install:
        for system in {SETUPS[name][0] for name in names}:
            try:
                install(system)
            except subprocess.CalledProcessError as error:  # uv has said why; the other systems are run
                print(f"{system}: not installed, status {error.returncode} of {error.cmd[3:5]}", file=sys.stderr)
    old = {row["system"]: row for row in json.loads(newest().read_text())["rows"]} if _records() else {}
    rows = {name: old[name] for name in SETUPS if name in old}
    for name in names:
        if (row := _row(name)) is not None:
            rows[name] = row
            _write([rows[each] for each in SETUPS if each in rows])
    return 0


def _write(rows: list[dict[str, Any]]) -> None:
    record = {"kneewatch": __version__, "python": platform.python_version(), "rows": rows}
    (RESULTS / f"systems-{datetime.now(UTC):%Y-%m-%d}.json").write_text(json.dumps(record, indent=1) + "\n")


def newest() -> Path:
    """Return the newest record."""
    return max(_records())


def _records() -> list[Path]:
    return list(RESULTS.glob("systems-*.json"))


def _row(name: str) -> dict[str, Any] | None:
    """Run one system, and return its row; None where it is not installed."""
    system, setup = SETUPS[name]
    version = version_of(system)
    if version is None:
        print(f"{name}: not installed", file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with setup(folder / "system") as placed:
            file = folder / "kneewatch.yml"
            file.write_text(yaml.safe_dump(_config(placed)))
            time.sleep(placed.counted_after_s)
            found = {"check": _check(file), "load": _load(file, placed), "forecast": _forecast(file, placed)}
            found["users"] = _users(placed, folder / "monitor")
    row = {"system": name, "version": version, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    row |= {part: asdict(finding) for part, finding in found.items()}
    print(json.dumps(row), flush=True)
    return row


def _config(placed: Placed) -> dict[str, object]:
    target = {
        "name": "system",
        "base_url": placed.url,
        "scrape": "1s",
        "canary": {"workload": "short", "every": "5s", "timeout": "10s"},
        **placed.target,
    }
    lenient = {kind: {"ratio": 0.95, "within": "5s"} for kind in ("ttft", "tpot")}
    return {
        "objectives": {"default": lenient},
        "workloads": {"short": {"prompt_tokens": 64, "output_tokens": 32, **placed.workload}},
        "targets": [target],
    }


def _check(file: Path) -> Finding:
    kneewatch("check", "-c", file, within_s=_WITHIN_S)  # a cold gateway's first answer may take seconds
    done = kneewatch("check", "-c", file, within_s=_WITHIN_S)
    return Finding(works=done.status == 0, words="yes" if done.status == 0 else _last(done.out + done.err))


def _load(file: Path, placed: Placed) -> Finding:
    result = file.with_name("result.json")
    done = measured("ramp", "-c", file, *_LEVELS, "--out", result, within_s=_WITHIN_S)
    if done.status != 0:
        return Finding(works=False, words=_last(done.out + done.err))
    found = json.loads(result.read_text())
    rate, most = found["capacity"]["requests_per_second"], max(step["throughput_rps"] for step in found["steps"])
    figures = f"{rate:.4g} requests/s, at most {most:.4g} measured"
    by = "by the stream alone" if placed.is_by_stream else "yes"
    is_earned = rate <= most * _MORE
    return Finding(works=is_earned, words=by if is_earned else figures, detail=figures)


def _forecast(file: Path, placed: Placed) -> Finding:
    with _of(placed, placed.users) as users:
        done = kneewatch("forecast", "-c", file, "--seconds", str(_FORECAST_S), "--json", within_s=_WITHIN_S)
    if done.status == 2:
        return Finding(works=False, words=_last(done.err))
    capacity = json.loads(done.out)["capacity"]
    works = capacity["requests_per_second"] is not None
    if not users.answered:
        return Finding(works=False, words="the users' requests were not answered")
    figure = f"{capacity['requests_per_second']:.4g} requests/s" if works else ""
    return Finding(works=works, words="yes" if works else capacity["reason"], detail=figure)


def _users(placed: Placed, folder: Path) -> Finding:
    with Monitor(_config(placed), folder) as monitor:
        time.sleep(placed.counted_after_s)  # of the users before
        eventually(lambda: "kneewatch_target_up" in monitor.page("/metrics"), within_s=30, what="a first canary")
        before = _counted(monitor.page("/metrics"))
        with _of(placed, 2, think_s=0.3) as users:
            time.sleep(_WATCHED_S)
        time.sleep(placed.counted_after_s)
        after = _counted(monitor.page("/metrics"))
    if not users.answered:
        return Finding(works=False, words="the users' requests were not answered")
    for what, sent in (("requests", users.answered), ("output tokens", users.output_tokens)):
        if what in after:
            counted = after[what] - before.get(what, 0.0)
            figures = f"{counted:.0f} counted of {sent} {what}"
            works = abs(counted - sent) <= _OFF * sent
            return Finding(works=works, words=what if works else figures, detail=figures)
    return Finding(works=False, words="its metrics do not count them")


def _of(placed: Placed, count: int, think_s: float = 0.0) -> Users:
    headers, fields = placed.headers, placed.fields
    return Users(
        placed.url,
        count,
        think_s=think_s,
        headers=headers,
        fields=fields,
        largest_id=placed.largest_id,
        patience_s=_PATIENCE_S,
    )


def _counted(page: str) -> dict[str, float]:
    """Return the users' requests and output tokens that Kneewatch exports, as far as they are there."""
    series = {
        "requests": r'kneewatch_users_requests_total\{.*outcome="ok".*\} (\S+)',
        "output tokens": r'kneewatch_users_tokens_total\{.*kind="output".*\} (\S+)',
    }
    return {what: sum(map(float, found)) for what, pattern in series.items() if (found := re.findall(pattern, page))}


def _last(text: str) -> str:
    """Return the last line, which says why, as a table takes it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = re.sub(r"^kneewatch: (http\S+: )?", "", lines[-1]) if lines else "no output"
    return said.replace("|", "/")[:160]


if __name__ == "__main__":
    sys.exit(main())
