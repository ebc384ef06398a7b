"""What another setting gives, predicted and true: `python -m benchmarks.capacity.knobs [CASE ...] [--out FILE]`.

In virtual time. A search measures each case with its own settings, and the model that its result stores predicts the
change of capacity with each setting doubled (capacity/model/knobs.py). The truth is simulated with the case's own
costs. Prints both, and writes them as JSON. A case takes two to three minutes of a core.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.capacity.cases import CASES, Case
from benchmarks.capacity.play import play
from probe.capacity.model.hints import Hints
from probe.capacity.model.knobs import DOUBLED, doubled, doubled_knobs, simulate_knobs
from probe.capacity.model.twin import Twin, find_capacity
from probe.capacity.search.search import Search

_LIMITED = ("seats-16", "kv-14b", "chunk-512", "seats-32", "kv-tight-rag")
_SEED, _FIRST_GUESS_RPS, _REQUESTS = 1, 10.0, 6000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity.knobs", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    rows = []
    for name in options.cases or _LIMITED:
        rows.append(compare(CASES[name]))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def compare(case: Case) -> dict[str, Any]:
    """Return the capacity of a case by a search, and for each knob the predicted and the true change."""
    twin, true_of = _true_twin(case), partial(find_capacity, objectives=case.objectives, requests=_REQUESTS)
    true_rps = true_of(twin, near_rps=_FIRST_GUESS_RPS)
    hints = Hints(max_num_seqs=twin.max_num_seqs, max_num_batched_tokens=twin.chunk_tokens)
    search = Search(case.workload, case.objectives, hints, explain=False, observe_s=20.0)
    found = play(case, true_rps, _SEED, search).result.capacity
    row = {"case": case.name, "true_rps": true_rps, "rps": found.requests_per_second, "mode": found.mode}
    if found.fitted_server is None or found.requests_per_second is None:
        return {**row, "reason": found.reason}
    asked, rps = doubled_knobs(found.fitted_server), found.requests_per_second
    knobs = simulate_knobs(found.fitted_server, case.workload, case.objectives, rps, asked)
    true = {name: true_of(doubled(twin, name), near_rps=true_rps) / true_rps - 1 for name in DOUBLED}
    return {**row, "knobs": [{**asdict(knob), "true_gain": true.get(knob.name)} for knob in knobs]}


def _true_twin(case: Case) -> Twin:
    """Return the case's server with its true costs."""
    known = case.profile
    return Twin(
        cost=known.cost,
        kv_tokens=float(known.usable_blocks * known.block_size),
        workload=case.workload,
        max_num_seqs=known.max_num_seqs,
        chunk_tokens=known.max_num_batched_tokens,
        front_end=known.front_end,
        noise_ratio=known.jitter.noise_ratio,
    )


if __name__ == "__main__":
    sys.exit(main())
