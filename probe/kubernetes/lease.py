"""Leases of coordination.k8s.io/v1. Writes and deletions apply only to the version that was read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from probe.kubernetes.client import CONFLICT, NOT_FOUND, KubernetesClient, KubernetesError

SERVER = "kneewatch/server"  # the annotation that names the server
_MANAGED = ("app.kubernetes.io/managed-by", "kneewatch")
_ASK_S = 3.0
_PAGE = 500


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """The holder. Times are for people: clocks of different machines are never compared."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, rename="camel"):
    """A Lease. `metadata` is written back as it was read, with its resourceVersion."""

    metadata: dict[str, Any]
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class ConflictError(Exception):
    """The Lease is not, or no longer, the version that a write was to replace."""


class LeaseList(msgspec.Struct):
    items: list[Lease]


class Leases:
    """The Leases of a namespace. Methods raise the errors of LeaseClient's."""

    def __init__(self, cluster: KubernetesClient, namespace: str) -> None:
        self.where = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._cluster = cluster

    async def listed(self) -> list[Lease]:
        """Return the Leases of all Kneewatch instances, at most _PAGE."""
        params = {"labelSelector": "=".join(_MANAGED), "limit": str(_PAGE)}
        found = await self._cluster.ask("GET", self.where, params=params, timeout_s=_ASK_S)
        return msgspec.json.decode(found, type=LeaseList).items

    async def delete(self, before: Lease) -> None:
        """Delete `before`. Raise ConflictError if it has changed, KubernetesError (404) if it is gone."""
        only = {name: before.metadata.get(name) for name in ("uid", "resourceVersion")}
        if not all(only.values()):
            raise ConflictError("the Lease has no uid or resourceVersion")
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only})
        with _conflicts():
            await self._cluster.ask("DELETE", f"{self.where}/{before.metadata['name']}", body=body, timeout_s=_ASK_S)


class LeaseClient:
    """One Lease by its name. Methods raise KubernetesError, and msgspec.DecodeError if the answer is not a Lease."""

    def __init__(self, cluster: KubernetesClient, namespace: str, name: str, server: str) -> None:
        """Take `server`: the server that the Lease is for, written into its annotation."""
        self._cluster = cluster
        self.namespace = namespace
        self.name = name
        self._server = server
        self._all = Leases(cluster, namespace)
        self._where = self._all.where

    async def read(self, timeout_s: float = _ASK_S) -> Lease | None:
        """Return the Lease, or None if it does not exist."""
        try:
            found = await self._cluster.ask("GET", f"{self._where}/{self.name}", timeout_s=timeout_s)
        except KubernetesError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return msgspec.json.decode(found, type=Lease)

    async def create(self, spec: LeaseSpec) -> Lease:
        """Create the Lease. Raise ConflictError if it exists."""
        metadata = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": dict([_MANAGED]),
            "annotations": {SERVER: self._server},
        }
        return await self._write("POST", self._where, Lease(metadata, spec), _ASK_S)

    async def replace(self, before: Lease, spec: LeaseSpec, timeout_s: float = _ASK_S) -> Lease:
        """Replace `before`. Raise ConflictError if it has changed, KubernetesError (404) if it is gone."""
        return await self._write("PUT", f"{self._where}/{self.name}", Lease(before.metadata, spec), timeout_s)

    async def delete(self, before: Lease) -> None:
        """Delete `before`. Raise ConflictError if it has changed, KubernetesError (404) if it is gone."""
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
