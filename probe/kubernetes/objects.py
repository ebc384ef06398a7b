"""What all objects of the Kubernetes API have, as far as it is read here. Pure."""

import msgspec


class Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""


class Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Object(msgspec.Struct):
    metadata: Meta
