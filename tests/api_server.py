"""A Kubernetes API server on loopback, as far as discovery and locks ask one: pods and leases.

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

NAMESPACE = "serving"
ACCOUNT = "system:serviceaccount:monitoring:kneewatch"
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
    padding: int = 0,
) -> Object:
    """A pod as kubelets report it. `padding`: bytes of what else stands in one."""
    found: Object = {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid or f"uid-of-{name}",
            "labels": {"app": "qwen"} if labels is None else labels,
            "annotations": {"filler": "x" * padding, "line": "a\u0085b\u2028c"},
        },
        "spec": {
            "nodeName": "node-0",
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


@dataclass(frozen=True, slots=True)
class Change:
    version: int
    kind: str
    before: Object | None
    after: Object


@dataclass(eq=False, slots=True)
class Watcher:
    selector: str
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)  # None: the end


class ApiServer:
    """What the test sees of it, and what it does to it."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self.port = 0
        self.version = 100
        self.compacted = 0
        self.pods: dict[str, Object] = {}
        self.leases: dict[str, Object] = {}
        self.changes: list[Change] = []
        self.watchers: set[Watcher] = set()
        self.asked: list[str] = []  # method and target of every request
        self.forbidden: set[str] = set()  # "list pods"
        self.gone_as_status = False
        self.ends_watches = False
        self.answering = asyncio.Event()  # cleared: requests are taken, and not answered
        self.answering.set()
        self.tokens: list[str] = []
        self.wants_token: str | None = None
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, new: Object) -> None:
        """A pod that is new or changed."""
        name = new["metadata"]["name"]
        before = self.pods.get(name)
        self._change("ADDED" if before is None else "MODIFIED", before, new)
        self.pods[name] = new

    def delete(self, name: str) -> None:
        self._change("DELETED", self.pods[name], deepcopy(self.pods.pop(name)))

    def bookmark(self, kind: str = "Pod") -> None:
        """Tells all watchers the newest version, as a real one does every minute or so."""
        self.version += 1
        event = {"type": "BOOKMARK", "object": {"kind": kind, "metadata": {"resourceVersion": str(self.version)}}}
        self.tell(json.dumps(event).encode())

    def error(self, code: int, message: str) -> None:
        """An error in the midst of all watches."""
        self.tell(json.dumps({"type": "ERROR", "object": _status(code, message)}).encode())

    def tell(self, line: bytes) -> None:
        for watcher in self.watchers:
            watcher.lines.put_nowait(line + b"\n")

    def compact(self) -> None:
        """Forgets what has changed so far: whoever is behind has to list."""
        self.compacted = self.version
        self.changes.clear()

    def end_watches(self) -> None:
        """In good order, as after timeoutSeconds."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(None)

    def cut(self) -> None:
        """All connections, without a word."""
        for writer in self._connections:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Nothing listens any more."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._server = None

    async def start(self) -> None:
        """On the port that it had before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def lists(self) -> int:
        """How often pods were listed."""
        return sum("/pods?" in one and "watch=true" not in one for one in self.asked)

    def watches(self) -> int:
        """How often they were watched. Of those the `watchers` may be fewer, and one whose client has gone more."""
        return sum("watch=true" in one for one in self.asked)

    def kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for this server, written there."""
        config = {
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": NAMESPACE}}],
            "users": [{"name": "me", "user": {"token": "of-the-test"}}],
        }
        path.write_text(json.dumps(config))
        return path

    def _change(self, kind: str, before: Object | None, after: Object) -> None:
        self.version += 1
        after["metadata"]["resourceVersion"] = str(self.version)
        change = Change(self.version, kind, before, after)
        self.changes.append(change)
        for watcher in self.watchers:
            if (line := _event(change, watcher.selector)) is not None:
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
                if self.wants_token is not None and self.tokens[-1] != f"Bearer {self.wants_token}":
                    _write(writer, 401, _status(401, "Unauthorized"))
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
            case ["api", "v1", "namespaces", namespace, "pods"] if method == "GET":
                if (refused := self._refusal("watch" if "watch" in query else "list", "pods", namespace)) is not None:
                    _write(writer, 403, refused)
                elif "watch" in query:
                    await self._watch(writer, query)
                else:
                    _write(writer, *self._list(query))
            case ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", *name]:
                verb = {"GET": "get", "POST": "create", "PUT": "update"}[method]
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
        group = "coordination.k8s.io" if resource == "leases" else ""
        what = f'resource "{resource}" in API group "{group}" in the namespace "{namespace}"'
        return _status(403, f'{resource} is forbidden: User "{ACCOUNT}" cannot {verb} {what}')

    def _list(self, query: dict[str, str]) -> tuple[int, Object]:
        """One page; the token of the next one says which version the pages are of."""
        version, first = self.version, 0
        if "continue" in query:
            version, first = (int(part) for part in query["continue"].split("-"))
            if version < self.compacted:
                return 410, _status(410, "The provided continue parameter is too old")
        found = [one for name, one in sorted(self.pods.items()) if _matches(query.get("labelSelector", ""), one)]
        last = first + int(query.get("limit", len(found)))
        meta = {"resourceVersion": str(version)} | ({"continue": f"{version}-{last}"} if last < len(found) else {})
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": found[first:last]}

    async def _watch(self, writer: asyncio.StreamWriter, query: dict[str, str]) -> None:
        since = int(query["resourceVersion"])
        too_old = _status(410, f"too old resource version: {since} ({self.version})")
        if since < self.compacted and self.gone_as_status:
            _write(writer, 410, too_old)
            return
        watcher = Watcher(query.get("labelSelector", ""))
        if since < self.compacted:
            watcher.lines.put_nowait(json.dumps({"type": "ERROR", "object": too_old}).encode() + b"\n")
            watcher.lines.put_nowait(None)
        for change in self.changes:
            if change.version > since and (line := _event(change, watcher.selector)) is not None:
                watcher.lines.put_nowait(line)
        if self.ends_watches:
            watcher.lines.put_nowait(None)
        self.watchers.add(watcher)
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
        if verb == "get":
            return (200, self.leases[name]) if name in self.leases else (404, _not_found(name))
        new = json.loads(body)
        name = name or new["metadata"]["name"]
        old = self.leases.get(name)
        if verb == "create" and old is not None:
            return 409, _status(409, f'leases.coordination.k8s.io "{name}" already exists')
        if verb == "update" and old is None:
            return 404, _not_found(name)
        if old is not None and new["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return 409, _status(409, f'Operation cannot be fulfilled on leases "{name}": the object has been modified')
        self.version += 1
        new["metadata"] |= {"resourceVersion": str(self.version), "name": name, "uid": f"uid-of-{name}"}
        self.leases[name] = new
        return (201 if verb == "create" else 200), new


@asynccontextmanager
async def api_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
    """Listens while the block runs."""
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


def _event(change: Change, selector: str) -> bytes | None:
    """The change as this watcher sees it: a pod that has lost its labels is gone, one that has got them is new."""
    was = change.before is not None and _matches(selector, change.before)
    is_there = change.kind != "DELETED" and _matches(selector, change.after)
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
