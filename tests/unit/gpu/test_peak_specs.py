"""What a GPU can do at most, by the names that drivers give it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.gpu.peak_specs import NAMES, gpu


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA-H100-80GB-HBM3", "H100 SXM"),  # a Kubernetes node's label
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H800", "H100 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA H20", "H20 96GB"),
        ("NVIDIA H20-3e", "H20 141GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA-A100-80GB-PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A800-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100 SXM"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("Tesla V100S-PCIE-32GB", "V100S"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI355X", "MI355X"),
    ],
)
def test_names_as_drivers_report_them(name: str, expected: str) -> None:
    found = gpu(name)
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",  # a share of it
        "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "GRID A100-10C",
        "NVIDIA A10-24Q",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA T400",
        "NVIDIA L400",
        "NVIDIA A100-SXM-64GB",
        "Intel Gaudi 3",
    ],
)
def test_an_unknown_gpu_has_no_peak_values(name: str) -> None:
    assert gpu(name) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_table_s_own_names_are_known(name: str) -> None:
    found = gpu(name.lower())
    assert found is not None
    assert found.name == name
    assert found.bandwidth_gb_s < found.bf16_tflop_s * 1e3 < 1e4 * found.bandwidth_gb_s


@pytest.mark.parametrize("name", [name for name in NAMES if name[0] in "BGHL"])
def test_eight_bits_are_twice_as_fast(name: str) -> None:
    """The table is of dense figures: one with sparsity slipped in would show here."""
    found = gpu(name)
    assert found is not None
    assert found.flop_s(fp8=True) == pytest.approx(2 * found.flop_s(), rel=0.02)


def test_without_fp8_the_other_figure_holds() -> None:
    a100 = gpu("NVIDIA A100-SXM4-80GB")
    assert a100 is not None
    assert a100.flop_s(fp8=True) == a100.flop_s() == 312e12


@given(st.text())
def test_any_name_has_an_answer(name: str) -> None:
    found = gpu(name)
    assert found is None or found.bandwidth_gb_s > 0
