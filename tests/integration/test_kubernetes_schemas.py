"""What the API server of the tests hands out, and what Kneewatch writes to it, by Kubernetes' own schemas.

No real API server runs here. So the objects are checked against its OpenAPI schemas, strictly: an unknown field is one
that a real server would not send, or would drop.
"""

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from api_server import Object, api_server, endpoint, endpoint_slice, pod

from probe.capacity.run.lease_lock import KubernetesLease
from probe.core.clock import SystemClock

VERSIONS = ("1.29", "1.37")  # as in tests/deploy/checks.py
HANDED_OUT = {
    "ready pod": pod("a"),
    "terminating pod without an address": pod("a", "", ready=False, terminating=True, phase="Pending"),
    "slice": endpoint_slice("s", endpoint("10.0.0.1", "a", ready=True, serving=True, terminating=False)),
    "slice of a Service without a selector": endpoint_slice("s", endpoint("fd00::1"), family="IPv6", ports=[]),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", HANDED_OUT)
def test_what_is_handed_out(name: str, version: str) -> None:
    kubernetes_validate.validate(HANDED_OUT[name], version, strict=True)


def test_a_wrong_object_would_be_found() -> None:
    wrong = pod("a")
    wrong["status"]["podIp"] = "10.0.0.1"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_lease_that_kneewatch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    async def written() -> list[Object]:
        async with api_server() as api:
            api.kubeconfig(tmp_path / "kubeconfig")
            async with KubernetesLease("qwen.serving.svc:8000", None, SystemClock()):
                created = deepcopy([*api.leases.values()])
                await asyncio.sleep(1.2)  # until it has been renewed
                return [*created, *deepcopy([*api.leases.values()])]

    leases: list[Any] = asyncio.run(written())
    assert leases[0]["spec"]["renewTime"] != leases[-1]["spec"]["renewTime"]
    for version in VERSIONS:
        for lease in leases:
            kubernetes_validate.validate(lease, version, strict=True)
