"""Forecasts of a case from its users in virtual time, beside the truth: `python -m benchmarks.timed.live_forecasts`.

    [CASE ...]            of cases.py; else those with groups of layers
    --shares 0.3,0.55     of the truth, for 180 s each
    --model FOLDER        of tests/integration/tiny_model.py
    --vllm-python FILE    the Python of `make vllm`

The server is vLLM's own scheduler with its KV cache (live_pages.py), and its pages are read as Kneewatch reads them.
Beside each forecast is one by the room of all blocks, as if one kind of attention used the cache.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.capacity.timed_cases import timed_case
from benchmarks.timed.cases import ALL, HYBRIDS, Case
from probe.capacity.model.forecast import forecast
from probe.capacity.model.hints import Hints
from probe.core.result import Capacity
from probe.core.snapshot import ServerSnapshot
from probe.observe.kv_size import kv_size
from probe.report.figures import number, percent
from probe.scrape import engines

_TRUTH = Path(__file__).with_name("truth.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(HYBRIDS))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vllm-python", default=".vllm/bin/python")
    parser.add_argument("--shares", default="0.3,0.55,0.75")
    options = parser.parse_args()
    known = json.loads(_TRUTH.read_text())
    for name in options.cases:
        truth = known[name]["requests_per_second"]
        for share in map(float, options.shares.split(",")):
            shown = list(snapshots(name, share * truth, options.model, options.vllm_python))
            for line in _lines(ALL[name], shown, share, truth):
                print(line, flush=True)


def snapshots(name: str, rate_rps: float, model: Path, vllm_python: str) -> Iterator[ServerSnapshot]:
    """Yield what a server at this rate shows, once a second."""
    command = [vllm_python, "-m", "benchmarks.timed.live_pages", "--model", str(model), "--rate", str(rate_rps), name]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for at_s, page in json.loads(printed):
        yield engines.parse(page, at_ns=round(at_s * 1e9), wall_s=at_s)


def of_case(case: Case, shown: Sequence[ServerSnapshot]) -> Capacity:
    """Return the forecast with the server's flags known, as on a server that shows them."""
    asked, hints = timed_case(case.name), Hints(case.max_num_seqs, case.max_num_batched_tokens)
    return forecast(shown, asked.workload, asked.objectives, hints)


def _lines(case: Case, shown: Sequence[ServerSnapshot], share: float, truth: float) -> Iterator[str]:
    by_blocks = [replace(one, kv_cache_tokens=one.value("kv_block_tokens"), others={}, running=None) for one in shown]
    for words, seen in (("as it is", shown), ("by the room of all blocks", by_blocks)):
        found, size = of_case(case, seen), kv_size(seen)
        rps = found.requests_per_second
        error = "none" if rps is None else f"{rps / truth - 1:+.1%}"
        is_held = rps is not None and (found.lower or 0.0) <= truth <= (found.upper or float("inf"))
        held = "held" if is_held else "NOT held"
        tokens = number(size.tokens if size is not None else None)
        yield (
            f"{case.name} at {percent(share)}, {words}: truth {number(truth)}, {error}, [{number(found.lower)},"
            f" {number(found.upper)}] {held}; {tokens} tokens; {found.reason}"
        )


if __name__ == "__main__":
    main()
