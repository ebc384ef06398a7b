"""What a GPU can do at most, and how far a server is from it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.roofline import ModelSize, decode_floor_s, distance, gpu, live_use, prefill_peak_tokens_s
from probe.records import ServerSnapshot
from probe.sim.cost import StepCost

H100 = "NVIDIA H100 80GB HBM3"
EIGHT_B = ModelSize(parameters=8e9, weight_bytes=16e9)
LAW = StepCost(0.005, 2e-5, 4e-5, 0.0078, 5e-8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (H100, "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H800", "H100 SXM"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
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
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100 SXM 16GB"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe 32GB"),
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
def test_what_is_not_known_is_not_guessed(name: str) -> None:
    assert gpu(name) is None
    assert distance(LAW, EIGHT_B, name) is None


@pytest.mark.parametrize(
    "name", [H100, "NVIDIA H200", "NVIDIA L4", "NVIDIA L40S", "NVIDIA B200", "AMD Instinct MI300X", "NVIDIA H20"]
)
def test_eight_bits_are_twice_as_fast(name: str) -> None:
    """The table is of dense figures: one with sparsity slipped in would show here."""
    found = gpu(name)
    assert found is not None
    assert found.flop_s(fp8=True) == pytest.approx(2 * found.flop_s(), rel=0.02)


def test_without_fp8_the_other_figure_holds() -> None:
    a100 = gpu("NVIDIA A100-SXM4-80GB")
    assert a100 is not None
    assert a100.flop_s(fp8=True) == a100.flop_s() == 312e12


def test_both_limits_of_a_model() -> None:
    h100 = gpu(H100)
    assert h100 is not None
    assert decode_floor_s(EIGHT_B, h100) == pytest.approx(16e9 / 3350e9)
    assert prefill_peak_tokens_s(EIGHT_B, h100) == pytest.approx(989.5e12 / 16e9)
    four = replace(EIGHT_B, gpus=4)
    assert decode_floor_s(four, h100) == pytest.approx(decode_floor_s(EIGHT_B, h100) / 4)
    assert prefill_peak_tokens_s(four, h100) == pytest.approx(4 * prefill_peak_tokens_s(EIGHT_B, h100))


def test_how_far_a_server_is_from_them_in_ratios_and_words() -> None:
    found = distance(LAW, EIGHT_B, H100)
    assert found is not None
    assert found.decode_ratio == pytest.approx(4.776 / 12.82, rel=0.01)
    assert found.prefill_ratio == pytest.approx(2048 / 0.087 / 61_844, rel=0.02)
    assert found.words == (
        "a step takes 12.8 ms at least; reading 16 GB of weights at 3350 GB/s takes 4.8 ms of it; prompts are read at"
        " 2.36e+04 tokens/s, 38% of what H100 SXM can"
    )


def test_faster_than_can_be_says_that_something_is_wrong() -> None:
    """Such as the bytes of a model that was quantised."""
    found = distance(LAW, replace(EIGHT_B, weight_bytes=160e9), H100)
    assert found is not None
    assert "faster than H100 SXM can be (3.7 times its limit)" in found.words


@pytest.mark.parametrize(
    ("cost", "model"),
    [
        (StepCost(0, 0, 0), EIGHT_B),
        (LAW, replace(EIGHT_B, parameters=0)),
        (LAW, replace(EIGHT_B, weight_bytes=0)),
        (LAW, replace(EIGHT_B, gpus=0)),
    ],
)
def test_a_law_or_a_model_of_nothing_has_no_distance(cost: StepCost, model: ModelSize) -> None:
    assert distance(cost, model, H100) is None


def reading(at_s: float, flops: float | None, read: float | None, **more: object) -> ServerSnapshot:
    plain = ServerSnapshot(at_ns=round(at_s * 1e9), wall_s=at_s, estimated_flops=flops, estimated_read_bytes=read)
    return replace(plain, **more)  # type: ignore[arg-type]


def test_live_use_is_the_share_of_both_peaks() -> None:
    h100 = gpu(H100)
    assert h100 is not None
    begin = reading(0, 0, 0, estimated_write_bytes=0.0)
    end = reading(10, 989.5e12, 33.5e12 / 4, estimated_write_bytes=33.5e12 / 4)
    found = live_use(begin, end, h100)
    assert found is not None
    assert found.flops_ratio == pytest.approx(0.1)
    assert found.bandwidth_ratio == pytest.approx(0.5)
    in_fp8 = live_use(begin, end, h100, fp8=True)
    assert in_fp8 is not None
    assert in_fp8.flops_ratio == pytest.approx(0.05)
    two = live_use(replace(begin, engines=2), replace(end, engines=2), h100)
    assert two is not None
    assert two.flops_ratio == pytest.approx(0.05)


@pytest.mark.parametrize(
    "after",
    [
        reading(10, None, 1e12),
        reading(10, 1e15, None),
        reading(10, 0.5e15, 1e12),  # counted from zero again
        reading(1, 1e15, 1e12),  # no time has passed
        reading(0, 1e15, 1e12),
        reading(10, 2e15, 2e12, engines=2),
    ],
)
def test_live_use_of_odd_readings_is_unknown(after: ServerSnapshot) -> None:
    h100 = gpu(H100)
    assert h100 is not None
    assert live_use(reading(1, 1e15, 1e12), after, h100) is None


@given(st.text())
def test_any_name_has_an_answer(name: str) -> None:
    found = gpu(name)
    assert found is None or found.bandwidth_gb_s > 0
