"""`kneewatch tune` with a real vLLM of known timing: `python -m benchmarks.timed.tune CASE --knob NAME=BASE,VALUE`.

    --knob NAME=BASE,VALUE,...      as of tune; the base is the case's own value
    --vllm-python .vllm/bin/python  the Python of `make vllm`
    --out FOLDER                    the record, each result, and the server's output
    further options                 those of tune

Needs PYTHONPATH=tests/integration, two cores, and nothing else on the machine. `kneewatch tune` starts the server,
with the command that is printed first; each measurement takes about three minutes. Exits as tune does.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks.timed.cases import CASES, MAX_MODEL_LEN, Case
from benchmarks.timed.served import MODEL, ROOT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--knob", action="append", required=True)
    parser.add_argument("--vllm-python", default=".vllm/bin/python")
    parser.add_argument("--out", type=Path, required=True)
    options, more = parser.parse_known_args()
    case = CASES[options.case]
    start = shlex.join(start_command(case, options.vllm_python, options.out.with_suffix(".model")))
    print(start, flush=True)
    asked = [word for knob in options.knob for word in ("--knob", knob)]
    command = ["tune", "--start", start, *asked, *_conditions(case), "--out", str(options.out), *more]
    return subprocess.run([sys.executable, "-m", "probe", *command], cwd=ROOT, check=False).returncode


def start_command(case: Case, vllm_python: str, folder: Path) -> list[str]:
    """Return the command of the case's server, with `{port}`. Makes its model in the folder."""
    from real_vllm import RealVllm  # noqa: PLC0415 - from tests/integration

    folder.mkdir(parents=True, exist_ok=True)
    limits = (
        f"--max-model-len={MAX_MODEL_LEN}",
        f"--max-num-seqs={case.max_num_seqs}",
        f"--num-gpu-blocks-override={case.num_blocks}",
        f"--max-num-batched-tokens={case.max_num_batched_tokens}",
        "--distributed-executor-backend=benchmarks.timed.executor.TimedExecutor",
    )
    server = RealVllm(vllm_python, folder, limits, {"max_position_embeddings": MAX_MODEL_LEN})
    environment = {**server.environment, "KNEEWATCH_TIMED_CASE": case.name, "PYTHONPATH": str(ROOT)}
    return ["env", *(f"{name}={value}" for name, value in environment.items()), *server.command("{port}")]


def _conditions(case: Case) -> list[str]:
    return [
        *("--prompt-tokens", str(case.prompt_tokens), "--output-tokens", str(case.output_tokens)),
        *("--ttft", f"{case.ttft_ms:g}ms", "--tpot", f"{case.tpot_ms:g}ms", "--model", MODEL),
    ]


if __name__ == "__main__":
    sys.exit(main())
