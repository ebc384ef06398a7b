"""Replay a simulated month and report recall, delay and false alerts of the rules: `python -m benchmarks.alerts`

    --seeds 1        the number of months, from the seed --first 0 on; --seed 7 runs one given month
    --minutes 45     begin no month after that
    --scrape 60      seconds between two scrapes: 15, 30 or 60
    --calm           months without faults
    --pages          only the rules that page, without inhibitions
    --alert NAME     only this alert and what it reads; may be repeated. Faults that others find are then missed
    --arrays         evaluate the rules over arrays (benchmarks/promql) instead of in Prometheus: the same alerts for
                     a twentieth of the cost
    --days           named days instead of months, each with the notifications that should come (expected.py)
    --day NAME       with --days: only this day; may be repeated
    --verbose        every fault and every alert, by day
    --out FILE       the record; benchmarks/results/alerts-DATE.json for ten months or more, else none

Simulates 30 days of three targets (month.py, world.py, of_*.py) with 20 faults of six kinds that are large enough that
alerts must find them, and six smaller ones (faults.py). Loads the series into a real Prometheus (backfill.py), or into
arrays, and evaluates the rules that `kneewatch alerts` generates for these targets at every interval (replay.py).
Removes the alerts that deploy/examples/alertmanager.yml inhibits and compares the rest with the faults (judge.py).
Counts the pages of each fault with the grouping of that file (notify.py): there should be one. Stores only series that
the rules query; a queried series that is not simulated is an error. Delays run until an alert fires and do not include
Alertmanager's group_wait. Exits 1 if a goal is missed. Needs prometheus on PATH.
"""

import argparse
import json
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alerts.build import FILE, render
from benchmarks.alerts import report, run_days
from benchmarks.alerts.expected import EXPECTED
from benchmarks.alerts.faults import ALERTS, COUNTS, SIZES
from benchmarks.alerts.inhibit import inhibitions, sent
from benchmarks.alerts.judge import Verdict, judge
from benchmarks.alerts.month import BEGUN_S, END_S, START_S, Month, config
from benchmarks.alerts.notify import rings
from benchmarks.alerts.replay import Replay, evaluator
from benchmarks.alerts.rules import Rule, asked, needed, paging, rules_of, unmet
from benchmarks.backfill import Prometheus
from probe import __version__

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ALERTMANAGER = ROOT / "deploy" / "examples" / "alertmanager.yml"
_ENOUGH_FOR_A_RECORD = 10


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Prometheus is stopped too
    if shutil.which("prometheus") is None:
        sys.exit("benchmarks.alerts needs prometheus on PATH (Debian: apt-get install prometheus)")
    if options.days:
        return _days(options, argv)
    rules = rules_of(render()[FILE])
    if options.pages:
        rules = paging(rules)
    if options.alert:
        rules = [rule for rule in rules if not rule.alert or rule.alert in options.alert]
    rules = needed(rules)
    months = _months(rules, options)
    verdicts = [verdict for _, verdict, _ in months]
    rows = report.by_kind(verdicts)
    problems = report.too_often(verdicts)
    if not options.calm:
        problems += [text for seed, verdict, _ in months for text in report.missed(seed, verdict)]
    print(report.table(rows), end="")
    for severity in ("page", "ticket"):
        false = [len(report.false_of(verdict, severity)) for verdict in verdicts]
        print(f"false {severity}s: {sum(false)} in {len(false)} months, {max(false)} in the worst")
    for name, count in (
        ("echoes of past faults", sum(len(verdict.echoes) for verdict in verdicts)),
        ("headroom tickets in busy hours", sum(len(verdict.busy) for verdict in verdicts)),
    ):
        print(f"{name}, a month: {count / len(months):.1f}")
    print("\n".join(problems) or "every target was met")
    out = options.out or (
        RESULTS / f"alerts-{datetime.now(UTC):%Y-%m-%d}.json" if len(months) >= _ENOUGH_FOR_A_RECORD else None
    )
    if out is not None:
        out.write_text(json.dumps(_record(_command(argv), options, rows, problems, months), indent=1) + "\n")
        print(f"written: {out}")
    return 1 if problems else 0


def _months(rules: Sequence[Rule], options: argparse.Namespace) -> list[tuple[int, Verdict, dict[str, Any]]]:
    """Return the verdict on each month and what is known of its replay, and print them."""
    months: list[tuple[int, Verdict, dict[str, Any]]] = []
    began = time.monotonic()
    for seed in [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds):
        if months and time.monotonic() - began > 60 * options.minutes:
            break
        verdict, about = _month(seed, rules, options)
        months.append((seed, verdict, about))
        print(_line(seed, verdict, about), file=sys.stderr, flush=True)
        if options.verbose:
            print(_story(verdict), file=sys.stderr, flush=True)
    return months


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alerts", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--scrape", type=float, choices=(15.0, 30.0, 60.0), default=60.0)
    parser.add_argument("--calm", action="store_true")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--alert", action="append", default=[], choices=sorted(ALERTS))
    parser.add_argument("--arrays", action="store_true")
    parser.add_argument("--days", action="store_true")
    parser.add_argument("--day", action="append", default=[], choices=sorted(EXPECTED))
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(argv)


def _month(seed: int, rules: Sequence[Rule], options: argparse.Namespace) -> tuple[Verdict, dict[str, Any]]:
    began = time.monotonic()
    month = Month(seed, config(), scrape_s=options.scrape, faults=not options.calm)
    wanted = asked(rules)
    lines = month.lines({each.name for each in wanted})
    if missing := unmet(wanted, [line.labels for line in lines]):
        sys.exit(f"rules query series that benchmarks/alerts/of_*.py do not simulate: {', '.join(missing)}")
    made_s = time.monotonic()
    cpu_before_s, memory = time.process_time(), None
    with evaluator("100d", arrays=options.arrays) as engine:
        samples = engine.write(lines)
        written_s = time.monotonic()
        replay = Replay(engine, BEGUN_S, START_S, END_S)
        firings = replay.run(rules)
        if isinstance(engine, Prometheus):
            cpu_s, memory = engine.cpu_s(), engine.memory_mib()
        else:
            cpu_s = time.process_time() - cpu_before_s
    sent_firings = sent(firings, inhibitions(ALERTMANAGER.read_text()))
    ended = time.monotonic()
    about = {
        "seed": seed,
        "seconds": {
            "make_up": round(made_s - began, 1),
            "store": round(written_s - made_s, 1),
            "replay": round(ended - written_s, 1),
            "all": round(ended - began, 1),
            "cpu_of_rules": round(cpu_s, 1),
        },
        "series": len(lines),
        "samples": samples,
        **({"prometheus_memory_mib": memory} if memory is not None else {}),
        "slowest_rules_s": {
            name: round(s, 1) for name, s in sorted(replay.spent.items(), key=lambda item: -item[1])[:5]
        },
    }
    return judge(month.faults, sent_firings, month.busy, rings(firings, ALERTMANAGER.read_text())), about


def _days(options: argparse.Namespace, argv: Sequence[str] | None) -> int:
    began = time.monotonic()
    results = run_days.run(
        options.seed or 0, options.scrape, ALERTMANAGER.read_text(), options.day, arrays=options.arrays
    )
    print(run_days.table(results), end="")
    if options.out is not None:
        seconds = round(time.monotonic() - began, 1)
        record = {**_about(options, _command(argv)), "seconds": seconds, **run_days.figures(results)}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written: {options.out}")
    return 1 if any(one.missed for one in results) else 0


def _command(argv: Sequence[str] | None) -> str:
    return " ".join(["python -m benchmarks.alerts", *(sys.argv[1:] if argv is None else argv)])


def _line(seed: int, verdict: Verdict, about: dict[str, Any]) -> str:
    large = [one for one in verdict.found if one.fault.counts]
    pages, tickets = (len(report.false_of(verdict, severity)) for severity in ("page", "ticket"))
    return (
        f"seed {seed}: {sum(one.delay_s is not None for one in large)} of {len(large)} faults found,"
        f" {pages} false pages, {tickets} false tickets, {len(verdict.echoes)} echoes, {len(verdict.busy)} of busy"
        f" hours, {verdict.incidents} alerts;"
        f" {about['series']} series,"
        f" {about['samples'] / 1e6:.1f} M samples, {about['seconds']}, slowest {about['slowest_rules_s']}"
    )


def _story(verdict: Verdict) -> str:
    lines = [json.dumps(report.fault(one, START_S)) for one in verdict.found]
    for name, incidents in (("false", verdict.false), ("echo", verdict.echoes), ("busy", verdict.busy)):
        lines += [f"{name}: {json.dumps(report.incident(one, START_S))}" for one in incidents]
    return "\n".join(lines)


def _about(options: argparse.Namespace, command: str) -> dict[str, Any]:
    shown = subprocess.run(["prometheus", "--version"], check=True, capture_output=True, text=True)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": platform.platform(),
        "python": platform.python_version(),
        "prometheus": (shown.stdout or shown.stderr).split(" (")[0],
        "kneewatch": __version__,
        "scrape_s": options.scrape,
        "evaluated_by": "benchmarks/promql" if options.arrays else "prometheus",
    }


def _record(
    command: str,
    options: argparse.Namespace,
    rows: Sequence[dict[str, Any]],
    problems: Sequence[str],
    months: Sequence[tuple[int, Verdict, dict[str, Any]]],
) -> dict[str, Any]:
    return {
        **_about(options, command),
        "faults_a_month": {str(kind): large for kind, (large, _) in COUNTS.items()},
        "smallest_size": {str(kind): words for kind, words in SIZES.items()},
        "kinds": rows,
        "targets_missed": list(problems),
        "months": [
            {
                **about,
                "false": [report.incident(one, START_S) for one in verdict.false],
                "echoes": [report.incident(one, START_S) for one in verdict.echoes],
                "busy": [report.incident(one, START_S) for one in verdict.busy],
                "alerts": verdict.incidents,
                "faults": [report.fault(one, START_S) for one in verdict.found],
            }
            for _, verdict, about in months
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
