"""A client of the Kubernetes API, in the cluster or by a kubeconfig. The only module that imports lightkube.

    async with open_cluster() as cluster: ...

lightkube finds the API's address and the credentials: the service account's token (read again when the kubelet has
rotated it), a kubeconfig's certificates or its exec plugin. Requests use its HTTP client directly: bytes in and out,
and a watch as lines, because a watch must be resumed where it was lost. Proxies of the environment are not used.

TCP keepalive detects a dead connection within a dozen seconds.
"""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from probe.core.errors import KneewatchError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, check_json, size_text
from probe.core.redactor import SECRETS
from probe.core.text import one_line


class OwnerReference(msgspec.Struct):
    kind: str = ""
    name: str = ""


class ObjectMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class KubernetesObject(msgspec.Struct):
    metadata: ObjectMeta


if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response
    from lightkube.config.kubeconfig import SingleConfig

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
GONE, CONFLICT, NOT_FOUND, FORBIDDEN = 410, 409, 404, 403
_TIMEOUT_S = 10.0
# A hundred pods, or a change of one. A pod has 10 to 30 KB and up to two thousand values.
_LIMITS = JsonLimits(max_bytes=16 * 2**20, max_values=1_000_000, max_depth=64)
_SHORT = 64 * 1024  # its length bounds its unfolded size
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
]


class KubernetesError(KneewatchError):
    """The API cannot be reached, or refused a request. `status`: its HTTP status, if it answered."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class KubernetesStatus(msgspec.Struct):
    """The API's description of a failure."""

    message: str = ""
    code: int = 0


class KubernetesClient:
    """Requests to the API. All methods raise KubernetesError."""

    def __init__(self, client: "AsyncClient", namespace: str) -> None:
        """Take `namespace`: the pod's, or the kubeconfig context's."""
        self.namespace = namespace
        self._client = client

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> bytes:
        """Return the body of the API's answer."""
        headers = {"content-type": "application/json"}
        try:
            asked = self._client.stream(method, path, content=body, params=params, headers=headers)
            async with asyncio.timeout(timeout_s), _begun(asked) as answer:
                content = await _body(answer)
        except TimeoutError:
            raise KubernetesError(f"the API server has not answered within {timeout_s:g} s") from None
        if not answer.is_success:
            raise self._refusal(answer, content)
        self._learn(answer)
        return _utf8(content)

    @asynccontextmanager
    async def watch(
        self, path: str, silent_s: float, params: Mapping[str, str]
    ) -> AsyncIterator[AsyncGenerator[bytes]]:
        """Yield the lines of a watch once its answer has begun. Raise KubernetesError after `silent_s` without data."""
        import httpx2  # noqa: PLC0415 - as in _open

        timeout = httpx2.Timeout(_TIMEOUT_S, read=silent_s)
        async with _begun(self._client.stream("GET", path, params=dict(params), timeout=timeout)) as answer:
            if not answer.is_success:
                raise self._refusal(answer, await _body(answer))
            self._learn(answer)
            async with aclosing(_lines(answer)) as lines:
                yield lines

    def _learn(self, answer: "Response") -> None:
        """Hide the credentials of this request from now on: `Bearer TOKEN` or `Basic LOGIN`."""
        SECRETS.add(answer.request.headers.get("authorization", "").rpartition(" ")[2])

    def _refusal(self, answer: "Response", content: bytes) -> KubernetesError:
        """Return an error with the API's own message, which names the account, the verb and the resource."""
        self._learn(answer)
        try:
            message = msgspec.json.decode(content, type=KubernetesStatus).message
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            message = content.decode("utf-8", "replace")
        words = one_line(message) or answer.reason_phrase
        return KubernetesError(f"{words} (HTTP {answer.status_code})", answer.status_code)


@asynccontextmanager
async def _begun(request: AbstractAsyncContextManager["Response"]) -> AsyncIterator["Response"]:
    """Yield the answer to a request once it has begun. Raise KubernetesError, also for what breaks while it is read."""
    import httpx2  # noqa: PLC0415 - as in _open

    try:
        async with AsyncExitStack() as held:
            try:
                answer = await held.enter_async_context(request)
            except Exception as error:  # of httpx2, TLS, or whatever fetches the credentials
                raise _failure(error) from error
            yield answer
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        raise _failure(error) from error


@asynccontextmanager
async def open_cluster(account: Path = ACCOUNT) -> AsyncIterator[KubernetesClient]:
    """Connect to the cluster, for the context. Raise KubernetesError. `account`: the service account's folder."""
    client, namespace = await asyncio.to_thread(_open_alone, account)  # imports, and reads files
    try:
        yield KubernetesClient(client, namespace)
    finally:
        await client.aclose()


# lightkube has msgspec build the types of a kubeconfig at their first use, and two threads that do so at once crash it.
_opening = threading.Lock()


def _open_alone(account: Path) -> tuple["AsyncClient", str]:
    with _opening:
        return _open(account)


def _open(account: Path) -> tuple["AsyncClient", str]:
    try:
        import httpx2  # noqa: PLC0415 - of an extra, and slow to import
        from lightkube.config.client_adapter import ConnectionParams  # noqa: PLC0415
    except ImportError:
        raise KubernetesError("the package lightkube is not installed; pip install 'kneewatch[k8s]'") from None
    config = _config(account)
    try:
        params = ConnectionParams(timeout=httpx2.Timeout(_TIMEOUT_S), trust_env=False).httpx_params(config)
        transport = httpx2.AsyncHTTPTransport(verify=params["verify"], socket_options=_KEEP_ALIVE)
        return httpx2.AsyncClient(**params | {"transport": transport}), config.namespace.strip()
    except Exception as error:  # lightkube and ssl have many for a file that they cannot use
        raise KubernetesError(f"the cluster's certificates cannot be used: {one_line(str(error))}") from error


def _config(account: Path) -> "SingleConfig":
    from lightkube import KubeConfig  # noqa: PLC0415

    file = os.environ.get("KUBECONFIG") or "~/.kube/config"
    inside = (account / "token").exists()
    try:
        config = (KubeConfig.from_service_account(account) if inside else KubeConfig.from_file(file)).get()
    except Exception as error:  # of lightkube, YAML, or the file system
        if inside:
            raise KubernetesError(
                f"the service account in {account} cannot be used: {one_line(repr(error))}"
            ) from error
        if Path(file).expanduser().is_file():
            # The part of the file that a parser quotes may be a secret.
            why = "it is not YAML" if isinstance(error, yaml.YAMLError) else one_line(repr(error))
            raise KubernetesError(f"the kubeconfig {file} cannot be used: {why}") from error
        raise KubernetesError(
            f"no service account is mounted (automountServiceAccountToken), and the kubeconfig {file} does not exist"
        ) from None
    if config is None or config.user is None:
        raise KubernetesError(f"the kubeconfig {file} names no context with a user; set current-context")
    return config


async def _body(answer: "Response") -> bytes:
    """Return the body. Raise KubernetesError if it is over a limit."""
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > _LIMITS.max_bytes:
            raise KubernetesError(f"the API server sent more than {size_text(_LIMITS.max_bytes)}")
    return _checked(bytes(body))


async def _lines(answer: "Response") -> AsyncGenerator[bytes]:
    """Split at line feeds only: an annotation may contain the other line ends that Unicode knows."""
    rest = bytearray()
    async for piece in answer.aiter_bytes():
        if b"\n" not in piece:
            rest += piece
            if len(rest) > _LIMITS.max_bytes:
                raise KubernetesError(f"the API server sent a line of more than {size_text(_LIMITS.max_bytes)}")
            continue
        *whole, last = (bytes(rest) + piece).split(b"\n")
        rest = bytearray(last)
        for line in filter(None, whole):
            yield _utf8(_checked(line))


def _checked(data: bytes) -> bytes:
    """Return the JSON unchanged. Raise KubernetesError if it is over a limit."""
    try:
        if len(data) > _SHORT:
            check_json(data, _LIMITS)
    except ForeignJsonError as error:
        raise KubernetesError(f"the API server sent JSON that {error}") from None
    return data


def _utf8(data: bytes) -> bytes:
    """Return the JSON unchanged. Raise KubernetesError if it is not UTF-8, which msgspec's own errors do not cover."""
    try:
        data.decode()
    except UnicodeDecodeError:
        raise KubernetesError("the API server sent JSON that is not UTF-8") from None
    return data


def _failure(error: Exception) -> KubernetesError:
    """Return the error for an exception of the HTTP client or of a credentials plugin."""
    words = one_line(str(error)) or type(error).__name__
    return KubernetesError(f"the API server cannot be reached: {words}")
