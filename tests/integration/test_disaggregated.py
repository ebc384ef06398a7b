"""Prefill and decode on two real vLLMs, which pass KV caches by NIXL: roles, transfers and expired caches are shown.

Needs nixl beside vLLM: `.vllm/bin/pip install --no-deps nixl==1.5.1 nixl-cu12==1.5.1` (it needs no GPU).
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from monitor import Monitor
from process import eventually
from real_vllm import MODEL, RealVllm

from probe.runtime.kept_program import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.long]

LIMITS = ("--max-model-len=1024", "--max-num-seqs=16", "--num-gpu-blocks-override=64", "--max-num-batched-tokens=512")
LEASE_S = 6  # after which a KV cache that nobody has fetched expires
REQUESTS = 3


def _connector(role: str) -> str:
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
    }
    return f"--kv-transfer-config={json.dumps(config)}"


@pytest.fixture(scope="module")
def pair(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealVllm, RealVllm]]:
    """A prefill and a decode server of one model: NIXL refuses servers whose models have different paths."""
    if subprocess.run([vllm_python, "-c", "import nixl"], check=False, capture_output=True).returncode:
        pytest.skip("nixl is not installed beside vLLM")
    folder = tmp_path_factory.mktemp("pair")
    pair = tuple(
        RealVllm(
            vllm_python,
            folder / role,
            (*LIMITS, _connector(role)),
            environment={"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()), "UCX_TLS": "tcp,self,sm"},
        )
        for role in ("kv_producer", "kv_consumer")
    )
    prefill, decode = pair
    decode.model_folder = prefill.model_folder
    try:
        prefill.start()
        decode.start()
        yield prefill, decode
    finally:
        prefill.stop()
        decode.stop()


def _asked(server: RealVllm, prompt: list[int], tokens: int, transfer: dict[str, Any]) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "kv_transfer_params": transfer}
    url = f"{server.base_url}/v1/completions"
    answer: dict[str, Any] = httpx.post(url, json=body, timeout=60, trust_env=False).raise_for_status().json()
    return answer


def _value(monitor: Monitor, series: str) -> float | None:
    found = re.search(rf"^kneewatch_server_{re.escape(series)} (\S+)$", monitor.page("/metrics"), re.MULTILINE)
    return float(found[1]) if found else None


def test_roles_and_transfers_are_those_of_the_servers(pair: tuple[RealVllm, RealVllm], tmp_path: Path) -> None:
    prefill, decode = pair
    targets = [
        {"name": f"llama/{role}", "base_url": server.base_url, "passive": True, "role": role, "scrape": "1s"}
        for role, server in (("prefill", prefill), ("decode", decode))
    ]
    here, there = '{target="llama/prefill"}', '{target="llama/decode"}'
    with Monitor({"targets": targets}, tmp_path) as monitor:
        for i in range(REQUESTS + 1):
            prompt = [(7 * i + j) % 3000 + 5 for j in range(200)]
            first = _asked(prefill, prompt, 1, {"do_remote_decode": True, "do_remote_prefill": False})
            if i < REQUESTS:  # the last one goes nowhere, as when a client has left
                _asked(decode, prompt, 20, first["kv_transfer_params"])

        def expired() -> bool:
            _asked(prefill, [5, 6, 7], 1, {})  # a server that stands still counts nothing
            return _value(monitor, f"kv_transfers_expired_total{here}") == 1

        eventually(expired, within_s=20 * LEASE_S, what="the expired cache")
        assert _value(monitor, 'role{target="llama/decode",role="decode"}') == 1
        assert _value(monitor, f"kv_transfers_total{there}") == REQUESTS
        assert _value(monitor, f"kv_transfers_total{here}") == 0
        assert _value(monitor, f"kv_transfer_failures_total{there}") == 0
        assert _value(monitor, f"external_cache_hits_total{there}") == REQUESTS * 200
        assert (_value(monitor, f"kv_transfer_bytes_total{there}") or 0) > 0
        assert (_value(monitor, f"kv_transfer_seconds_total{there}") or 0) > 0
