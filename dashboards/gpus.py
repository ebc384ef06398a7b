"""Rows on GPUs of the Server dashboard: what most often explains a slow server, and the rest."""

from dashboards import panels
from dashboards.pieces import GREEN, NO_GPU, RED, PlacedPanel, Query
from dashboards.queries import gpu_rate, gpu_value, largest, pace, spread
from exporters import names

# Of an instance of a divided GPU, the driver knows only its engine.
_BUSY = f"({gpu_value('DEV_GPU_UTIL')} or {gpu_value('PROF_GR_ENGINE_ACTIVE')})"


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
            queries=spread(_BUSY),
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
            unit="hertz",
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
                Query(f"max({gpu_rate('DEV_POWER_VIOLATION')})", "power"),
                Query(f"max({gpu_rate('DEV_THERMAL_VIOLATION')})", "heat"),
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


def gpu_details() -> list[PlacedPanel]:
    """Return the panels on the other relayed GPU series."""
    return [*_scrapes(), *_heat_and_errors(), *_activity_and_links()]


def _scrapes() -> list[PlacedPanel]:
    return [
        panels.stat(
            "GPU metrics",
            "Whether the last scrape of the GPU metrics succeeded. Good: read.",
            unit="none",
            queries=[Query(largest(names.GPU_UP), "read")],
            steps=[(None, RED), (1, GREEN)],
            texts={"0": ("UNREADABLE", RED), "1": ("read", GREEN)},
            no_value=NO_GPU,
        ),
        panels.stat(
            "Failed row remapping",
            "GPUs in which remapping a memory row has failed. Good: none. Replace such a GPU.",
            unit="none",
            queries=[Query(f"sum({gpu_value('DEV_ROW_REMAP_FAILURE')})", "failed")],
            steps=[(None, GREEN), (1, RED)],
            no_value=NO_GPU,
        ),
        panels.timeseries(
            "Failed GPU scrapes",
            "Failed scrapes of the GPU metrics, per second. Good: zero.",
            unit="ops",
            queries=[Query(pace(names.GPU_SCRAPE_ERRORS), "failed")],
            no_value=NO_GPU,
        ),
    ]


def _heat_and_errors() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Temperature",
            "The hottest core and the hottest memory. Good: steady, some degrees below the throttling limit.",
            unit="celsius",
            queries=[
                Query(f"max({gpu_value('DEV_GPU_TEMP')})", "core"),
                Query(f"max({gpu_value('DEV_MEMORY_TEMP')})", "memory"),
            ],
            no_value=NO_GPU,
        ),
        panels.timeseries(
            "Memory clock and throttle reasons",
            "The slowest memory clock on the left, and the driver's throttle reasons as bits on the right: 4 is power,"
            " 32 and 64 are heat, 8 and 128 the hardware brake, 1 an idle GPU. Good: 0 or 1.",
            unit="hertz",
            queries=[
                Query(f"min({gpu_value('DEV_MEM_CLOCK')})", "memory clock"),
                Query(f"max({gpu_value('DEV_CLOCK_THROTTLE_REASONS')})", "reasons", is_on_right_axis=True),
            ],
            right_unit="none",
            no_value=NO_GPU,
        ),
        panels.timeseries(
            "Corrected memory errors",
            "Single-bit errors since the driver was loaded, and rows remapped for them. Good: few, and not growing from"
            " day to day.",
            unit="none",
            queries=[
                Query(f"sum({gpu_value('DEV_ECC_SBE_VOL_TOTAL')})", "single-bit"),
                Query(f"sum({gpu_value('DEV_CORRECTABLE_REMAPPED_ROWS')})", "rows remapped"),
            ],
            no_value=f"{NO_GPU}, or no such counters",
        ),
    ]


def _activity_and_links() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "SM activity",
            "Share of time with an active compute engine, and SM occupancy by warps, mean of the GPUs. Good: an active"
            " engine under load; low occupancy at the same time means small batches.",
            unit="percentunit",
            queries=[
                Query(f"avg({gpu_value('PROF_GR_ENGINE_ACTIVE')})", "engine"),
                Query(f"avg({gpu_value('PROF_SM_OCCUPANCY')})", "occupancy"),
                Query(f"avg({gpu_value('DEV_MEM_COPY_UTIL')})", "memory in use"),
            ],
            maximum=1,
            no_value=f"{NO_GPU}, or no profiling metrics",
        ),
        panels.timeseries(
            "Links",
            "PCIe and NVLink traffic of all GPUs. Good: NVLink follows the tokens on a tensor-parallel server; PCIe is"
            " low, unless the KV cache is offloaded.",
            unit="Bps",
            queries=[
                Query(f"sum({gpu_value('PROF_PCIE_TX_BYTES')})", "PCIe out"),
                Query(f"sum({gpu_value('PROF_PCIE_RX_BYTES')})", "PCIe in"),
                Query(f"sum({gpu_value('DEV_NVLINK_BANDWIDTH_TOTAL')})", "NVLink"),
            ],
            no_value=f"{NO_GPU}, or no profiling metrics",
        ),
        panels.timeseries(
            "Energy and PCIe retries",
            "Power by the GPUs' energy counters on the left, PCIe retries per second on the right. Good: no retries;"
            " many indicate a bad riser or slot.",
            unit="watt",
            queries=[
                Query(f"sum({gpu_rate('DEV_TOTAL_ENERGY_CONSUMPTION')})", "power"),
                Query(f"sum({gpu_rate('DEV_PCIE_REPLAY_COUNTER')})", "retries", is_on_right_axis=True),
            ],
            right_unit="ops",
            no_value=NO_GPU,
        ),
    ]
