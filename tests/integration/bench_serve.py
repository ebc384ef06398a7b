"""`vllm bench serve`, the yardstick that Kneewatch's own figures are held against."""

import json
import subprocess
from pathlib import Path
from typing import Any

from process import CLIENT_CORE, pinned
from real_vllm import HERE, MODEL, RealVllm


def bench_serve(
    server: RealVllm,
    folder: Path,
    *,
    concurrency: int,
    requests: int,
    prompt_tokens: int,
    output_tokens: int,
    seed: int,
) -> dict[str, Any]:
    """Run `vllm bench serve`. Return its result file: median_ttft_ms, median_tpot_ms, completed, total_output_tokens,
    ...
    """
    command = [server.python, str(HERE / "vllm_bench.py"), "bench", "serve", "--backend=openai"]
    command += [f"--base-url={server.base_url}", f"--model={MODEL}", f"--tokenizer={server.model_folder}"]
    command += ["--dataset-name=random", f"--random-input-len={prompt_tokens}", f"--random-output-len={output_tokens}"]
    command += ["--ignore-eos", f"--num-prompts={requests}", f"--max-concurrency={concurrency}", "--num-warmups=1"]
    command += ["--temperature=0", f"--seed={seed}", "--disable-tqdm"]
    command += ["--save-result", f"--result-dir={folder}", f"--result-filename=bench-{seed}.json"]
    done = subprocess.run(
        pinned(command, CLIENT_CORE), check=False, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result: dict[str, Any] = json.loads((folder / f"bench-{seed}.json").read_text())
    return result
