"""The `gpu` section of a target, and its checks."""

import importlib.util
from collections.abc import Iterator

from probe.config.addresses import Url
from probe.config.messages import did_you_mean
from probe.config.types import ConfigSection, Duration, default_duration
from probe.gpu.fields import LABELS


class GpuConfig(ConfigSection):
    """The dcgm-exporters of the target's nodes, or the driver of this machine (NVML)."""

    dcgm_urls: tuple[Url, ...] = ()
    nvml: bool = False
    labels: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    every: Duration = default_duration("15s")

    @property
    def is_read(self) -> bool:
        return self.nvml or bool(self.dcgm_urls)


def gpu_problems(gpu: GpuConfig) -> Iterator[str]:
    """Yield problems that begin with the key's path below the target."""
    if gpu.nvml and gpu.dcgm_urls:
        yield "gpu: nvml and dcgm_urls are both set; keep one"
    elif gpu.nvml and importlib.util.find_spec("pynvml") is None:
        yield "gpu.nvml: the package nvidia-ml-py is not installed; pip install 'kneewatch[nvml]'"
    elif not gpu.is_read and (gpu.labels or gpu.every != GpuConfig().every):
        yield "gpu: no source is set; add dcgm_urls, or nvml: true in a sidecar"
    for name in gpu.labels:
        if name not in LABELS:
            hint = did_you_mean(name, LABELS)
            yield f"gpu.labels: {name!r} is not a GPU label{hint}; expected one of {', '.join(LABELS)}"
