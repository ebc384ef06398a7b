"""The `gpu` section of a target, and its checks."""

import importlib.util
from collections.abc import Iterator

from pydantic import Field

from probe.config.messages import did_you_mean
from probe.config.types import ConfigSection, Interval, Url, default_duration
from probe.gpu.fields import LABELS

_NAMED = f"{', '.join(f'`{name}`' for name in LABELS[:-1])} and `{LABELS[-1]}`"


class GpuConfig(ConfigSection):
    """The dcgm-exporters of the target's nodes, or the driver of this machine (NVML)."""

    dcgm_urls: tuple[Url, ...] = ()
    """Metrics address of the dcgm-exporter on each node of the target, such as `http://10.0.0.7:9400/metrics`. Not
    together with `nvml`.
    """
    nvml: bool = False
    """`true` reads the driver of this machine, for a sidecar that shares the server's GPUs. Needs `pip install
    'kneewatch[nvml]'`.
    """
    labels: dict[str, str] = Field(
        default_factory=dict,
        description=f"Selects the target's GPUs: those with all of these labels, of {_NAMED}. Without labels, all GPUs"
        " that are read.",
        json_schema_extra={"default": {}},
    )
    every: Interval = default_duration("15s")
    """Read interval, at least `1s`; dcgm-exporter itself updates every 30 s by default."""

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
