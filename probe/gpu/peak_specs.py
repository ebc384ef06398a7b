"""Published peak performance of GPUs, by the names that drivers report. Pure.

In: a name. Out: a GpuSpec, or None if the table does not have it: a guess would not be a limit.
"""

import re
from dataclasses import dataclass

_TERA = 1e12


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Peak performance of one GPU: memory bandwidth, and dense tensor throughput in BF16 (FP16 if it has no BF16) and
    in FP8 (None if it has none). `sure`: the values were found to be what the maker publishes for exactly this card.
    """

    name: str
    bandwidth_gb_s: float
    bf16_tflop_s: float
    fp8_tflop_s: float | None = None
    sure: bool = True
    given_memory_gib: float | None = None  # of a card that is described, not listed

    @property
    def memory_gib(self) -> float | None:
        """Return the nominal memory in GiB; None where cards of that name have several sizes, or none is certain.

        Drivers report up to 1 % less, and about 6 % less of GDDR6 with ECC (T4, A10, A10G, L4, A40, L40, L40S, L20).
        """
        return self.given_memory_gib or _MEMORY_GIB.get(self.name)

    def flop_s(self, *, fp8: bool = False) -> float:
        """Return the peak FLOP/s, in FP8 if `fp8` and available."""
        return (self.fp8_tflop_s if fp8 and self.fp8_tflop_s else self.bf16_tflop_s) * _TERA


# Data sheets print tensor throughput "with sparsity", twice the dense one: here it is halved. GeForce adds up in FP32,
# which is what inference uses, at half of the printed rate.
#
# Checked in November 2026, not in the data sheets themselves, but in public text that quotes them and says which:
# - NVIDIA's own code, TensorRT-LLM (auto_parallel/cluster_info.py) and Dynamo's aiconfigurator (systems/*.yaml), for
#   A100, A10, A30, A40, L4, L40, L40S, H100 SXM and PCIe, H200 SXM and NVL, B200, B300, GB200, GB300. B300: 62 TB/s for
#   eight of them.
# - H100 NVL: PB-11773, table 2, and the product page. GH200: NVIDIA's announcement of both memories. T4, V100: their
#   data sheets, as PyTorch Lightning and others cite them. RTX A6000, RTX 6000 Ada: their data sheets. RTX 3090, 4090,
#   5090: the tables of the GA102, Ada (2.1) and RTX Blackwell whitepapers.
# - AMD's ROCm documentation for MI300X; its product pages and brochures, as PyTorch, torchtitan and verl cite them, for
#   MI210, MI325X, MI350X and MI355X (digits beyond the printed ones are CUs x clock x operations).
# `sure=False`: H20 and L20 (no data sheet is public; NVIDIA's code and resellers differ by 1 %), A10G (made for one
# cloud; 70 in NVIDIA's code, 125, which is A10's, in others), RTX PRO 6000 (the product pages have the
# bandwidth, and only FP4's throughput: a quarter and an eighth of that).
#
# The first pattern that is found in a name counts, so the special ones come first. Dashes are spaces by then.
_GPUS: tuple[tuple[str, GpuSpec], ...] = (
    (r"GB300", GpuSpec("GB300", 8000, 2500, 5000)),
    (r"\bB300", GpuSpec("B300", 7750, 2250, 4500)),
    (r"GB200", GpuSpec("GB200", 8000, 2500, 5000)),
    (r"\bB200", GpuSpec("B200", 7700, 2250, 4500)),
    (r"GH200 144G", GpuSpec("GH200 144GB", 4900, 989.5, 1979)),
    (r"GH200", GpuSpec("GH200 96GB", 4000, 989.5, 1979)),
    (r"H200 NVL", GpuSpec("H200 NVL", 4800, 835.5, 1670.5)),
    (r"H200$|H200 SXM", GpuSpec("H200 SXM", 4800, 989.5, 1979)),
    (r"H100 NVL", GpuSpec("H100 NVL", 3938, 835.5, 1670.5)),
    (r"H(100|800) PCIe|H100 80GB HBM2e", GpuSpec("H100 PCIe", 2000, 756.5, 1513)),
    (r"H(100|800)( 80GB HBM3| SXM5?)?$", GpuSpec("H100 SXM", 3350, 989.5, 1979)),
    (r"\bH20 3e", GpuSpec("H20 141GB", 4800, 148, 296, sure=False)),
    (r"\bH20\b", GpuSpec("H20 96GB", 4000, 148, 296, sure=False)),
    (r"A(100|800) SXM\d? 80GB", GpuSpec("A100 SXM 80GB", 2039, 312)),
    (r"A(100|800) (PCIE? )?80GB", GpuSpec("A100 PCIe 80GB", 1935, 312)),
    (r"A(100|800) (SXM\d? |PCIE? )?40GB", GpuSpec("A100 40GB", 1555, 312)),
    (r"\bA10G\b", GpuSpec("A10G", 600, 70, sure=False)),
    (r"\bA10\b", GpuSpec("A10", 600, 125)),
    (r"\bA30\b", GpuSpec("A30", 933, 165)),
    (r"\bA40\b", GpuSpec("A40", 696, 149.7)),
    (r"RTX A6000", GpuSpec("RTX A6000", 768, 154.8)),
    (r"RTX PRO 6000.*Server", GpuSpec("RTX PRO 6000 Server", 1597, 500, 1000, sure=False)),
    (r"RTX PRO 6000", GpuSpec("RTX PRO 6000", 1792, 500, 1000, sure=False)),
    (r"RTX 6000 Ada", GpuSpec("RTX 6000 Ada", 960, 364.2, 728.5)),
    (r"RTX 5090\b(?! ?(D|Laptop))", GpuSpec("RTX 5090", 1792, 209.5, 419)),
    (r"RTX 4090\b(?! ?(D|Laptop))", GpuSpec("RTX 4090", 1008, 165.2, 330.3)),
    (r"RTX 3090\b(?! ?(Ti|Laptop))", GpuSpec("RTX 3090", 936, 71)),
    (r"\bL40S\b", GpuSpec("L40S", 864, 362, 733)),
    (r"\bL40\b", GpuSpec("L40", 864, 181, 362)),
    (r"\bL20\b", GpuSpec("L20", 864, 119.5, 239, sure=False)),
    (r"\bL4\b", GpuSpec("L4", 300, 121, 242.5)),
    (r"\bT4\b", GpuSpec("T4", 320, 65)),
    (r"V100S PCIE", GpuSpec("V100S", 1134, 130)),
    (r"V100 PCIE", GpuSpec("V100 PCIe", 900, 112)),
    (r"V100 SXM", GpuSpec("V100 SXM", 900, 125)),
    (r"MI355X", GpuSpec("MI355X", 8000, 2516.6, 5033.2)),
    (r"MI350X", GpuSpec("MI350X", 8000, 2306.9, 4613.7)),
    (r"MI325X", GpuSpec("MI325X", 6000, 1307.4, 2614.9)),
    (r"MI300X", GpuSpec("MI300X", 5300, 1307.4, 2614.9)),
    (r"MI210", GpuSpec("MI210", 1638.4, 181)),
)
# Nominal sizes, which data sheets call GB and which are about GiB; not looked up one by one. Drivers report up to 1 %
# less (140.4 of an H200's "141 GB"), and about 6 % less of GDDR6 with ECC: T4, A10, A10G, L4, A40, L40, L40S, L20.
# Without one: V100, which has two, and B300 and GB300, where sources say 270 to 288 GB.
_MEMORY_GIB = {
    "GB200": 186, "B200": 180, "GH200 144GB": 144, "GH200 96GB": 96, "H200 NVL": 141, "H200 SXM": 141, "H100 NVL": 94,
    "H100 PCIe": 80, "H100 SXM": 80, "H20 141GB": 141, "H20 96GB": 96, "A100 SXM 80GB": 80, "A100 PCIe 80GB": 80,
    "A100 40GB": 40, "A10G": 24, "A10": 24, "A30": 24, "A40": 48, "RTX A6000": 48, "RTX PRO 6000 Server": 96,
    "RTX PRO 6000": 96, "RTX 6000 Ada": 48, "RTX 5090": 32, "RTX 4090": 24, "RTX 3090": 24, "L40S": 48, "L40": 48,
    "L20": 48, "L4": 24, "T4": 16, "V100S": 32, "MI355X": 288, "MI350X": 288, "MI325X": 256, "MI300X": 192, "MI210": 64,
}  # fmt: skip
NAMES = tuple(found.name for _, found in _GPUS)


def gpu(name: str) -> GpuSpec | None:
    """Return the GPU of that name (NVML's, dcgm-exporter's `modelName`, a node's label, or the table's own), or None.

    None for a MIG instance and a virtual GPU (GRID, or a profile such as -24Q): the name does not tell their share.
    """
    if re.search(r"\bMIG\b|\bGRID\b|-\d+[ABCQ]\b", name, re.IGNORECASE):
        return None
    plain = name.replace("-", " ")
    called = (found for _, found in _GPUS if found.name.lower() == plain.lower())
    matching = (found for pattern, found in _GPUS if re.search(pattern, plain, re.IGNORECASE))
    return next(called, None) or next(matching, None)
