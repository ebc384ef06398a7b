"""Load generators against a server of known timings: `python -m benchmarks.client`, from the repository.

    --install                     make the peers' environments first (gigabytes)
    --clients kneewatch,vllm      only these
    --levels 1,16,64,256,512      streams at which TTFT and ITL are held against the truth
    --out FILE                    the record; benchmarks/results/client-DATE.json

The server has one core, each client, in its turn, another. CPU per token is taken from the difference between a long
and a short run, so that a client's start does not count. Prints tables, and writes all that was measured as JSON.
"""

import argparse
import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.client import report
from benchmarks.client.peers import OUTPUT_TOKENS, PROMPT_TOKENS, ROOT, Client, clients
from benchmarks.client.setup_peers import install
from benchmarks.client.trial import Cores, Server, Trial, cores, run, truth_server

TTFT_MS, ITL_MS = 50.0, 10.0
FAST_ITL_MS = 0.25  # 512 streams would be 800,000 tokens a second: more than any client reads
FAST_STREAMS = 512
CPU_STREAMS = 64
# Requests at a level: enough for a p99, and none takes longer than half a minute where the client keeps up.
_WAVES = {1: 20, 16: 8, 64: 12, 256: 6, 512: 5}
_FAST_WAVES = 8


def main() -> int:
    options = _options()
    if options.install:
        install()
    chosen = [client for client in clients() if not options.clients or client.name in options.clients.split(",")]
    missing = {client.name: why for client in chosen if (why := client.missing())}
    for why in missing.values():
        print(f"missing: {why}", file=sys.stderr)
    levels = [int(level) for level in options.levels.split(",")]
    pinned = cores()
    with (
        truth_server(pinned.server, ttft_ms=TTFT_MS, itl_ms=ITL_MS) as usual,
        truth_server(pinned.server, ttft_ms=TTFT_MS, itl_ms=FAST_ITL_MS) as fast,
    ):
        measured = [
            _measure(client, usual=usual, fast=fast, pinned=pinned, levels=levels, options=options)
            for client in chosen
            if client.name not in missing
        ]
    summaries = [report.summary(trials) for trials in measured]
    goals = report.goals(summaries)
    print(report.table(summaries))
    if pinned.second == pinned.server:
        print("two cores only: the second worker shares the server's, so two workers cannot show what they could\n")
    verdicts = {True: "met", False: "NOT MET", None: "not measured"}
    for goal in goals:
        print(f"{verdicts[goal['met']]:13}{goal['figure']}: {goal['measured']} ({goal['goal']})")
    out = Path(options.out or ROOT / "benchmarks" / "results" / f"client-{datetime.now(UTC):%Y-%m-%d}.json")
    out.write_text(json.dumps({**_about(pinned), "missing": missing, "goals": goals, "clients": summaries}, indent=1))
    print(f"written: {out}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--clients", default="")
    parser.add_argument("--levels", default=",".join(map(str, _WAVES)))
    parser.add_argument("--waves", type=int, help="requests of a stream, instead of those that fit the level")
    parser.add_argument("--no-fast", action="store_true", help="leave the largest rate out")
    parser.add_argument("--out")
    return parser.parse_args()


def _measure(
    client: Client, *, usual: Server, fast: Server, pinned: Cores, levels: list[int], options: argparse.Namespace
) -> report.Trials:
    """Run a client's trials. A second core matters only for the largest rate, so nothing else is measured with two."""

    def trial(server: Server, concurrency: int, waves: int) -> Trial:
        found = run(client, server, pinned.of(client), concurrency, concurrency * waves)
        state = found.error or f"{found.wall_s:.1f} s, server late p99 {found.truth['late_p99_ms']:.2f} ms"
        print(f"{client.name} {concurrency} x {waves}: {state}", file=sys.stderr, flush=True)
        return found

    tried: dict[int, Trial] = {}
    few = None
    if client.cores == 1:
        tried = {level: trial(usual, level, options.waves or _WAVES.get(level, 6)) for level in levels}
        few = trial(usual, CPU_STREAMS, 1) if CPU_STREAMS in tried else None
    rate = None if options.no_fast else trial(fast, FAST_STREAMS, _FAST_WAVES)
    return report.Trials(client.name, client.version() or "", [*tried.values()], few, tried.get(CPU_STREAMS), rate)


def _about(pinned: Cores) -> dict[str, Any]:
    """Return when, where and how the benchmark ran."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks.client " + " ".join(sys.argv[1:]),
        "machine": {
            "cpu": next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine()),
            "cores": sum(line.startswith("processor") for line in lines),
            "kernel": platform.release(),
            "server_core": pinned.server,
            "client_core": pinned.client,
            "second_worker_core": pinned.second,
        },
        "python": platform.python_version(),
        "load": {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "loop": "closed"},
        "truth": {"ttft_ms": TTFT_MS, "itl_ms": ITL_MS, "fast_itl_ms": FAST_ITL_MS, "fast_streams": FAST_STREAMS},
    }


if __name__ == "__main__":
    sys.exit(main())
