"""A row of the Target dashboard: the GPU metrics that most often explain a slow server."""

from dashboards import panels
from dashboards.pieces import NO_GPU, PlacedPanel, Query
from dashboards.queries import gpu_rate, gpu_value, largest, spread
from exporters import names


def gpus() -> list[PlacedPanel]:
    """Return the panels that most often explain a slow model server."""
    return [*_gpu_load(), *_clocks(), *_faults()]


def _gpu_load() -> list[PlacedPanel]:
    used, free = gpu_value("DEV_FB_USED"), gpu_value("DEV_FB_FREE")
    return [
        panels.timeseries(
            "GPU busy",
            "Share of time in which a kernel ran, of the busiest and the least busy GPU. Good: alike. High is good use"
            " but says little about the remaining capacity: see DRAM and tensor activity.",
            unit="percentunit",
            queries=spread(f"{gpu_value('DEV_GPU_UTIL')} / 100"),
            width=6,
            maximum=1,
            no_value=NO_GPU,
        ),
        panels.timeseries(
            "DRAM and tensor activity",
            "Share of cycles with memory traffic, and with tensor core activity, mean of the GPUs. DRAM near 80 % is a"
            " memory-bound decode; tensor near 80 % is a compute-bound prefill. Good: either, under load.",
            unit="percentunit",
            queries=[
                Query(f"avg({gpu_value('PROF_DRAM_ACTIVE')})", "DRAM"),
                Query(f"avg({gpu_value('PROF_PIPE_TENSOR_ACTIVE')})", "tensor"),
                Query(f"avg({gpu_value('PROF_SM_ACTIVE')})", "SM"),
            ],
            width=6,
            maximum=1,
            no_value=f"{NO_GPU}, or no profiling metrics",
        ),
        panels.timeseries(
            "GPU memory",
            "Share of GPU memory in use. Good: flat, since a model server allocates at start. A rise is a leak, or"
            " another process.",
            unit="percentunit",
            queries=spread(f"{used} / ({used} + {free})"),
            width=6,
            maximum=1,
            no_value=NO_GPU,
        ),
    ]


def _clocks() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Power",
            "Power of the GPUs that draw most and least. Good: below the dashed limit. At the limit clocks are lowered,"
            " and every request slows down.",
            unit="watt",
            queries=[
                *spread(gpu_value("DEV_POWER_USAGE")),
                Query(f"min({gpu_value('DEV_POWER_MGMT_LIMIT')})", "objective: limit"),
            ],
            width=6,
            no_value=NO_GPU,
        ),
        panels.timeseries(
            "SM clock",
            "Clock of the fastest and the slowest GPU. Good: alike, and steady under load. A slower one holds up its"
            " whole tensor-parallel group.",
            unit="rotmhz",
            queries=spread(gpu_value("DEV_SM_CLOCK")),
            width=6,
            no_value=NO_GPU,
        ),
        panels.timeseries(
            "Throttling",
            "Share of time in which clocks were lowered for power and for heat, of the most throttled GPU. Good: no"
            " heat, and power only at full load.",
            unit="percentunit",
            queries=[
                Query(f"max({gpu_rate('DEV_POWER_VIOLATION', 1e9)})", "power"),
                Query(f"max({gpu_rate('DEV_THERMAL_VIOLATION', 1e9)})", "heat"),
            ],
            width=6,
            maximum=1,
            no_value=f"{NO_GPU}, or no such counters",
        ),
    ]


def _faults() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Errors",
            "The last XID error of any GPU, which stays until the driver reloads, on the left; uncorrectable memory"
            " errors on the right. Good: zero. The runbook explains the XIDs.",
            unit="none",
            queries=[
                Query(f"max({gpu_value('DEV_XID_ERRORS')})", "last XID"),
                Query(f"max({gpu_value('DEV_UNCORRECTABLE_REMAPPED_ROWS')})", "remapped", is_on_right_axis=True),
                Query(f"max({gpu_value('DEV_ECC_DBE_VOL_TOTAL')})", "double-bit", is_on_right_axis=True),
            ],
            width=6,
            right_unit="none",
            no_value=NO_GPU,
        ),
        panels.timeseries(
            "GPUs and neighbours",
            "GPUs in the last scrape, on the left; their load beyond canaries while no users were sending requests, on"
            " the right. Good: as many as the server has, and no neighbour.",
            unit="none",
            queries=[
                Query(largest(names.GPU_COUNT), "GPUs"),
                Query(largest(names.GPU_NEIGHBOUR), "neighbour", is_on_right_axis=True),
            ],
            width=6,
            right_unit="percentunit",
            no_value=NO_GPU,
        ),
    ]
