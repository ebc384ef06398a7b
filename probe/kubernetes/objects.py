"""The fields of all Kubernetes objects that are used here. Pure."""

import msgspec


class OwnerReference(msgspec.Struct):
    kind: str = ""
    name: str = ""


class ObjectMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class KubernetesObject(msgspec.Struct):
    metadata: ObjectMeta
