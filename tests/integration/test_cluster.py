"""The way to the API: a pod's account and its tokens, kubeconfigs, and one line for what does not work."""

import asyncio
import json
import os
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from api_server import ApiServer, api_server, pod
from both_loops import Run

from probe.core.text import one_line
from probe.kubernetes.client import KubernetesClient, KubernetesError, open_cluster

PODS = "/api/v1/namespaces/serving/pods"
NOWHERE = Path("/nowhere")


def account(directory: Path, api: ApiServer, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the files that the kubelet mounts for a service account."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    authority.cert_pem.write_to_path(directory / "ca.crt")
    (directory / "namespace").write_text("monitoring\n")
    (directory / "token").write_text("first")
    return directory


@pytest.mark.fault(
    "KU27",
    "The service account's token is rotated",
    area="Kubernetes",
    users_see="nothing",
    stays="it is read again",
)
def test_in_a_pod_its_account_is_used_and_a_rotated_token_is_read_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)

    async def story() -> None:
        async with api_server(tls) as api:
            where = account(tmp_path, api, authority, monkeypatch)
            api.put(pod("qwen-a"))
            api.wants_token = "first"
            async with open_cluster(where) as cluster:
                assert cluster.namespace == "monitoring"
                assert json.loads(await cluster.ask("GET", PODS))["items"]
                (where / "token").write_text("second")
                api.wants_token = "second"
                assert json.loads(await cluster.ask("GET", PODS))["items"]
                assert api.tokens == ["Bearer first", "Bearer first", "Bearer second"]
                api.wants_token = "third"
                with pytest.raises(KubernetesError, match=r"^Unauthorized \(HTTP 401\)$") as refused:
                    await cluster.ask("GET", PODS)
                assert refused.value.status == 401
                api.repeats_tokens = True
                with pytest.raises(KubernetesError, match=r"^request headers: Bearer \(hidden\) \(HTTP 401\)$"):
                    await cluster.ask("GET", PODS)
                with pytest.raises(KubernetesError, match=r"^request headers: Bearer \(hidden\) \(HTTP 401\)$"):
                    async with cluster.watch(PODS, 1.0, {"watch": "true"}):
                        pass
                assert one_line("Bearer first, key second\nat first") == "Bearer (hidden), key (hidden) at first"
                (where / "token").unlink()
                with pytest.raises(KubernetesError, match="the API server cannot be reached: Token file"):
                    await cluster.ask("GET", PODS)
                with pytest.raises(KubernetesError, match="the API server cannot be reached: Token file"):
                    async with cluster.watch(PODS, 1.0, {"watch": "true"}):
                        pass

    run(story())


@pytest.mark.fault(
    "KU28",
    "The API server has another authority",
    area="Kubernetes",
    users_see="one line",
    stays="the token is not sent",
)
def test_a_server_with_another_authority_is_not_trusted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)

    async def story() -> None:
        async with api_server(tls) as api:
            async with open_cluster(account(tmp_path, api, trustme.CA(), monkeypatch)) as cluster:
                with pytest.raises(KubernetesError, match="certificate verify failed"):
                    await cluster.ask("GET", PODS)
            assert api.asked == []

    run(story())


@pytest.mark.fault(
    "KU24",
    "A watch that is silent for too long",
    area="Kubernetes",
    users_see="nothing",
    stays="it is opened again",
)
def test_a_watch_that_is_silent_for_too_long_is_lost(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with api_server() as api:
            monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
            params = {"watch": "true", "resourceVersion": "100"}
            async with open_cluster(NOWHERE) as cluster:
                got: list[bytes] = []

                async def read() -> None:
                    async with cluster.watch(PODS, 0.5, params) as lines:
                        async for line in lines:
                            got.append(line)  # noqa: PERF401 - an extend would lose them when the watch is lost

                reading = asyncio.create_task(read())
                await asyncio.sleep(0.2)
                api.put(pod("qwen-a"))
                with pytest.raises(KubernetesError, match="ReadTimeout"):
                    await reading
                assert [json.loads(line)["type"] for line in got] == ["ADDED"], (
                    "a line is a line, whatever stands in it"
                )

    run(story())


@pytest.mark.fault(
    "KU25",
    "The API server vanishes without closing (no FIN)",
    area="Kubernetes",
    users_see="nothing",
    stays="the kernel notices within 12 s",
)
def test_the_kernel_finds_out_when_the_other_end_has_gone_without_a_word(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with api_server() as api:
            monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
            async with open_cluster(NOWHERE) as cluster, cluster._client.stream("GET", PODS) as answer:
                fileno = answer.extensions["network_stream"].get_extra_info("socket").fileno()
                with socket.socket(fileno=os.dup(fileno)) as sock:
                    idle, every, times = (
                        sock.getsockopt(socket.IPPROTO_TCP, option)
                        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                    )
                    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                    assert idle + every * times <= 12
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 12_000
                await answer.aread()

    run(story())


@pytest.mark.parametrize(
    ("kubeconfig", "words"),
    [
        (None, r"no service account is mounted .* and the kubeconfig .* does not exist"),
        ("{", r"the kubeconfig .* cannot be used"),
        ("[]", r"the kubeconfig .* cannot be used"),
        ("{}", r"the kubeconfig .* cannot be used"),
        ({"current-context": "other"}, r"the kubeconfig .* cannot be used: .*Context 'other' not found"),
        ({"contexts": [{"name": "here", "context": {"cluster": "here"}}]}, "names no context with a user"),
        (
            {
                "clusters": [
                    {"name": "here", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority": "no"}}
                ]
            },
            "the cluster's certificates cannot be used",
        ),
    ],
)
@pytest.mark.fault(
    "KU29",
    "A kubeconfig that is missing, empty, broken or names no user",
    area="Kubernetes",
    users_see="one line",
    stays="-",
)
def test_a_kubeconfig_that_does_not_work_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubeconfig: Any, words: str
) -> None:
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    if isinstance(kubeconfig, dict):
        kubeconfig = json.dumps(json.loads(ApiServer().kubeconfig(path).read_text()) | kubeconfig)
    if kubeconfig is not None:
        path.write_text(kubeconfig)

    async def story() -> None:
        with pytest.raises(KubernetesError, match=words) as refused:
            async with open_cluster(NOWHERE):
                pass
        assert "\n" not in str(refused.value)

    run(story())


@pytest.mark.parametrize("printed", ["no JSON", "{}", "[]"])
def test_a_plugin_that_prints_no_token_is_a_failure_of_any_request(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    path = ApiServer().kubeconfig(tmp_path / "kubeconfig")
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "echo", "args": [printed]}
    users = [{"name": "me", "user": {"exec": plugin}}]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"users": users}))
    monkeypatch.setenv("KUBECONFIG", str(path))

    async def story() -> None:
        async with open_cluster(NOWHERE) as cluster:
            with pytest.raises(KubernetesError, match="the API server cannot be reached: "):
                await cluster.ask("GET", PODS)
            with pytest.raises(KubernetesError, match="the API server cannot be reached: "):
                async with cluster.watch(PODS, 1.0, {"watch": "true"}):
                    pass

    run(story())


@pytest.mark.fault(
    "CO28",
    "An optional package is missing",
    area="Configuration",
    users_see="one line that says what to install",
    stays="-",
)
def test_the_extra_that_is_missing_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)

    async def story() -> None:
        with pytest.raises(KubernetesError, match=r"pip install 'kneewatch\[k8s\]'"):
            async with open_cluster(NOWHERE):
                pass

    run(story())


@pytest.mark.fault(
    "KU51",
    "A proxy refuses with a page that is not UTF-8",
    area="Kubernetes",
    users_see="one line with the status",
    stays="-",
)
def test_a_refusal_that_is_not_utf_8_keeps_its_status() -> None:
    answer = httpx2.Response(403, request=httpx2.Request("GET", "http://k"))
    refused = KubernetesClient(httpx2.AsyncClient(), "a")._refusal(answer, b'{"message": "\xff"}')
    assert refused.status == 403
    assert str(refused).isprintable()


def test_half_an_account_is_said_to_be_one(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("x")
    (tmp_path / "namespace").write_text("x")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def story() -> None:
        with pytest.raises(
            KubernetesError, match=r"the service account in .* cannot be used: .*KUBERNETES_SERVICE_HOST"
        ):
            async with open_cluster(tmp_path):
                pass

    run(story())
