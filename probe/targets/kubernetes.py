"""Pods of a namespace by their labels, listed once and then watched.

In: the `discover.kubernetes` section. Out: states (found.py), each pod's changes within a second. The service account
needs to `list` and `watch` pods in that namespace, and nothing else.

A list has a resourceVersion, from which a watch goes on; each event and each bookmark brings a newer one. A watch that
ends or is lost is taken up again where it was; after 410 Gone, or an error in its midst, pods are listed anew.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from probe.config_discover import KubernetesDiscovery
from probe.targets.cluster import FORBIDDEN, GONE, Cluster, ClusterError, Status, open_cluster
from probe.targets.following import Backoff, Told, followed
from probe.targets.found import Found, State, state_of
from probe.targets.pods import Meta, Pod, Pods

_PAGE = "100"  # a megabyte or so: larger ones would hold up the event loop that stamps canaries
_WATCH_S = (240.0, 300.0)  # after which the server ends a watch: not all of them at once
_LATE_S = 15.0  # by which a server may end it later
_STEADY_S = 2.0  # a watch that lasted so long was no failure


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _PodList(msgspec.Struct):
    metadata: _ListMeta
    items: list[Pod] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: Meta


class KubernetesSource:
    """The pods, and the Service before them where one is named."""

    def __init__(
        self,
        config: KubernetesDiscovery,
        scheme: str,
        path: str,
        told: Told,
        *,
        connect: Callable[[], AbstractAsyncContextManager[Cluster]] = open_cluster,
    ) -> None:
        self._config = config
        self._scheme, self._path = scheme, path
        self._told = told
        self._connect = connect
        self._pods = Pods(config.port, scheme, path)
        self._namespace = config.namespace or ""
        self._version: str | None = None  # what we have seen of the pods; None: they have to be listed
        self._known = False
        self._backoff = Backoff()
        self._steady = False  # the watch that runs has lasted
        self._open = False  # there is a watch
        self._lost = 0  # watches in a row before one was steady

    def states(self) -> AsyncGenerator[State, None]:
        return followed(self._follow, self._state)

    def _state(self) -> State | None:
        if not self._known:
            return None
        return state_of((*self._pods.state, *self._service()))

    def _service(self) -> tuple[Found, ...]:
        """By its name in the cluster's DNS, which needs no permission. It is always there: its users think so too."""
        if self._config.service is None:
            return ()
        name, _, port = self._config.service.partition(":")
        authority = f"{name}.{self._namespace}.svc:{port or self._config.port}"
        return (Found(id=name, base_url=f"{self._scheme}://{authority}{self._path}"),)

    async def _follow(self, changed: Callable[[], None]) -> None:
        self._version = None
        while True:
            try:
                async with self._connect() as cluster:  # anew after each failure: certificates may have changed
                    self._namespace = self._config.namespace or cluster.namespace
                    while True:
                        await self._list_and_watch(cluster, changed)
            except ClusterError as error:
                if error.status == GONE:
                    self._version = None
                elif not self._open or self._lost:  # that one watch is lost is no news
                    self._told.problem(self._words(error))
                self._lost += self._open
            except msgspec.DecodeError as error:
                self._version = None
                self._told.problem(f"pods in {self._namespace}: the API server sends what is no pod: {error}")
            self._open = False
            await asyncio.sleep(self._backoff.next_s())

    async def _list_and_watch(self, cluster: Cluster, changed: Callable[[], None]) -> None:
        """Until the server ends the watch in good order. Raises ClusterError, and msgspec.DecodeError."""
        if self._version is None:
            pods, self._version = await self._list(cluster)
            self._pods.replace(pods)
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

    async def _list(self, cluster: Cluster) -> tuple[list[Pod], str]:
        """All pods, page by page, and the version that they are all of."""
        pods: list[Pod] = []
        params = {"labelSelector": self._config.selector, "limit": _PAGE}
        while True:
            page = msgspec.json.decode(await cluster.ask("GET", self._where, params=params), type=_PodList)
            pods += page.items or ()
            if not page.metadata.continue_:
                return pods, page.metadata.resource_version
            params["continue"] = page.metadata.continue_

    @asynccontextmanager
    async def _watch(self, cluster: Cluster, version: str) -> AsyncIterator[AsyncGenerator[bytes]]:
        lasts_s = random.uniform(*_WATCH_S)  # noqa: S311 - it spreads load, and keeps no secret
        params = {
            "labelSelector": self._config.selector,
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
            status = msgspec.json.decode(event.object, type=Status)
            self._version = None  # as client-go does: after any error the pods are listed anew
            raise ClusterError(f"{status.message} (HTTP {status.code})", status.code)
        if event.type == "BOOKMARK":
            self._version = msgspec.json.decode(event.object, type=_Bookmark).metadata.resource_version
            return
        pod = msgspec.json.decode(event.object, type=Pod)
        self._version = pod.metadata.resource_version
        if event.type == "DELETED":
            self._pods.remove(pod.metadata.name)
        elif event.type in ("ADDED", "MODIFIED"):
            self._pods.put(pod)

    def _tell(self) -> None:
        if (problem := self._pods.problem) is not None:
            self._told.problem(f"pods in {self._namespace} with {self._config.selector}: {problem}")
        elif self._steady:
            self._told.well()

    @property
    def _where(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods"

    def _words(self, error: ClusterError) -> str:
        mend = ""
        if error.status == FORBIDDEN:
            mend = f"; it needs a Role in {self._namespace} with the verbs list and watch for pods (docs/discovery.md)"
        return f"pods in {self._namespace or 'the cluster'}: {error}{mend}"
