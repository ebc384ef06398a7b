"""The `gpu` section of a target, and its checks."""

import importlib.util
from collections.abc import Iterator, Sequence
from itertools import chain
from urllib.parse import urlsplit

from pydantic import Field

from probe.config.discovery import DiscoverConfig, KubernetesDiscovery, MetricsPath, ObjectName, Port, Selector
from probe.config.messages import did_you_mean
from probe.config.types import ConfigSection, Interval, Url, default_duration
from probe.core.server_address import is_loopback
from probe.gpu.fields import LABELS

_NAMED = f"{', '.join(f'`{name}`' for name in LABELS[:-1])} and `{LABELS[-1]}`"
_OF_POD = ("pod", "namespace")  # what discovery knows of each pod


class ExporterPods(ConfigSection):
    """The pods of dcgm-exporter, one on each node with GPUs."""

    namespace: ObjectName | None = None
    """Namespace of the dcgm-exporters. Default: Kneewatch's own, or the namespace of the kubeconfig context."""
    selector: Selector
    """Labels of the dcgm-exporters' pods, in the syntax of `kubectl get pods -l`."""
    port: Port = 9400
    """Port of their metrics: a number, or the name of a container's port."""
    path: MetricsPath = "/metrics"
    """Path of their metrics."""


class DcgmConfig(ConfigSection):
    """Where to find the dcgm-exporters of discovered pods."""

    kubernetes: ExporterPods
    """The exporter on each pod's node, by its labels."""

    @property
    def name(self) -> str:
        """Return the selection in words, the same for each target that has it."""
        its = self.kubernetes
        return f"{its.selector} in {its.namespace or 'this namespace'}, port {its.port}{its.path}"

    @property
    def discovery(self) -> DiscoverConfig:
        """Return the discovery of the exporters."""
        its = self.kubernetes
        pods = KubernetesDiscovery(namespace=its.namespace, selector=its.selector, port=its.port)
        return DiscoverConfig(kubernetes=pods, path=its.path)


class GpuConfig(ConfigSection):
    """The dcgm-exporters of the target's nodes, their series in Prometheus, or the driver of this machine (NVML)."""

    dcgm_urls: tuple[Url, ...] = ()
    """Metrics address of the dcgm-exporter on each node of the target, such as `http://10.0.0.7:9400/metrics`. Not with
    `discover`.
    """
    dcgm: DcgmConfig | None = None
    """Finds the dcgm-exporter on the node of each discovered pod, and takes the GPUs that it says are the pod's
    ([discovery.md](discovery.md#gpus)).
    """
    prometheus: bool = False
    """`true` reads dcgm-exporter's series from the Prometheus of the section `prometheus`: those of the discovered pod,
    those with `labels`, or else those of the host in `base_url` ([discovery.md](discovery.md#gpus)).
    """
    nvml: bool = False
    """`true` reads the driver of this machine, for a sidecar that shares the server's GPUs. Needs `pip install
    'kneewatch[nvml]'`.
    """
    labels: dict[str, str] = Field(
        default_factory=dict,
        description=f"Selects the target's GPUs: those with all of these labels, of {_NAMED}. Without labels, all GPUs"
        " that are read; of a discovered pod, its own.",
        json_schema_extra={"default": {}},
    )
    every: Interval = default_duration("15s")
    """Read interval, at least `1s`; dcgm-exporter itself updates every 30 s by default."""

    @property
    def sources(self) -> list[str]:
        """Return the keys of the sources that are set; at most one in a valid configuration."""
        return [name for name in SOURCES if getattr(self, name)]

    @property
    def words(self) -> str:
        """Return where GPUs are read, and which."""
        if self.dcgm is not None:
            where = f"those of each pod, by the dcgm-exporter on its node ({self.dcgm.name})"
        elif self.prometheus:
            where = "those of each pod, or else of the host, by DCGM's series in Prometheus"
        else:
            where = "NVML on this machine" if self.nvml else ", ".join(self.dcgm_urls)
        named = ", ".join(f"{name}={value}" for name, value in self.labels.items())
        return where + (f", with {named}" if named else "")

    @property
    def is_read(self) -> bool:
        return bool(self.sources)


# Labels that say which GPUs of a host are a server's, or which host it is.
_SELECTING = {"gpu", "UUID", "device", "Hostname", "pod", "namespace", "container"}
SOURCES = ("dcgm_urls", "dcgm", "prometheus", "nvml")


def gpu_problems(gpu: GpuConfig, discover: DiscoverConfig | None, *, has_prometheus: bool) -> Iterator[str]:
    """Yield problems that begin with the key's path below the target. `discover`: a template's."""
    if len(gpu.sources) > 1:
        yield f"gpu: {' and '.join(gpu.sources)} are {'both' if len(gpu.sources) == 2 else 'all'} set; keep one"  # noqa: PLR2004
    elif gpu.nvml and importlib.util.find_spec("pynvml") is None:
        yield "gpu.nvml: the package nvidia-ml-py is not installed; pip install 'kneewatch[nvml]'"
    elif gpu.prometheus and not has_prometheus:
        yield "gpu.prometheus: there is no Prometheus to ask; add the section prometheus with its url"
    elif not gpu.is_read and (gpu.labels or gpu.every != GpuConfig().every):
        yield "gpu: no source is set; add dcgm_urls, dcgm, prometheus: true, or nvml: true in a sidecar"
    for name in gpu.labels:
        if name not in LABELS:
            hint = did_you_mean(name, LABELS)
            yield f"gpu.labels: {name!r} is not a GPU label{hint}; expected one of {', '.join(LABELS)}"
    yield from _of_located(gpu) if discover is None else chain(_of_template(gpu), _without_pods(gpu, discover))


def shared_host_problems(targets: Sequence[tuple[GpuConfig, str | None]]) -> Iterator[str]:
    """Yield problems of targets whose GPUs are those of their host in Prometheus. `targets`: with their `base_url`."""
    hosts = [
        urlsplit(base_url).hostname or ""
        if base_url is not None and gpu.prometheus and not _SELECTING & gpu.labels.keys()
        else ""
        for gpu, base_url in targets
    ]
    for i, host in enumerate(hosts):
        if host in hosts[:i] and host:
            yield (
                f"targets[{i}].gpu.prometheus: targets[{hosts.index(host)}] is on {host} too, and nothing says which"
                " GPUs each has; set gpu.labels of both"
            )
        elif is_loopback(host):
            yield f"targets[{i}].gpu.prometheus: {host} names no host; set gpu.labels, such as {{Hostname: gpu-node-1}}"


def _of_located(gpu: GpuConfig) -> Iterator[str]:
    if gpu.dcgm is not None:
        yield "gpu.dcgm: finds the exporters of discovered pods; use dcgm_urls, or prometheus: true with labels"


def _of_template(gpu: GpuConfig) -> Iterator[str]:
    for name in ("dcgm_urls", "nvml"):
        if getattr(gpu, name):
            yield f"gpu.{name}: would apply to every discovered server; use dcgm or prometheus: true"
    for name in _OF_POD:
        if name in gpu.labels:
            yield f"gpu.labels.{name}: is each pod's own here; remove it"
    if gpu.dcgm is not None and importlib.util.find_spec("lightkube") is None:
        yield "gpu.dcgm: the package lightkube is not installed; pip install 'kneewatch[k8s]'"


def _without_pods(gpu: GpuConfig, discover: DiscoverConfig) -> Iterator[str]:
    if gpu.dcgm is not None and discover.dns is not None:
        yield "gpu.dcgm: DNS does not say which pod and node a server is; use discover.kubernetes, or prometheus: true"
