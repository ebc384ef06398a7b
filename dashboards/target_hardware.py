"""Rows of the Target dashboard: the GPUs under it."""

from dashboards import panels
from dashboards.pieces import GREEN, RED, PlacedPanel, Query
from dashboards.queries import RATE, TARGET, largest, pace, spread
from exporters import names
from exporters.names import gpu

_NO_GPU = "no GPU is read"


def _gpu(field: str) -> str:
    return f"{gpu(f'DCGM_FI_{field}').name}{{{TARGET}}}"


def _grown(field: str, unit: float) -> str:
    """How fast a counter of every GPU grows, in `unit` of its own."""
    return f"rate({_gpu(field)}[{RATE}]) / {unit:g}"


def gpus() -> list[PlacedPanel]:
    """What explains a slow model server most often."""
    used, free = _gpu("DEV_FB_USED"), _gpu("DEV_FB_FREE")
    return [
        panels.timeseries(
            "GPU busy",
            "Time in which a kernel ran, of the busiest and the idlest GPU. Good: alike. High is good use, and says"
            " little about how much more fits: look at DRAM and tensor activity.",
            unit="percentunit",
            queries=spread(f"{_gpu('DEV_GPU_UTIL')} / 100"),
            width=6,
            maximum=1,
            no_value=_NO_GPU,
            alerts=["KneewatchGPUMissing"],
        ),
        panels.timeseries(
            "DRAM and tensor activity",
            "Cycles in which memory was read or written, and in which tensor cores worked, mean of the GPUs. DRAM near"
            " 80 % is a decode at the memory's limit; tensor near it a prefill at the arithmetic's. Good: either,"
            " under load.",
            unit="percentunit",
            queries=[
                Query(f"avg({_gpu('PROF_DRAM_ACTIVE')})", "DRAM"),
                Query(f"avg({_gpu('PROF_PIPE_TENSOR_ACTIVE')})", "tensor"),
                Query(f"avg({_gpu('PROF_SM_ACTIVE')})", "SM"),
            ],
            width=6,
            maximum=1,
            no_value=f"{_NO_GPU}, or not its profiling metrics",
        ),
        panels.timeseries(
            "GPU memory",
            "Share of a GPU's memory in use. Good: flat, since a model server takes what it wants at its start. A"
            " climb is a leak, or somebody else's process.",
            unit="percentunit",
            queries=spread(f"{used} / ({used} + {free})"),
            width=6,
            maximum=1,
            no_value=_NO_GPU,
        ),
        panels.timeseries(
            "Power",
            "Power of the GPU that draws most and of the one that draws least, below the dashed limit. Good: below it."
            " At the limit clocks are lowered, and everybody's tokens with them.",
            unit="watt",
            queries=[
                *spread(_gpu("DEV_POWER_USAGE")),
                Query(f"min({_gpu('DEV_POWER_MGMT_LIMIT')})", "objective: limit"),
            ],
            width=6,
            no_value=_NO_GPU,
            alerts=["KneewatchGPUThrottling"],
        ),
        panels.timeseries(
            "SM clock",
            "Clock of the fastest and the slowest GPU. Good: alike, and steady under load. One that is slower holds up"
            " a whole tensor-parallel group.",
            unit="rotmhz",
            queries=spread(_gpu("DEV_SM_CLOCK")),
            width=6,
            no_value=_NO_GPU,
            alerts=["KneewatchGPUThrottling"],
        ),
        panels.timeseries(
            "Throttled",
            "Share of the time in which clocks were lowered for power and for heat, of the GPU that was most. Good: no"
            " heat at all, power only at full load.",
            unit="percentunit",
            queries=[
                Query(f"max({_grown('DEV_POWER_VIOLATION', 1e9)})", "power"),
                Query(f"max({_grown('DEV_THERMAL_VIOLATION', 1e9)})", "heat"),
            ],
            width=6,
            maximum=1,
            no_value=f"{_NO_GPU}, or not these counters",
            alerts=["KneewatchGPUThrottling"],
        ),
        panels.timeseries(
            "Errors",
            "The last XID error of any GPU, which stays until the driver forgets it, on the left; memory errors that"
            " could not be corrected, on the right. Good: zero. What an XID means is in its runbook.",
            unit="none",
            queries=[
                Query(f"max({_gpu('DEV_XID_ERRORS')})", "last XID"),
                Query(f"max({_gpu('DEV_UNCORRECTABLE_REMAPPED_ROWS')})", "rows remapped", right=True),
                Query(f"max({_gpu('DEV_ECC_DBE_VOL_TOTAL')})", "double-bit", right=True),
            ],
            width=6,
            right_unit="none",
            no_value=_NO_GPU,
            alerts=["KneewatchGPUXid", "KneewatchGPUMemoryErrors"],
        ),
        panels.timeseries(
            "GPUs and neighbours",
            "How many GPUs the last reading found, on the left; how busy they were beyond our canaries while nobody"
            " else asked the server anything, on the right. Good: as many as the server has, and no neighbour.",
            unit="none",
            queries=[
                Query(largest(names.GPU_COUNT), "GPUs"),
                Query(largest(names.GPU_NEIGHBOUR), "neighbour", right=True),
            ],
            width=6,
            right_unit="percentunit",
            no_value=_NO_GPU,
            alerts=["KneewatchGPUMissing"],
        ),
    ]


def more_of_the_gpus() -> list[PlacedPanel]:
    """The rest of what is relayed, for those who ask."""
    return [
        panels.stat(
            "Reading them",
            "Whether the GPUs were read at the last attempt. Good: read.",
            unit="none",
            queries=[Query(largest(names.GPU_UP), "read")],
            steps=[(None, RED), (1, GREEN)],
            texts={"0": ("UNREADABLE", RED), "1": ("read", GREEN)},
            no_value=_NO_GPU,
            alerts=["KneewatchGPUMissing"],
        ),
        panels.stat(
            "Remapping failed",
            "GPUs in which remapping a memory row has failed. Good: none. One that has is to be replaced.",
            unit="none",
            queries=[Query(f"sum({_gpu('DEV_ROW_REMAP_FAILURE')})", "failed")],
            steps=[(None, GREEN), (1, RED)],
            no_value=_NO_GPU,
            alerts=["KneewatchGPUMemoryErrors"],
        ),
        panels.timeseries(
            "Failed readings",
            "Attempts to read the GPUs that failed, per second. Good: zero.",
            unit="ops",
            queries=[Query(pace(names.GPU_SCRAPE_ERRORS), "failed")],
            no_value=_NO_GPU,
        ),
        panels.timeseries(
            "Temperature",
            "The hottest core and the hottest memory. Good: steady, some degrees below where clocks are lowered.",
            unit="celsius",
            queries=[
                Query(f"max({_gpu('DEV_GPU_TEMP')})", "core"),
                Query(f"max({_gpu('DEV_MEMORY_TEMP')})", "memory"),
            ],
            no_value=_NO_GPU,
            alerts=["KneewatchGPUThrottling"],
        ),
        panels.timeseries(
            "Memory clock, and why clocks are lowered",
            "The slowest memory clock on the left, and the driver's reasons as bits on the right: 4 is power, 32 and"
            " 64 are heat, 8 and 128 the hardware's brake, 1 an idle GPU. Good: 0 or 1.",
            unit="rotmhz",
            queries=[
                Query(f"min({_gpu('DEV_MEM_CLOCK')})", "memory clock"),
                Query(f"max({_gpu('DEV_CLOCK_THROTTLE_REASONS')})", "reasons", right=True),
            ],
            right_unit="none",
            no_value=_NO_GPU,
            alerts=["KneewatchGPUThrottling"],
        ),
        panels.timeseries(
            "Memory errors that were corrected",
            "Single-bit errors since the driver was loaded, and rows remapped for them. Good: few, and not growing day"
            " by day.",
            unit="none",
            queries=[
                Query(f"sum({_gpu('DEV_ECC_SBE_VOL_TOTAL')})", "single-bit"),
                Query(f"sum({_gpu('DEV_CORRECTABLE_REMAPPED_ROWS')})", "rows remapped"),
            ],
            no_value=f"{_NO_GPU}, or not these counters",
            alerts=["KneewatchGPUMemoryErrors"],
        ),
        panels.timeseries(
            "How full the SMs are",
            "Time in which the compute engine was active, and warps on an SM of those that fit, mean of the GPUs."
            " Good: the engine active under load; few warps beside it mean small batches.",
            unit="percentunit",
            queries=[
                Query(f"avg({_gpu('PROF_GR_ENGINE_ACTIVE')})", "engine"),
                Query(f"avg({_gpu('PROF_SM_OCCUPANCY')})", "occupancy"),
                Query(f"avg({_gpu('DEV_MEM_COPY_UTIL')}) / 100", "memory in use"),
            ],
            maximum=1,
            no_value=f"{_NO_GPU}, or not its profiling metrics",
        ),
        panels.timeseries(
            "Links",
            "Traffic over PCIe and NVLink, of all GPUs. Good: NVLink in step with tokens on a tensor-parallel server;"
            " PCIe low, unless the KV cache is offloaded.",
            unit="Bps",
            queries=[
                Query(f"sum({_gpu('PROF_PCIE_TX_BYTES')})", "PCIe out"),
                Query(f"sum({_gpu('PROF_PCIE_RX_BYTES')})", "PCIe in"),
                Query(f"sum({_gpu('DEV_NVLINK_BANDWIDTH_TOTAL')}) * 1e6", "NVLink"),
            ],
            no_value=f"{_NO_GPU}, or not its profiling metrics",
        ),
        panels.timeseries(
            "Energy, and retries on PCIe",
            "Power by the GPUs' own energy counters on the left, PCIe retries per second on the right. Good: no"
            " retries; many are a bad riser or slot.",
            unit="watt",
            queries=[
                Query(f"sum({_grown('DEV_TOTAL_ENERGY_CONSUMPTION', 1e3)})", "power"),
                Query(f"sum({_grown('DEV_PCIE_REPLAY_COUNTER', 1)})", "retries", right=True),
            ],
            right_unit="ops",
            no_value=_NO_GPU,
        ),
    ]
