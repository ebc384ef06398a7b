"""A Kubernetes API server on loopback, as far as discovery and locks ask one: pods, EndpointSlices and leases.

It keeps what a real one keeps: one growing resourceVersion, a history that can be compacted, pages that are of one
version, updates that are refused unless they know the newest version. And it fails as real ones do: connections cut,
nothing listening, no answer, 403, 410 as a status or in a watch.

    async with api_server() as api:
        api.put(pod("qwen-0", "10.0.0.1"))
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_VERBS = {"POST": "create", "PUT": "update", "DELETE": "delete"}
NAMESPACE = "serving"
ACCOUNT = "system:serviceaccount:monitoring:kneewatch"
GROUPS = {"pods": "", "endpointslices": "discovery.k8s.io", "leases": "coordination.k8s.io"}
KINDS = {"Pod": "pods", "EndpointSlice": "endpointslices"}  # what can be listed and watched
Object = dict[str, Any]


def pod(
    name: str,
    ip: str = "10.0.0.1",
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    uid: str = "",
    terminating: bool = False,
    phase: str = "Running",
    port: str = "http",
    node: str = "node-0",
    padding: int = 0,
) -> Object:
    """Return a pod as kubelets report it, padded by this many bytes."""
    found: Object = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid or f"uid-of-{name}",
            "labels": {"app": "qwen"} if labels is None else labels,
            "annotations": {"filler": "x" * padding, "line": "a\u0085b\u2028c"},
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": "vllm", "image": "vllm/vllm-openai:v0.32", "ports": [{"name": port, "containerPort": 8000}]},
                {"name": "logs", "image": "logs"},
            ],
        },
        "status": {
            "phase": phase,
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
        },
    }
    if terminating:
        found["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z"
        found["metadata"]["deletionGracePeriodSeconds"] = 30
    if not ip:
        del found["status"]["podIP"], found["status"]["podIPs"]
    return found


def endpoint(address: str, pod: str = "", *, uid: str = "", zone: str = "zone-a", **conditions: bool | None) -> Object:
    """Return an endpoint of a slice. `pod` names its pod, "" for none. Conditions that are not given are left out."""
    found: Object = {"addresses": [address], "conditions": conditions, "nodeName": "node-0", "zone": zone}
    if pod:
        found["targetRef"] = {"kind": "Pod", "namespace": NAMESPACE, "name": pod, "uid": uid or f"uid-of-{pod}"}
    return found


def endpoint_slice(
    name: str,
    *endpoints: Object,
    service: str = "qwen",
    family: str = "IPv4",
    ports: list[Object] | None = None,
    padding: int = 0,
) -> Object:
    """Return a slice as the controller writes it for Services with a selector, and people for those without."""
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-of-{name}",
            "labels": {"kubernetes.io/service-name": service},
            "annotations": {"filler": "x" * padding},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports,
    }


@dataclass(frozen=True, slots=True)
class Change:
    resource: str
    version: int
    kind: str
    before: Object | None
    after: Object


@dataclass(eq=False, slots=True)
class Watcher:
    resource: str
    selector: str
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)  # None: the end


class ApiServer:
    """What the test sees of it, and what it does to it."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self.port = 0
        self.version = 100
        self.compacted = 0
        self.kept: dict[str, dict[str, Object]] = {resource: {} for resource in KINDS.values()}
        self.leases: dict[str, Object] = {}
        self.changes: list[Change] = []
        self.watchers: set[Watcher] = set()
        self.asked: list[str] = []  # method and target of every request
        self.forbidden: set[str] = set()  # "list pods"
        self.gone_as_status = False
        self.ends_watches = False
        self.answering = asyncio.Event()  # cleared: requests are taken, and not answered
        self.answering.set()
        self.takes_s = 0.0  # how long every answer takes
        self.tokens: list[str] = []
        self.wants_token: str | None = None
        self.repeats_tokens = False  # in what it refuses, as some proxies do
        self.is_endless = False  # lists go on with empty pages
        self._watches = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pods(self) -> dict[str, Object]:
        return self.kept["pods"]

    def put(self, new: Object) -> None:
        """Add or change a pod or a slice."""
        resource, name = KINDS[new["kind"]], new["metadata"]["name"]
        before = self.kept[resource].get(name)
        self._change(resource, "ADDED" if before is None else "MODIFIED", before, new)
        self.kept[resource][name] = new

    def delete(self, name: str, resource: str = "pods") -> None:
        self._change(resource, "DELETED", self.kept[resource][name], deepcopy(self.kept[resource].pop(name)))

    def bookmark(self) -> None:
        """Send all watchers the newest version, as a real server does about every minute."""
        self.version += 1
        event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
        self.tell(json.dumps(event).encode())

    def error(self, code: int, message: str) -> None:
        """Send an error in the middle of all watches."""
        self.tell(json.dumps({"type": "ERROR", "object": _status(code, message)}).encode())

    def tell(self, line: bytes) -> None:
        for watcher in self.watchers:
            watcher.lines.put_nowait(line + b"\n")

    def compact(self) -> None:
        """Forget the changes so far: a watcher that is behind has to list again."""
        self.compacted = self.version
        self.changes.clear()

    def end_watches(self) -> None:
        """End all watches properly, as after timeoutSeconds."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(None)

    def cut(self) -> None:
        """Cut all connections without a word."""
        for writer in self._connections:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._server = None

    async def start(self) -> None:
        """Listen on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def lists(self) -> int:
        """Return how often pods or slices were listed, page by page."""
        return sum("limit=" in one and "/leases" not in one for one in self.asked)

    def watches(self) -> int:
        """Return how many watches have begun. `watchers` may be fewer, or more while one is left of a closed client."""
        return self._watches

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server there."""
        config = {
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": NAMESPACE}}],
            "users": [{"name": "me", "user": {"token": "of-the-test"}}],
        }
        path.write_text(json.dumps(config))
        return path

    def _change(self, resource: str, kind: str, before: Object | None, after: Object) -> None:
        self.version += 1
        after["metadata"]["resourceVersion"] = str(self.version)
        change = Change(resource, self.version, kind, before, after)
        self.changes.append(change)
        for watcher in self.watchers:
            if (line := _event(change, watcher)) is not None:
                watcher.lines.put_nowait(line)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections.add(writer)
        try:
            while True:
                first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = first.split(" ")
                self.asked.append(f"{method} {target}")
                self.tokens.append(headers.get("authorization", ""))
                await self.answering.wait()
                await asyncio.sleep(self.takes_s)
                if self.wants_token is not None and self.tokens[-1] != f"Bearer {self.wants_token}":
                    words = f"request headers: {self.tokens[-1]}" if self.repeats_tokens else "Unauthorized"
                    _write(writer, 401, _status(401, words))
                else:
                    await self._answer(writer, method, target, body)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # streams of Python 3.11 take a cancelled handler for an error
        finally:
            self._tasks.discard(task)
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, target: str, body: bytes) -> None:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match parts.path.strip("/").split("/"):
            case ["api", "v1", "namespaces", namespace, "pods" as resource] | [
                "apis",
                "discovery.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "endpointslices" as resource,
            ] if method == "GET":
                verb = "watch" if "watch" in query else "list"
                if (refused := self._refusal(verb, resource, namespace)) is not None:
                    _write(writer, 403, refused)
                elif verb == "watch":
                    await self._watch(writer, resource, query)
                else:
                    _write(writer, *self._list(resource, query))
            case ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", *name]:
                verb = {"GET": "get" if name else "list", **_VERBS}[method]
                if (refused := self._refusal(verb, "leases", namespace)) is not None:
                    _write(writer, 403, refused)
                else:
                    _write(writer, *self._lease(verb, name[0] if name else "", body))
            case _:
                _write(writer, 404, _status(404, "the server could not find the requested resource"))
        await writer.drain()

    def _refusal(self, verb: str, resource: str, namespace: str) -> Object | None:
        if f"{verb} {resource}" not in self.forbidden:
            return None
        what = f'resource "{resource}" in API group "{GROUPS[resource]}" in the namespace "{namespace}"'
        return _status(403, f'{resource} is forbidden: User "{ACCOUNT}" cannot {verb} {what}')

    def _list(self, resource: str, query: dict[str, str]) -> tuple[int, Object]:
        """Return one page. The token of the next one carries the version of the list."""
        version, first = self.version, 0
        if "continue" in query:
            version, first = (int(part) for part in query["continue"].split("-"))
            if version < self.compacted:
                return 410, _status(410, "The provided continue parameter is too old")
        if self.is_endless:
            return 200, {"kind": "List", "metadata": {"resourceVersion": str(version), "continue": "1-0"}, "items": []}
        there = sorted(self.kept[resource].items())
        found = [one for name, one in there if _matches(query.get("labelSelector", ""), one)]
        last = first + int(query.get("limit", len(found)))
        meta = {"resourceVersion": str(version)} | ({"continue": f"{version}-{last}"} if last < len(found) else {})
        return 200, {"kind": "List", "metadata": meta, "items": found[first:last]}

    async def _watch(self, writer: asyncio.StreamWriter, resource: str, query: dict[str, str]) -> None:
        since = int(query["resourceVersion"])
        too_old = _status(410, f"too old resource version: {since} ({self.version})")
        if since < self.compacted and self.gone_as_status:
            _write(writer, 410, too_old)
            return
        watcher = Watcher(resource, query.get("labelSelector", ""))
        if since < self.compacted:
            watcher.lines.put_nowait(json.dumps({"type": "ERROR", "object": too_old}).encode() + b"\n")
            watcher.lines.put_nowait(None)
        for change in self.changes:
            if change.version > since and (line := _event(change, watcher)) is not None:
                watcher.lines.put_nowait(line)
        if self.ends_watches:
            watcher.lines.put_nowait(None)
        self.watchers.add(watcher)
        self._watches += 1
        try:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            await writer.drain()
            while (line := await watcher.lines.get()) is not None:
                # In two chunks: where one ends says nothing.
                for piece in (line[: len(line) // 2], line[len(line) // 2 :]):
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await writer.drain()
            writer.write(b"0\r\n\r\n")
        finally:
            self.watchers.discard(watcher)

    def _lease(self, verb: str, name: str, body: bytes) -> tuple[int, Object]:
        if verb == "list":
            return 200, {"kind": "LeaseList", "metadata": {}, "items": [*self.leases.values()]}
        if verb == "get":
            return (200, self.leases[name]) if name in self.leases else (404, _not_found(name))
        return self._write_lease(verb, name, body)

    def _write_lease(self, verb: str, name: str, body: bytes) -> tuple[int, Object]:
        new = json.loads(body)
        if verb == "delete":
            return self._delete_lease(name, new["preconditions"])
        name = name or new["metadata"]["name"]
        old = self.leases.get(name)
        if verb == "create" and old is not None:
            return 409, _status(409, f'leases.coordination.k8s.io "{name}" already exists')
        if verb == "update" and old is None:
            return 404, _not_found(name)
        if old is not None and new["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return 409, _status(409, f'Operation cannot be fulfilled on leases "{name}": the object has been modified')
        self.version += 1
        uid = old["metadata"]["uid"] if old is not None else f"{name}-of-{self.version}"
        new["metadata"] |= {"resourceVersion": str(self.version), "name": name, "uid": uid}
        self.leases[name] = new
        return (201 if verb == "create" else 200), new

    def _delete_lease(self, name: str, only: dict[str, str]) -> tuple[int, Object]:
        if name not in self.leases:
            return 404, _not_found(name)
        meta = self.leases[name]["metadata"]
        if (only["uid"], only["resourceVersion"]) != (meta["uid"], meta["resourceVersion"]):
            return 409, _status(409, f'Operation cannot be fulfilled on leases "{name}": a precondition failed')
        del self.leases[name]
        return 200, {"kind": "Status", "status": "Success"}


@asynccontextmanager
async def api_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
    """Run the server until the block ends."""
    api = ApiServer(tls)
    await api.start()
    try:
        yield api
    finally:
        await api.stop()


def _write(writer: asyncio.StreamWriter, status: int, body: Object) -> None:
    content = json.dumps(body, ensure_ascii=False).encode()
    head = f"HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)


def _event(change: Change, watcher: Watcher) -> bytes | None:
    """Return the change as this watcher sees it: an object that lost its labels is deleted, one that gained them is
    added.
    """
    if change.resource != watcher.resource:
        return None
    was = change.before is not None and _matches(watcher.selector, change.before)
    is_there = change.kind != "DELETED" and _matches(watcher.selector, change.after)
    if not was and not is_there:
        return None
    kind = ("MODIFIED" if was else "ADDED") if is_there else "DELETED"
    return json.dumps({"type": kind, "object": change.after}, ensure_ascii=False).encode() + b"\n"


def _matches(selector: str, found: Object) -> bool:
    pairs = [part.split("=") for part in selector.split(",") if part]
    return all(found["metadata"]["labels"].get(name) == value for name, value in pairs)


def _status(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code}


def _not_found(name: str) -> Object:
    return _status(404, f'leases.coordination.k8s.io "{name}" not found')
