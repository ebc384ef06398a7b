"""A row of the Server dashboard: the other relayed GPU metrics, and whether the GPUs can be read."""

from dashboards import panels
from dashboards.pieces import GREEN, NO_GPU, RED, PlacedPanel, Query
from dashboards.queries import gpu_rate, gpu_value, largest, pace
from exporters import names


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
            unit="rotmhz",
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
            " engine under load; low occupancy beside it means small batches.",
            unit="percentunit",
            queries=[
                Query(f"avg({gpu_value('PROF_GR_ENGINE_ACTIVE')})", "engine"),
                Query(f"avg({gpu_value('PROF_SM_OCCUPANCY')})", "occupancy"),
                Query(f"avg({gpu_value('DEV_MEM_COPY_UTIL')}) / 100", "memory in use"),
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
                Query(f"sum({gpu_value('DEV_NVLINK_BANDWIDTH_TOTAL')}) * 1e6", "NVLink"),
            ],
            no_value=f"{NO_GPU}, or no profiling metrics",
        ),
        panels.timeseries(
            "Energy and PCIe retries",
            "Power by the GPUs' energy counters on the left, PCIe retries per second on the right. Good: no retries;"
            " many indicate a bad riser or slot.",
            unit="watt",
            queries=[
                Query(f"sum({gpu_rate('DEV_TOTAL_ENERGY_CONSUMPTION', 1e3)})", "power"),
                Query(f"sum({gpu_rate('DEV_PCIE_REPLAY_COUNTER', 1)})", "retries", is_on_right_axis=True),
            ],
            right_unit="ops",
            no_value=NO_GPU,
        ),
    ]
