"""A Lease of coordination.k8s.io/v1 as it is read, written and deleted: always the version that was read, no other."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from probe.kubernetes.client import CONFLICT, NOT_FOUND, KubernetesClient, KubernetesError

SERVER = "kneewatch/server"  # the annotation that says what a Lease is for
_MANAGED = ("app.kubernetes.io/managed-by", "kneewatch")
_ASK_S = 3.0
_PAGE = 500


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """Who has it. Times are for people: nobody's clock is compared with another's."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, rename="camel"):
    """`metadata` goes back as it came, its resourceVersion among it."""

    metadata: dict[str, Any]
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class ConflictError(Exception):
    """Somebody else was faster: it is not, or no longer, what a write was to replace."""


class LeaseList(msgspec.Struct):
    items: list[Lease]


class Leases:
    """Those of a namespace. Methods raise as Record's do."""

    def __init__(self, cluster: KubernetesClient, namespace: str) -> None:
        self.where = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._cluster = cluster

    async def listed(self) -> list[Lease]:
        """Kneewatch's, of all probers; of very many some."""
        params = {"labelSelector": "=".join(_MANAGED), "limit": str(_PAGE)}
        found = await self._cluster.ask("GET", self.where, params=params, timeout_s=_ASK_S)
        return msgspec.json.decode(found, type=LeaseList).items

    async def delete(self, before: Lease) -> None:
        """Raises ConflictError where it is not `before` any more; where it is gone, ClusterError (404)."""
        only = {name: before.metadata.get(name) for name in ("uid", "resourceVersion")}
        if not all(only.values()):
            raise ConflictError("it does not say which version it is")
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only})
        with _conflicts():
            await self._cluster.ask("DELETE", f"{self.where}/{before.metadata['name']}", body=body, timeout_s=_ASK_S)


class LeaseClient:
    """One Lease by its name. Methods raise ClusterError, and msgspec.DecodeError for what is no Lease."""

    def __init__(self, cluster: KubernetesClient, namespace: str, name: str, server: str) -> None:
        """`server`: what it is for, in words."""
        self._cluster = cluster
        self.namespace = namespace
        self.name = name
        self._server = server
        self._all = Leases(cluster, namespace)
        self._where = self._all.where

    async def read(self, timeout_s: float = _ASK_S) -> Lease | None:
        """As it is now; None where there is none."""
        try:
            found = await self._cluster.ask("GET", f"{self._where}/{self.name}", timeout_s=timeout_s)
        except KubernetesError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return msgspec.json.decode(found, type=Lease)

    async def create(self, spec: LeaseSpec) -> Lease:
        """Raises ConflictError where there is one."""
        metadata = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": dict([_MANAGED]),
            "annotations": {SERVER: self._server},
        }
        return await self._write("POST", self._where, Lease(metadata, spec), _ASK_S)

    async def replace(self, before: Lease, spec: LeaseSpec, timeout_s: float = _ASK_S) -> Lease:
        """Raises ConflictError where it is not `before` any more; where it is gone, ClusterError (404)."""
        return await self._write("PUT", f"{self._where}/{self.name}", Lease(before.metadata, spec), timeout_s)

    async def delete(self, before: Lease) -> None:
        """Raises ConflictError where it is not `before` any more; where it is gone, ClusterError (404)."""
        await self._all.delete(before)

    async def _write(self, method: str, path: str, lease: Lease, timeout_s: float) -> Lease:
        with _conflicts():
            answer = await self._cluster.ask(method, path, body=msgspec.json.encode(lease), timeout_s=timeout_s)
        return msgspec.json.decode(answer, type=Lease)


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except KubernetesError as error:
        if error.status == CONFLICT:
            raise ConflictError(str(error)) from None
        raise
