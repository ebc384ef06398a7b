"""Series of the GPUs: dcgm-exporter's values and labels under names of their own, also for values read by NVML."""

from functools import partial

from exporters.series.declaration import TARGET, Series, declare
from probe.gpu import fields

_declare = partial(declare, "gpu")

GPU_UP = _declare("gauge", "gpu_scrape_up", "1 if the last scrape of the target's GPUs succeeded, else 0", TARGET)
GPU_COUNT = _declare("gauge", "gpus", "GPUs or MIG instances in the last scrape, without boards of instances", TARGET)
GPU_SCRAPE_ERRORS = _declare("counter", "gpu_scrape_errors_total", "Failed scrapes of the GPUs", TARGET)
_LABELS = (*TARGET, *fields.LABELS)
_GPU_BY_NAME = {
    each.name: _declare(each.kind, f"gpu_{each.series}", f"{each.help} ({each.name})", _LABELS)
    for each in fields.FIELDS
}
GPU: tuple[Series, ...] = tuple(_GPU_BY_NAME.values())


def gpu(name: str) -> Series:
    """Return the series of a value by its name at dcgm-exporter. Raises KeyError for others."""
    return _GPU_BY_NAME[name]
