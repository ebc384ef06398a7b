"""The cost of the rules, and the error of their minute counts: `python -m benchmarks.alerts.cost`.

A real Prometheus gets what `--targets` targets export, a sample every 15 s, and what the rules have recorded of it, as
far back as any rule reads it (cost_history.py), in blocks of 54 hours as it stores them itself; the targets are copies
of one, whose canaries fail so often that each has a ticket. The CPU time of each group is that of a query of each of
its expressions: the median of three. Then Prometheus evaluates the rules for some minutes. The record has the CPU time
of all, and how long each group's last evaluation took. It also compares the recorded minutes of a target with the raw
counters and with the truth, with restarts, at scrapes of 15, 30 and 60 s.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from alerts import build, sli
from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts.cost_history import KEPT_S, past
from benchmarks.alerts.rules import rules_of
from benchmarks.backfill import Floats, Line, Prometheus
from benchmarks.blocks import encode, write_block
from exporters import names
from probe import __version__
from probe.core.request import Outcome

_AHEAD_S = 3000.0  # the queries and the evaluations take less
_BLOCK_S = 54 * HOUR_S
_REPEATS = 3
_WINDOWS = {"5m": 300.0, "1h": HOUR_S, "6h": 6 * HOUR_S, "1d": DAY_S, "3d": 3 * DAY_S}


def counters(target: str, times: Floats, rng: np.random.Generator, restarts: int = 0) -> Iterator[Line]:
    """Yield a target's counters: a canary every 15 s of which 0.3 % fail and 2 % are late, and a user each second."""
    count = len(times)
    elapsed = np.diff(times, prepend=times[0] - (times[1] - times[0]))
    sent = np.round(elapsed / 15.0)
    failed = rng.binomial(1, np.minimum(0.003 * sent, 1.0), count).astype(float)
    late = rng.binomial(1, np.minimum(0.02 * sent, 1.0), count).astype(float)
    resets = np.sort(rng.integers(1, count, restarts))
    canary = {"job": "kneewatch", "instance": "a", "target": target, "model": "m", "workload": "short-chat"}
    canary["traffic"] = "canary"
    user = {"job": "kneewatch", "instance": "a", "target": target}

    def line(name: str, labels: Mapping[str, str], grown: Floats) -> Line:
        total = np.cumsum(grown)
        for reset in resets:
            total[reset:] -= total[reset - 1]
        return Line({"__name__": name, **labels}, times, total)

    for outcome in Outcome:
        grown = {Outcome.OK: sent - failed, Outcome.TIMEOUT: failed}.get(outcome, np.zeros(count))
        yield line(names.REQUESTS.name, {**canary, "outcome": outcome.value}, grown)
    good = {"availability": sent - failed, "ttft": sent - np.maximum(failed, late), "tpot": sent - failed}
    for objective, grown in {**good, "all": good["ttft"]}.items():
        yield line(names.GOOD_REQUESTS.name, {**canary, "objective": objective}, grown)
    users = rng.poisson(elapsed).astype(float)
    for objective, histogram in (("ttft", names.USERS_TTFT), ("tpot", names.USERS_TPOT)):
        yield line(f"{histogram.name}_count", user, users)
        fine = users - rng.binomial(users.astype(int), 0.02)
        yield line(names.USERS_GOOD.name, {**user, "objective": objective}, fine)


def _store(folder: Path, targets: Sequence[str], lines: Sequence[Line], now_s: float) -> int:
    """Write blocks of the lines until now, for each target as for the first; return how many samples."""
    starts = [now_s - _BLOCK_S * i for i in range(int(np.ceil(KEPT_S / _BLOCK_S)), 0, -1)]
    samples = 0
    for block, start_s in enumerate(starts):
        span = start_s, start_s + _BLOCK_S
        made = []
        for line in lines:
            inside = (line.times >= span[0]) & (line.times < span[1])
            if inside.any():
                (chunks,) = encode(np.round(line.times[inside] * 1000).astype(np.int64), line.values[None, inside])
                made.append((line.labels, chunks))
                samples += int(inside.sum()) * (len(targets) if "target" in line.labels else 1)
        groups = (
            [(_of(labels, target), chunks) for labels, chunks in made if number == 0 or "target" in labels]
            for number, target in enumerate(targets)
        )
        if made:
            write_block(folder, block, (round(span[0] * 1000), round(span[1] * 1000)), groups)
    return samples


def measure(targets: int, minutes: float) -> dict[str, Any]:
    """Return the cost of the rules for that many targets."""
    text = build.render()[build.FILE]
    now_s = float(np.floor(time.time() / 60) * 60)
    lines = past(rules_of(text), now_s, _AHEAD_S)
    records = {rule.record for rule in rules_of(text)}
    scraped, recorded = (
        [line for line in lines if (line.labels["__name__"] in records) == is_] for is_ in (False, True)
    )
    called = [f"llama-{i}" for i in range(targets)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = _store(folder, called, lines, now_s)
        with Prometheus(block="2h", storage=folder) as prometheus:
            prometheus.write(_between(scraped, called, now_s, np.inf))
            # What the rules record is there until they are loaded, and from then on they record it.
            filled_s = time.time()
            prometheus.write(_between(recorded, called, now_s, filled_s))
            rules = folder / "rules.yml"
            rules.write_text(text)
            groups = _queried(prometheus, text)
            print(json.dumps(groups), file=sys.stderr, flush=True)
            prometheus.write(_between(recorded, called, filled_s, time.time()))
            prometheus.load(rules)
            before, began = prometheus.cpu_s(), time.monotonic()
            time.sleep(minutes * 60)
            busy = (prometheus.cpu_s() - before) / (time.monotonic() - began)
            for group in prometheus.rule_groups():
                groups[group["name"]]["last_evaluation_s"] = round(group["evaluationTime"], 3)
            return {
                "targets": targets,
                "samples": samples,
                "groups": groups,
                "share_of_a_core": round(sum(group["share_of_a_core"] for group in groups.values()), 4),
                "share_of_a_core_evaluated_with_texts": round(busy, 4),
                "memory_mib": prometheus.memory_mib(),
            }


def _between(lines: Sequence[Line], targets: Sequence[str], from_s: float, to_s: float) -> Iterator[Line]:
    """Yield the samples of some time, for each target as for the first."""
    for line in lines:
        inside = (line.times >= from_s) & (line.times < to_s)
        if inside.any():
            for target in targets if "target" in line.labels else targets[:1]:
                yield Line(_of(line.labels, target), line.times[inside], line.values[inside])


def _of(labels: Mapping[str, str], target: str) -> dict[str, str]:
    """Return the labels of a series of a target as those of another one; a Kneewatch's own series as they are."""
    return {**labels, "target": target} if "target" in labels else dict(labels)


def _queried(prometheus: Prometheus, text: str) -> dict[str, dict[str, float]]:
    """Return the CPU time of each group: the median of some evaluations, by queries."""
    groups: dict[str, dict[str, float]] = {}
    rules = rules_of(text)
    for name in dict.fromkeys(rule.group for rule in rules):
        mine = [rule for rule in rules if rule.group == name]
        spent = []
        for _ in range(_REPEATS):
            before = prometheus.cpu_s()
            for rule in mine:
                prometheus.raw("query", query=rule.expr)
            spent.append(prometheus.cpu_s() - before)
        cpu_s, interval_s = float(np.median(spent)), mine[0].interval_s
        groups[name] = {
            "rules": len(mine),
            "interval_s": interval_s,
            "cpu_s": round(cpu_s, 3),
            "share_of_a_core": round(cpu_s / interval_s, 5),
        }
    return groups


def compare(scrape_s: float, restarts: int) -> dict[str, Any]:
    """Return the error of the minutes' sums and of increase(), each against the truth, over 3 days of one target."""
    rng = np.random.default_rng(2)
    end_s = float(np.floor(time.time() / 60) * 60)
    times = np.arange(end_s - 3 * DAY_S - HOUR_S, end_s + 60, scrape_s) - 3.3
    lines = list(counters("a", times, rng, restarts))
    one = sli.AVAILABILITY
    of_bad = 'kneewatch_requests_total{traffic="canary",outcome="timeout"}'
    with Prometheus(block="4000d") as prometheus:
        prometheus.write(lines)
        steps = np.arange(end_s - 3 * DAY_S, end_s + 1, 60.0)
        (total,) = prometheus.series(one.total_grown("1m"), steps[0], steps[-1], 60.0)
        prometheus.write([Line({**total.labels, "__name__": one.total_record("1m")}, total.times, total.values)])
        (bad,) = prometheus.series(one.bad_grown("1m"), steps[0], steps[-1], 60.0)
        failed = next(line for line in lines if line.labels.get("outcome") == Outcome.TIMEOUT.value)
        grown = np.diff(failed.values, prepend=failed.values[0])
        grown = np.where(grown < 0, failed.values, grown)
        rows = {}
        for window, seconds in _WINDOWS.items():
            at = np.arange(end_s - 3 * DAY_S + seconds, end_s + 1, max(60.0, min(seconds, 600.0)))
            truth = _over(times, grown, at, seconds)
            minutes = _over(bad.times, bad.values, at, seconds)
            raw = prometheus.series(
                f"sum(increase({of_bad}[{window}]))", at[0], at[-1], at[1] - at[0] if len(at) > 1 else 60
            )
            rows[window] = {
                "bad": round(float(truth.mean()), 2),
                "minutes_off": _off(minutes, truth),
                "increase_off": _off(raw[0].values, truth),
            }
        return rows


def _over(times: Floats, values: Floats, at: Floats, seconds: float) -> Floats:
    total = np.concatenate(([0.0], np.cumsum(values)))
    return total[np.searchsorted(times, at, "right")] - total[np.searchsorted(times, at - seconds, "right")]


def _off(values: Floats, truth: Floats) -> dict[str, float]:
    off = values - truth
    return {"mean": round(float(off.mean()), 3), "rms": round(float(np.sqrt(np.mean(off**2))), 3)}


def main() -> None:
    """Measure, print the record, and write it if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the rules are evaluated")
    parser.add_argument("--out", type=Path, help="write the record to this file")
    arguments = parser.parse_args()
    shown = subprocess.run(["prometheus", "--version"], check=True, capture_output=True, text=True)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks.alerts.cost " + " ".join(sys.argv[1:]),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "python": platform.python_version(),
        "prometheus": (shown.stdout or shown.stderr).split(" (")[0],
        "kneewatch": __version__,
        "errors": {f"{scrape:.0f}s": compare(scrape, restarts=6) for scrape in (15.0, 30.0, 60.0)},
        "costs": [measure(targets, arguments.minutes) for targets in arguments.targets],
    }
    text = json.dumps(record, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
