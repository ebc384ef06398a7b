"""What tests ask of Kubernetes manifests, whoever has rendered them. Pure, but for the command line that it parses."""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate
import trustme
import yaml
from typer.main import get_command

from probe.cli.main import app
from probe.config.config import Config
from probe.config.config_file import load_config

Manifest = dict[str, Any]
# The oldest that is promised, the first with native sidecars by default; and the newest that has schemas.
KUBERNETES = ("1.29", "1.37")
KEYS = "/run/secrets/kneewatch"
_HTTP_ROUTE = Path(__file__).parent / "crds/httproute.yml"
_OPERATOR = "cloudcoil.models.prometheus_operator.v1"
# Pod Security Standards, "restricted": kinds of volume that it allows and that are of use here.
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def is_of_the_operator(manifest: Manifest) -> bool:
    return str(manifest["apiVersion"]).startswith("monitoring.coreos.com/")


def check(manifest: Manifest) -> None:
    """Raise if Kubernetes, the operator or the Gateway API would refuse the object, unknown fields included."""
    if is_of_the_operator(manifest):
        model = getattr(importlib.import_module(_OPERATOR), manifest["kind"])
        # It drops what it does not know, so what comes back tells whether there was such a thing.
        assert model.model_validate(manifest).model_dump(by_alias=True, exclude_none=True, mode="json") == manifest
        return
    if manifest["apiVersion"].startswith("gateway.networking.k8s.io/"):
        jsonschema.validate(manifest, yaml.safe_load(_HTTP_ROUTE.read_text()))
        return
    for version in KUBERNETES:
        kubernetes_validate.validate(manifest, version, strict=True)


def pods(manifests: Iterable[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """Return each workload with the spec of its pods."""
    for manifest in manifests:
        if "template" in manifest.get("spec", {}):
            yield manifest, manifest["spec"]["template"]["spec"]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def loose(pod: Manifest) -> list[str]:
    """Return where the pod falls short of the Pod Security Standard "restricted"."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [v["name"] for v in pod.get("volumes", []) if not set(v) - {"name"} <= _VOLUMES]
    for container in containers(pod):
        context = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        capabilities = context.get("capabilities", {})
        wrong = {
            "runAsNonRoot": context.get("runAsNonRoot") is not True,
            "runAsUser": context.get("runAsUser") == 0,
            "seccompProfile": context.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"},
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is not False,
            "capabilities": "ALL" not in capabilities.get("drop", []) or bool(capabilities.get("add")),
            "privileged": bool(context.get("privileged")),
            "hostPort": any("hostPort" in port for port in container.get("ports", [])),
        }
        found += [f"{container['name']}: {name}" for name, is_wrong in wrong.items() if is_wrong]
    return found


def of(manifests: Iterable[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def named(manifests: Iterable[Manifest], kind: str, name: str = "kneewatch") -> Manifest:
    (found,) = (manifest for manifest in of(manifests, kind) if manifest["metadata"]["name"] == name)
    return found


def rights(manifests: list[Manifest]) -> dict[tuple[str, str], set[str]]:
    """Return the verbs that Kneewatch's account has by its bindings, by (namespace, resource)."""
    accounts = {(a["metadata"].get("namespace"), a["metadata"]["name"]) for a in of(manifests, "ServiceAccount")}
    roles = {(r["metadata"].get("namespace"), r["metadata"]["name"]): r for r in of(manifests, "Role")}
    found: dict[tuple[str, str], set[str]] = {}
    for binding in of(manifests, "RoleBinding"):
        assert {(s["namespace"], s["name"]) for s in binding["subjects"]} == accounts
        namespace = binding["metadata"]["namespace"]
        for rule in roles.pop((namespace, binding["roleRef"]["name"]))["rules"]:
            for resource in rule["resources"]:
                found.setdefault((namespace, resource), set()).update(rule["verbs"])
    assert not roles, "a role that is bound to nobody"
    return found


def configuration(manifests: list[Manifest], folder: Path) -> Config:
    """Load the kneewatch.yml of the ConfigMap that the pods mount, as `kneewatch config check` does.

    Creates files for Secrets in `folder`, under the names at which the pods mount them.
    """
    ((_, pod),) = pods(manifests)
    mounted = {volume["name"]: volume for volume in pod["volumes"]}
    (mine,) = (c for c in containers(pod) if c["name"] == "kneewatch")
    paths = {mount["mountPath"]: mounted.get(mount["name"], {}) for mount in mine["volumeMounts"]}
    name = paths["/etc/kneewatch"]["configMap"]["name"]
    (found,) = (m for m in of(manifests, "ConfigMap") if m["metadata"]["name"] == name)
    return load(found["data"]["kneewatch.yml"], folder, with_keys="secret" in paths.get(KEYS, {}))


def load(text: str, folder: Path, *, with_keys: bool = True) -> Config:
    """A kneewatch.yml, with the files of API keys and of Prometheus' credentials in `folder`."""
    if with_keys:
        found = yaml.safe_load(text)
        for section in (*found["targets"], found.get("prometheus", {})):
            for name in {"api_key_file", "token_file"} & section.keys():
                (folder / Path(section[name]).name).write_text("sk-test\n")
            if "ca_file" in section:
                trustme.CA().cert_pem.write_to_path(folder / Path(section["ca_file"]).name)
        text = text.replace(KEYS, str(folder))
    file = folder / "kneewatch.yml"
    file.write_text(text)
    return load_config(file, environ={})


def accepted(arguments: list[str]) -> dict[str, Any]:
    """Parse a container's arguments with Kneewatch's own command line. Raises if it refuses them."""
    group = get_command(app)
    with group.make_context("kneewatch", list(arguments), resilient_parsing=False) as context:
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
        assert command is not None
        with command.make_context(name, rest, parent=context) as inner:
            return {"command": name, **inner.params}


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()
