"""Discovery by the Kubernetes API: pods by their labels, or the endpoints of a Service.

In: the `discover.kubernetes` section. Out: states (types.py), each change within a second. `ObjectWatch` lists and
watches the resource; pods.py and endpointslices.py find the servers in it. The service account needs `list` and `watch`
on that resource in that namespace, and nothing else.

A list has a resourceVersion, from which a watch continues; each event and each bookmark has a newer one. A watch that
ends or is lost resumes from the last one. After 410 Gone, or an error within the watch, the objects are listed again.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from probe.config.discovery import KubernetesDiscovery
from probe.core.text import one_line
from probe.discovery.endpointslices import SERVICE_NAME, EndpointSlice, Slices
from probe.discovery.pods import Pod, Pods
from probe.discovery.polling import Backoff, ProblemReporter, followed
from probe.discovery.target_groups import MAX_TARGETS
from probe.discovery.types import DiscoveredServer, State, state_of
from probe.kubernetes.client import (
    FORBIDDEN,
    GONE,
    KubernetesClient,
    KubernetesError,
    KubernetesObject,
    KubernetesStatus,
    open_cluster,
)

_PAGE = "100"  # about a megabyte: a larger page would block the event loop, which stamps canaries
_MAX_EMPTY = 100
_WATCH_S = (240.0, 300.0)  # after which the server ends a watch; random, so that they do not all end together
_LATE_S = 15.0  # how much later a server may end it
_STEADY_S = 2.0  # a watch that lasted this long has worked

_Read = TypeVar("_Read", bound=KubernetesObject)
_Taken_contra = TypeVar("_Taken_contra", bound=KubernetesObject, contravariant=True)


class WatchCache(Protocol[_Taken_contra]):
    """The objects of a resource, and the servers found in them."""

    def replace(self, objects: Iterable[_Taken_contra], /) -> None:
        """Replace all objects."""
        ...

    def put(self, one: _Taken_contra, /) -> None:
        """Add or update an object."""
        ...

    def remove(self, name: str, /) -> None: ...

    @property
    def state(self) -> State: ...

    @property
    def problem(self) -> str | None:
        """Return why servers are left out, other than for not being ready; None if none are."""
        ...


@dataclass(frozen=True, slots=True)
class WatchedResource(Generic[_Read]):
    """A resource: its `name` as in a Role, the `api` it belongs to, and the type its objects are decoded to."""

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
    """The objects that a label selector matches, kept up to date while `follow` runs."""

    def __init__(
        self,
        resource: WatchedResource[_Read],
        selector: str,
        cache: WatchCache[_Read],
        *,
        namespace: str | None,
        reporter: ProblemReporter,
        connect: Callable[[], AbstractAsyncContextManager[KubernetesClient]],
    ) -> None:
        """Take `namespace`: None takes the namespace that `connect` determines."""
        self.namespace = namespace or ""
        self._resource, self._selector = resource, selector
        self._cache = cache
        self._decoder = msgspec.json.Decoder(resource.kind)
        self._wanted_namespace = namespace
        self._reporter = reporter
        self._connect = connect
        self._version: str | None = None  # the last resourceVersion; None: list the objects
        self._is_listed = False
        self._backoff = Backoff()
        self._has_lasted = False  # the current watch has run for _STEADY_S
        self._is_open = False  # a watch is running
        self._lost = 0  # watches lost in a row

    @property
    def state(self) -> State | None:
        """Return the servers found; None before the first list."""
        return self._cache.state if self._is_listed else None

    async def follow(self, changed: Callable[[], None]) -> None:
        """Follow the objects until cancelled. Call `changed` when `state` may have changed."""
        self._version = None
        while True:
            try:
                async with self._connect() as cluster:  # again after each failure: certificates may have changed
                    self.namespace = self._wanted_namespace or cluster.namespace
                    while True:
                        await self._list_and_watch(cluster, changed)
            except KubernetesError as error:
                if error.status == GONE:
                    self._version = None
                elif not self._is_open or self._lost:  # one lost watch is normal
                    self._reporter.problem(self._words(error))
                self._lost += self._is_open
            except (msgspec.DecodeError, RecursionError) as error:
                self._version = None
                self._reporter.problem(f"{self._what}: the API server sent an unexpected answer: {error}")
            self._is_open = False
            await asyncio.sleep(self._backoff.next_s())

    async def _list_and_watch(self, cluster: KubernetesClient, changed: Callable[[], None]) -> None:
        """List if necessary, then watch until the server ends it. Raise KubernetesError or msgspec.DecodeError."""
        if self._version is None:
            objects, self._version = await self._list(cluster)
            self._cache.replace(objects)
            self._is_listed = True
            changed()
        async with self._watch(cluster, self._version) as lines:
            self._report()
            async for line in lines:
                self._take(msgspec.json.decode(line, type=_Event))
                self._report()
                changed()
        self._is_open = False
        if not self._has_lasted:
            await asyncio.sleep(self._backoff.next_s())

    async def _list(self, cluster: KubernetesClient) -> tuple[list[_Read], str]:
        """Return all objects, read page by page, and their common resourceVersion."""
        objects: list[_Read] = []
        params = {"labelSelector": self._selector, "limit": _PAGE}
        empty = 0
        while True:
            page = msgspec.json.decode(await cluster.ask("GET", self._where, params=params), type=_List)
            objects += map(self._decoder.decode, page.items or ())
            if len(objects) > MAX_TARGETS:
                raise KubernetesError(f"the API server lists more than {MAX_TARGETS} objects")
            if not page.metadata.continue_:
                return objects, page.metadata.resource_version
            empty = 0 if page.items else empty + 1  # all objects of a page may be filtered out
            if empty > _MAX_EMPTY:
                raise KubernetesError(f"the API server's list does not end: {empty} pages in a row are empty")
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
        self._has_lasted = False
        async with cluster.watch(self._where, lasts_s + _LATE_S, params) as lines:
            steady = asyncio.get_running_loop().call_later(_STEADY_S, self._mark_lasted)
            self._is_open = True
            try:
                yield lines
            finally:
                steady.cancel()

    def _mark_lasted(self) -> None:
        self._has_lasted, self._lost = True, 0
        self._backoff.reset()
        self._report()

    def _take(self, event: _Event) -> None:
        """Apply an event. Raise KubernetesError for one that ends the watch."""
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=KubernetesStatus)
            self._version = None  # as client-go does: list again after any error
            raise KubernetesError(f"{one_line(status.message)} (HTTP {status.code})", status.code)
        if event.type == "BOOKMARK":
            self._version = msgspec.json.decode(event.object, type=KubernetesObject).metadata.resource_version
            return
        one = self._decoder.decode(event.object)
        self._version = one.metadata.resource_version
        if event.type == "DELETED":
            self._cache.remove(one.metadata.name)
        elif event.type in ("ADDED", "MODIFIED"):
            self._cache.put(one)

    def _report(self) -> None:
        if (problem := self._cache.problem) is not None:
            self._reporter.problem(f"{self._what} with {self._selector}: {problem}")
        elif self._has_lasted:
            self._reporter.well()

    @property
    def _where(self) -> str:
        return self._resource.path(self.namespace)

    @property
    def _what(self) -> str:
        return f"{self._resource.name} in {self.namespace or 'the cluster'}"

    def _words(self, error: KubernetesError) -> str:
        hint = ""
        if error.status == FORBIDDEN:
            role = f"a Role in {self.namespace} with the verbs list and watch for {self._resource.name}"
            hint = f"; it needs {role} (docs/discovery.md)"
        return f"{self._what}: {error}{hint}"


PODS = WatchedResource("pods", "api/v1", Pod)
SLICES = WatchedResource("endpointslices", "apis/discovery.k8s.io/v1", EndpointSlice)


class KubernetesSource:
    """The pods or endpoints, and the Service in front of them if the configuration names one."""

    def __init__(
        self,
        config: KubernetesDiscovery,
        scheme: str,
        path: str,
        reporter: ProblemReporter,
        *,
        connect: Callable[[], AbstractAsyncContextManager[KubernetesClient]] = open_cluster,
    ) -> None:
        self._scheme, self._path = scheme, path
        self._port, self._service = config.port, config.service
        self._watched: ObjectWatch[Pod] | ObjectWatch[EndpointSlice]
        if config.selector is not None:
            pods = Pods(config.port, scheme, path)
            self._watched = ObjectWatch(
                PODS, config.selector, pods, namespace=config.namespace, reporter=reporter, connect=connect
            )
        else:
            slices, selector = Slices(config.port, scheme, path), f"{SERVICE_NAME}={config.endpoints}"
            self._watched = ObjectWatch(
                SLICES, selector, slices, namespace=config.namespace, reporter=reporter, connect=connect
            )

    def states(self) -> AsyncGenerator[State, None]:
        return followed(self._watched.follow, self._state)

    def _state(self) -> State | None:
        found = self._watched.state
        return None if found is None else state_of((*found, *self._gateway()))

    def _gateway(self) -> tuple[DiscoveredServer, ...]:
        """Return the Service, even if it has no pods: users still ask it. Its DNS name needs no permission."""
        if self._service is None:
            return ()
        name, _, port = self._service.partition(":")
        authority = f"{name}.{self._watched.namespace}.svc:{port or self._port}"
        return (DiscoveredServer(id=name, base_url=f"{self._scheme}://{authority}{self._path}"),)
