"""vLLM's own scheduler as a process: a step for each line. Runs in vLLM's Python, for vllm_engine.py.

    .vllm/bin/python -m benchmarks.timed.vllm_steps MODEL CASE

Reads JSON lines. With `submit` (number, prompt and output tokens of each request) and `abort` (numbers) it plans a step
and writes what is in it; an empty one completes the step, and writes the requests that have ended with it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.timed.cases import ALL
from benchmarks.timed.virtual_vllm import VirtualVllm


def main() -> None:
    model, name = sys.argv[1:]
    engine = VirtualVllm(Path(model), ALL[name], log_stats=True)
    planned = None
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if asked:
            for request in asked["submit"]:
                engine.submit(*request)
            engine.abort(asked["abort"])
            planned = engine.plan()
            said: dict[str, Any] = {
                "tokens": list(planned.tokens.items()),
                "preempted": list(planned.preempted),
                "sampling": list(planned.sampling),
                "cached": planned.cached,
                "pairs": planned.pairs,
            }
        else:
            assert planned is not None
            said = {"ended": [number for number, _, has_ended in engine.complete(planned) if has_ended]}
        usage, running, waiting = engine.state
        print(json.dumps({**said, "usage": usage, "running": running, "waiting": waiting}), flush=True)


if __name__ == "__main__":
    main()
