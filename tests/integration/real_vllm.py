"""The real vLLM on the CPU with a tiny model of random weights.

`RealVllm` starts the OpenAI server, is ready only once it has generated a token, and can be killed and
started again on the same port. 64 KV blocks of 32 tokens are few enough to preempt under load.
"""

import json
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
from process import SERVER_CORE, Process, eventually, pinned

from probe.runtime.kept_program import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = "tiny"
QUEUE = 64  # sequences in the server at most; more are refused
STARTUP_S = 600.0  # about 35 s on an idle core; minutes where others compute

_FLAGS = ("--load-format=dummy", "--block-size=32", "--enforce-eager")
LIMITS = (
    "--max-model-len=1024",
    "--max-num-seqs=16",
    "--max-num-active-seqs=16",
    "--num-gpu-blocks-override=64",
    "--max-num-batched-tokens=512",
    f"--max-num-queued-reqs={QUEUE}",
    "--enable-per-request-metrics",
)
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /sleep
    "OMP_NUM_THREADS": "1",
}
_COUNTERS = ("vllm:request_success_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")


class RealVllm:
    """One server: `base_url`, its own counters, and a life that a test may end."""

    def __init__(
        self,
        python: str,
        folder: Path,
        limits: Sequence[str] = LIMITS,
        sizes: Mapping[str, object] | None = None,
        *,
        has_plugin: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the server. `limits` are flags for lengths and batch; `sizes` override those of tiny_model.py.

        `has_plugin`: with Kneewatch's plugin, as where Kneewatch is installed beside vLLM.
        """
        self._limits = limits
        self.environment = {**_ENVIRONMENT, **(_installed(folder) if has_plugin else {}), **(environment or {})}
        self.python, self.model_folder = python, folder / "model"
        self.log = folder / "vllm.log"
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._process: Process | None = None
        self._build_model(sizes or {})

    def _build_model(self, sizes: Mapping[str, object]) -> None:
        command = [self.python, str(HERE / "tiny_model.py"), str(self.model_folder), json.dumps(dict(sizes))]
        subprocess.run(command, check=True, timeout=120)

    def command(self, port: str) -> list[str]:
        """Return the command that starts it on this port, on the servers' core."""
        command = [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model_folder)]
        command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", port, *_FLAGS]
        return pinned([*command, *self._limits], SERVER_CORE)

    def start(self) -> None:
        """Start the server and wait until it has generated a token."""
        self._process = Process(self.command(str(self.port)), self.log, env=self.environment)
        self._process.ready(self.generates, within_s=STARTUP_S)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """Of the API server, which the engine shares a process group with."""
        assert self._process is not None
        return self._process.pid

    def generates(self) -> bool:
        """Report whether it answers with a token: /health returns 200 even while the engine stands still."""
        body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0}
        try:
            answer = httpx.post(f"{self.base_url}/v1/completions", json=body, timeout=20, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.is_success and answer.json()["usage"]["completion_tokens"] == 1

    def metrics(self) -> dict[str, float]:
        """Return its own series, summed over all labels."""
        page = httpx.get(f"{self.base_url}/metrics", timeout=20, trust_env=False).raise_for_status().text
        totals: dict[str, float] = {}
        for line in page.splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    def settled_metrics(self) -> dict[str, float]:
        """Return the same once nothing runs and the counters stand still: they lag the answers by a moment."""
        seen = [self.metrics()]

        def settled() -> bool:
            seen.append(self.metrics())
            return seen[-1]["vllm:num_requests_running"] == 0 and all(
                seen[-1][name] == seen[-2][name] for name in _COUNTERS
            )

        eventually(settled, within_s=15, what="an idle server")
        return seen[-1]

    def kill(self) -> None:
        """Kill API server, engine and worker with SIGKILL, as the kernel does when memory is short."""
        if self._process:
            self._process.kill()

    def stop(self) -> None:
        if self.alive and self._process:
            self._process.terminate(60)


def _installed(folder: Path) -> dict[str, str]:
    """Return the environment in which Kneewatch's plugin is installed: its code, and the entry point of its package."""
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = folder / "installed" / "kneewatch-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kneewatch\nVersion: 0\n")
    lines = [
        line
        for group, points in package["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {"PYTHONPATH": f"{metadata.parent}:{ROOT}"}
