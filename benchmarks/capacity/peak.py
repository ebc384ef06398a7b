"""Forecasts at a quiet hour after a peak: `python -m benchmarks.capacity.peak CASE ... [--out FILE]`.

In virtual time: ten minutes at 20 % of the true capacity, half an hour at 75 %, and four hours at 20 %, of which nearly
two are skipped, as by a monitor that did not scrape then. Scraped every 15 s. Prints, and writes as JSON, the forecast
from the last two hours and the one from what `kneewatch run` keeps.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.capacity import truth_file
from benchmarks.capacity.cases import CASES, Case
from probe.capacity.model.forecast import forecast
from probe.core.snapshot import ServerSnapshot
from probe.observe.snapshot_history import SnapshotHistory, unpack

_SCRAPE_S, _WARM_UP_S, _SEED = 15.0, 120.0, 7
_QUIET, _PEAK = 0.2, 0.75
_SKIPPED_S, _PEAK_BEGINS_S, _PEAK_ENDS_S, _SKIPPED_AFTER_S = 1.9 * 3600, 600.0, 2400.0, 2700.0
_ENDS_S = _PEAK_ENDS_S + 4 * 3600 - _SKIPPED_S


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity.peak", description=__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES, metavar="CASE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    known, rows = truth_file.read(), []
    for name in options.cases:
        rows.append(compare(CASES[name], known[name].truth.rps))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def compare(case: Case, truth_rps: float) -> dict[str, Any]:
    """Return both forecasts for a case, with their errors."""
    snapshots, history = list(_watched(case, truth_rps)), SnapshotHistory()
    for each in snapshots:
        history.add(each)
    of_two_hours = [each for each in snapshots if each.at_ns >= snapshots[-1].at_ns - 7200 * 10**9]
    row: dict[str, Any] = {"case": case.name, "truth_rps": truth_rps}
    for label, kept in (("two_hours", of_two_hours), ("by_regime", unpack(history.packed))):
        found = forecast(kept, case.workload, case.objectives)
        rps = found.requests_per_second
        error = rps / truth_rps - 1 if rps else None
        row[label] = {"snapshots": len(kept), "error": error, **asdict(found)}
    return row


def _watched(case: Case, truth_rps: float) -> Iterator[ServerSnapshot]:
    server = case.server(_SEED, _QUIET * truth_rps)
    server.advance(_WARM_UP_S)
    share, at_s = _QUIET, 0.0
    while at_s < _ENDS_S:
        now = _PEAK if _PEAK_BEGINS_S <= at_s < _PEAK_ENDS_S else _QUIET
        if now != share:
            server.set_users(now * truth_rps / case.users_weight)
            share = now
        server.advance(_WARM_UP_S + at_s)
        server.ended_requests.clear()
        snapshot = server.snapshot()
        skipped_s = _SKIPPED_S if at_s >= _SKIPPED_AFTER_S else 0.0
        yield replace(snapshot, at_ns=snapshot.at_ns + int(skipped_s * 1e9))
        at_s += _SCRAPE_S


if __name__ == "__main__":
    sys.exit(main())
