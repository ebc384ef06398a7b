"""The image, built without a registry, and a container that has a pod's restrictions.

mmdebstrap makes a Debian with its own Python in place of the pinned base image. Buildah runs the Dockerfile, each RUN
in a chroot. runc runs the container as the container runtime of a node does, with the security context, the arguments,
the volumes and the memory limit of the Deployment, but in the machine's network: it listens on a port of loopback.
"""

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from process import Process

ROOT = Path(__file__).resolve().parents[2]
_BASE = "localhost/kneewatch-base"
_SECCOMP = Path("/usr/share/containers/seccomp.json")  # of Buildah's package: what node runtimes call RuntimeDefault
_ARCHITECTURES = {"x86_64": ("amd64", "SCMP_ARCH_X86_64"), "aarch64": ("arm64", "SCMP_ARCH_AARCH64")}
_PACKAGES = "python3-venv,python3-pip,binutils,ca-certificates"
# As in the python image, which the Dockerfile expects. The certificates are this machine's: it may have a proxy's.
_LIKE_PYTHONS_IMAGE = (
    'ln -s /usr/bin/python3 "$1/usr/local/bin/python"',
    'ln -s /usr/bin/pip3 "$1/usr/local/bin/pip"',
    'cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"',
)


def run(*command: str | Path, timeout_s: float = 60, fails: bool = False) -> str:
    """Run a program and return what it prints. Raises AssertionError with its output if it fails, or if it does not."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    output = f"{' '.join(map(str, command[:4]))}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    assert bool(done.returncode) is fails, output
    return done.stderr if fails else done.stdout


class Image:
    """The image, in a store of its own below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buildah = ("buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run"))
        self._container = ""

    def build(self, **arguments: str) -> None:
        """Build it as deploy/README.md says, with these build arguments."""
        suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
        tar = self._folder / "base/base.tar"
        tar.parent.mkdir()
        hooks = [f"--customize-hook={command}" for command in _LIKE_PYTHONS_IMAGE]
        run("mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", *hooks, suite, tar, timeout_s=600)
        (tar.parent / "Dockerfile").write_text(f"FROM scratch\nADD {tar.name} /\n")
        self._bud("-t", _BASE, tar.parent)
        tar.unlink()
        given = [f"--build-arg={name}={value}" for name, value in {"BASE": _BASE, **arguments}.items()]
        self._bud("-t", "kneewatch", "-f", ROOT / "deploy/Dockerfile", *given, ROOT)

    def _bud(self, *arguments: str | Path) -> None:
        quiet = ("--quiet", "--isolation=chroot", "--network=host", "--pull-never", "--format=docker")
        run(*self._buildah, "bud", *quiet, *arguments, timeout_s=900)

    def mount(self) -> Path:
        """Return the folder with the image's files, until `close`."""
        self._container = run(*self._buildah, "from", "--pull-never", "kneewatch").strip()
        return Path(run(*self._buildah, "mount", self._container).strip())

    def config(self) -> dict[str, Any]:
        """Return what the image says of user, entrypoint, labels and health check."""
        config: dict[str, Any] = json.loads(run(*self._buildah, "inspect", "--type=image", "kneewatch"))["Docker"][
            "config"
        ]
        return config

    def close(self) -> None:
        """Remove what was mounted."""
        run(*self._buildah, "rm", "--all")


@dataclass(frozen=True, slots=True)
class Pod:
    """What the Deployment of deploy/kustomize/base says of its only container."""

    security: Mapping[str, Any]
    arguments: Sequence[str]
    mounts: Sequence[Mapping[str, Any]]  # volumeMounts
    memory: int  # bytes

    @classmethod
    def of_the_base(cls) -> "Pod":
        objects = yaml.safe_load_all((ROOT / "deploy/kustomize/base/objects.yaml").read_text())
        (deployment,) = (one for one in objects if one["kind"] == "Deployment")
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        memory = container["resources"]["limits"]["memory"]
        assert memory.endswith("Mi")
        return cls(
            {**spec["securityContext"], **container["securityContext"]},
            container["args"],
            container["volumeMounts"],
            int(memory.removesuffix("Mi")) << 20,
        )


class Container:
    """The image's program with the pod's restrictions. `folders`: of the pod's volumes, by name."""

    def __init__(self, image: Image, pod: Pod, folders: Mapping[str, Path], bundle: Path) -> None:
        bundle.mkdir()
        config = image.config()
        (bundle / "config.json").write_text(json.dumps(_bundle(image.mount(), config, pod, folders)))
        self._runc = ("runc", "--root", str(bundle / "state"))
        self._name = f"kneewatch-{bundle.parent.name}"
        self.process = Process([*self._runc, "run", "--bundle", str(bundle), self._name], bundle / "container.log")

    def exec(self, *command: str, timeout_s: float = 60, fails: bool = False) -> str:
        """Run a program in the container, and return its output; its errors if it should fail."""
        return run(*self._runc, "exec", self._name, *command, timeout_s=timeout_s, fails=fails)

    def status(self) -> dict[str, str]:
        """Return what the kernel says of the container's first process."""
        pid = json.loads(run(*self._runc, "state", self._name))["pid"]
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def stop(self) -> int:
        """End it as a kubelet does, and return its exit status."""
        try:
            return self.process.terminate(within_s=30)  # runc hands the signal on
        finally:
            subprocess.run([*self._runc, "delete", "--force", self._name], capture_output=True, check=False, timeout=60)


def _bundle(files: Path, image: Mapping[str, Any], pod: Pod, folders: Mapping[str, Path]) -> dict[str, Any]:
    """Return the configuration for runc: an OCI runtime bundle."""
    security = pod.security
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    system = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "size=64m"]},  # noqa: S108 - in the container
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
    ]
    volumes = [
        {
            "destination": mount["mountPath"],
            "type": "bind",
            "source": str(folders[mount["name"]]),
            "options": ["bind", "ro"] if mount.get("readOnly") else ["bind"],
        }
        for mount in pod.mounts
    ]
    capabilities = {name: [] for name in ("bounding", "effective", "permitted", "inheritable", "ambient")}
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(files), "readonly": security["readOnlyRootFilesystem"]},
        "hostname": "kneewatch",
        "process": {
            "args": [*image["Entrypoint"], *pod.arguments],
            "env": image["Env"],
            "cwd": image.get("WorkingDir") or "/",
            "user": {"uid": security["runAsUser"], "gid": security["runAsGroup"]},
            "capabilities": capabilities,
            "noNewPrivileges": not security["allowPrivilegeEscalation"],
        },
        "mounts": [*system, *volumes],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            "resources": {"memory": {"limit": pod.memory}},
            "seccomp": _seccomp(),
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


def _seccomp() -> dict[str, Any]:
    """Return the default profile of system calls as it is for a container without capabilities."""
    profile = json.loads(_SECCOMP.read_text())
    name, architecture = _ARCHITECTURES[platform.machine()]
    allowed = []
    for group in profile["syscalls"]:
        included, excluded = group.get("includes") or {}, group.get("excludes") or {}
        is_ours = name in included.get("arches", [name]) and name not in excluded.get("arches", [])
        if is_ours and not included.get("caps"):
            allowed.append({key: group[key] for key in ("names", "action", "args", "errnoRet") if group.get(key)})
    return {"defaultAction": profile["defaultAction"], "architectures": [architecture], "syscalls": allowed}
