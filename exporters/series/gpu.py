"""Series of the GPUs: dcgm-exporter's own names and units, also for values read by NVML."""

from functools import partial

from exporters.series.declaration import TARGET, Series, declare
from probe.gpu import fields

_declare = partial(declare, "gpu")

GPU_UP = _declare("gauge", "gpu_scrape_up", "1 if the last scrape of the target's GPUs succeeded, else 0", TARGET)
GPU_COUNT = _declare("gauge", "gpus", "GPUs or MIG instances in the last scrape", TARGET)
GPU_SCRAPE_ERRORS = _declare("counter", "gpu_scrape_errors_total", "Failed scrapes of the GPUs", TARGET)
# Untyped, because counters must end in `_total`, and dcgm-exporter's do not.
GPU: tuple[Series, ...] = tuple(
    Series(
        each.name,
        "unknown" if each.kind == "counter" else each.kind,
        each.help,
        ("target", *fields.LABELS),
        stability="as dcgm-exporter's",
        source="gpu",
    )
    for each in fields.FIELDS
)
_GPU_BY_NAME = {series.name: series for series in GPU}


def gpu(name: str) -> Series:
    """Return the relayed GPU series of that name. Raises KeyError for others."""
    return _GPU_BY_NAME[name]
