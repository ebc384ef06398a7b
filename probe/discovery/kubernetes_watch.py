"""Objects of one resource of the Kubernetes API, by their labels: listed once and then watched.

In: the resource, the namespace, the labels. Out: each object and each change of one within a second, to whoever keeps
them. The service account needs to `list` and `watch` that resource in that namespace, and nothing else.

A list has a resourceVersion, from which a watch goes on; each event and each bookmark brings a newer one. A watch that
ends or is lost is taken up again where it was; after 410 Gone, or an error in its midst, objects are listed anew.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from probe.discovery.polling import Backoff, ProblemReporter
from probe.discovery.types import State
from probe.kubernetes.client import FORBIDDEN, GONE, KubernetesClient, KubernetesError, KubernetesStatus
from probe.kubernetes.objects import KubernetesObject

_PAGE = "100"  # a megabyte or so: larger ones would hold up the event loop that stamps canaries
_WATCH_S = (240.0, 300.0)  # after which the server ends a watch: not all of them at once
_LATE_S = 15.0  # by which a server may end it later
_STEADY_S = 2.0  # a watch that lasted so long was no failure

_Read = TypeVar("_Read", bound=KubernetesObject)
_Taken_contra = TypeVar("_Taken_contra", bound=KubernetesObject, contravariant=True)


class WatchCache(Protocol[_Taken_contra]):
    """Keeps what lists and watches tell, and says what was found in it."""

    def replace(self, objects: Iterable[_Taken_contra], /) -> None:
        """A list: there are no others."""
        ...

    def put(self, one: _Taken_contra, /) -> None:
        """One that is new or has changed."""
        ...

    def remove(self, name: str, /) -> None: ...

    @property
    def state(self) -> State: ...

    @property
    def problem(self) -> str | None:
        """What keeps servers from being found, but for their not being ready."""
        ...


@dataclass(frozen=True, slots=True)
class WatchedResource(Generic[_Read]):
    """What is asked for: its `name` as a Role has it, below which `api`, and as what an object of it is read."""

    name: str
    api: str
    kind: type[_Read]

    def path(self, namespace: str) -> str:
        return f"/{self.api}/namespaces/{namespace}/{self.name}"


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class ObjectWatch(Generic[_Read]):
    """The objects with some labels, for as long as `follow` goes on."""

    def __init__(
        self,
        resource: WatchedResource[_Read],
        selector: str,
        kept: WatchCache[_Read],
        *,
        namespace: str | None,
        told: ProblemReporter,
        connect: Callable[[], AbstractAsyncContextManager[KubernetesClient]],
    ) -> None:
        """`namespace` None: that of the cluster which `connect` opens."""
        self.namespace = namespace or ""
        self._resource, self._selector = resource, selector
        self._kept = kept
        self._decoder = msgspec.json.Decoder(resource.kind)
        self._wanted_namespace = namespace
        self._told = told
        self._connect = connect
        self._version: str | None = None  # what we have seen of the objects; None: they have to be listed
        self._known = False
        self._backoff = Backoff()
        self._steady = False  # the watch that runs has lasted
        self._open = False  # there is a watch
        self._lost = 0  # watches in a row before one was steady

    @property
    def state(self) -> State | None:
        """What was found; None: nothing has been listed yet."""
        return self._kept.state if self._known else None

    async def follow(self, changed: Callable[[], None]) -> None:
        """Endless. Calls `changed` when `state` may be another."""
        self._version = None
        while True:
            try:
                async with self._connect() as cluster:  # anew after each failure: certificates may have changed
                    self.namespace = self._wanted_namespace or cluster.namespace
                    while True:
                        await self._list_and_watch(cluster, changed)
            except KubernetesError as error:
                if error.status == GONE:
                    self._version = None
                elif not self._open or self._lost:  # that one watch is lost is no news
                    self._told.problem(self._words(error))
                self._lost += self._open
            except msgspec.DecodeError as error:
                self._version = None
                self._told.problem(f"{self._what}: the API server sends something else: {error}")
            self._open = False
            await asyncio.sleep(self._backoff.next_s())

    async def _list_and_watch(self, cluster: KubernetesClient, changed: Callable[[], None]) -> None:
        """Until the server ends the watch in good order. Raises ClusterError, and msgspec.DecodeError."""
        if self._version is None:
            objects, self._version = await self._list(cluster)
            self._kept.replace(objects)
            self._known = True
            changed()
        async with self._watch(cluster, self._version) as lines:
            self._tell()
            async for line in lines:
                self._take(msgspec.json.decode(line, type=_Event))
                self._tell()
                changed()
        self._open = False
        if not self._steady:
            await asyncio.sleep(self._backoff.next_s())

    async def _list(self, cluster: KubernetesClient) -> tuple[list[_Read], str]:
        """All objects, page by page, and the version that they are all of."""
        objects: list[_Read] = []
        params = {"labelSelector": self._selector, "limit": _PAGE}
        while True:
            page = msgspec.json.decode(await cluster.ask("GET", self._where, params=params), type=_List)
            objects += map(self._decoder.decode, page.items or ())
            if not page.metadata.continue_:
                return objects, page.metadata.resource_version
            params["continue"] = page.metadata.continue_

    @asynccontextmanager
    async def _watch(self, cluster: KubernetesClient, version: str) -> AsyncIterator[AsyncGenerator[bytes]]:
        lasts_s = random.uniform(*_WATCH_S)  # noqa: S311 - it spreads load, and keeps no secret
        params = {
            "labelSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": f"{lasts_s:.0f}",
        }
        self._steady = False
        async with cluster.watch(self._where, lasts_s + _LATE_S, params) as lines:
            steady = asyncio.get_running_loop().call_later(_STEADY_S, self._is_steady)
            self._open = True
            try:
                yield lines
            finally:
                steady.cancel()

    def _is_steady(self) -> None:
        self._steady, self._lost = True, 0
        self._backoff.reset()
        self._tell()

    def _take(self, event: _Event) -> None:
        """Raises ClusterError for what ends a watch."""
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=KubernetesStatus)
            self._version = None  # as client-go does: after any error the objects are listed anew
            raise KubernetesError(f"{status.message} (HTTP {status.code})", status.code)
        if event.type == "BOOKMARK":
            self._version = msgspec.json.decode(event.object, type=KubernetesObject).metadata.resource_version
            return
        one = self._decoder.decode(event.object)
        self._version = one.metadata.resource_version
        if event.type == "DELETED":
            self._kept.remove(one.metadata.name)
        elif event.type in ("ADDED", "MODIFIED"):
            self._kept.put(one)

    def _tell(self) -> None:
        if (problem := self._kept.problem) is not None:
            self._told.problem(f"{self._what} with {self._selector}: {problem}")
        elif self._steady:
            self._told.well()

    @property
    def _where(self) -> str:
        return self._resource.path(self.namespace)

    @property
    def _what(self) -> str:
        return f"{self._resource.name} in {self.namespace or 'the cluster'}"

    def _words(self, error: KubernetesError) -> str:
        mend = ""
        if error.status == FORBIDDEN:
            role = f"a Role in {self.namespace} with the verbs list and watch for {self._resource.name}"
            mend = f"; it needs {role} (docs/discovery.md)"
        return f"{self._what}: {error}{mend}"
