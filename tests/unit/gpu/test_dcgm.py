"""dcgm-exporter's pages of every generation, to the same names and units. Pages say in their first line where they were
recorded, or what they were made from.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.snapshot import Gpu, GpuSnapshot
from probe.gpu.dcgm import MAX_GPUS, choose, parse, read
from probe.gpu.fields import LABELS, NAMES, use

PAGES = {path.stem: path.read_text() for path in sorted((Path(__file__).parents[2] / "pages/gpu").glob("dcgm-*.prom"))}
AMD = 'gpu_edge_temperature{card_model="0x74a1",gpu_id="0",hostname="mi300x"} 41\n'
INTEL = 'xpum_temperature_celsius{dev_name="Intel(R) Data Center GPU Max 1550",location="gpu",uuid="0"} 33\n'


def gpus(page: str, **labels: str) -> tuple[Gpu, ...]:
    return parse(PAGES.get(f"dcgm-{page}", page), 5, 7.0, labels).gpus


def line(name: str, value: object, labels: str = 'gpu="0",UUID="GPU-a"') -> str:
    return f"DCGM_FI_{name}{{{labels}}} {value}\n"


def values(page: str) -> dict[str, float]:
    """Return the values of the only GPU, without the common prefix of their names."""
    (gpu,) = gpus(page)
    return {name.removeprefix("DCGM_FI_"): value for name, value in gpu.values.items()}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_every_page_has_gpus_with_known_labels_and_relayed_values_only(page: str) -> None:
    found = parse(page, 5, 7.0, {})
    assert (found.at_ns, found.wall_s, found.source) == (5, 7.0, "dcgm")
    assert found.gpus
    for gpu in found.gpus:
        assert set(gpu.labels) <= set(LABELS)
        assert all(gpu.labels.values()), "none is empty"
        assert gpu.values
        assert set(gpu.values) <= NAMES


def test_a_blank_of_an_old_exporter_is_no_value() -> None:
    assert values("2.3") == {"DEV_SM_CLOCK": 139, "DEV_MEM_CLOCK": 405}


def test_an_instance_is_not_the_gpu_that_it_is_part_of() -> None:
    whole, instance = gpus("2.4-mig")
    assert whole.labels["UUID"] == instance.labels["UUID"]
    assert "GPU_I_ID" not in whole.labels
    assert (instance.labels["GPU_I_ID"], instance.labels["GPU_I_PROFILE"]) == ("13", "1g.5gb")
    assert whole.values["DCGM_FI_DEV_POWER_USAGE"] == 409.692
    assert "DCGM_FI_DEV_POWER_USAGE" not in instance.values
    (alone,) = gpus("2.4-mig", GPU_I_ID="13")
    assert alone == replace(instance, values=instance.values | {"DCGM_FI_DEV_XID_ERRORS": 0})


def test_empty_labels_are_none() -> None:
    (gpu,) = gpus("3-idle")
    assert set(gpu.labels) == {"gpu", "UUID", "device", "modelName", "Hostname"}
    assert gpus("3-idle", pod="vllm-0") == ()


def test_a_pod_has_the_gpus_that_bear_its_name() -> None:
    assert len(gpus("4.1-kubernetes")) == 3
    (gpu,) = gpus("4.1-kubernetes", pod="dcgmproftester2", namespace="default")
    assert (gpu.labels["gpu"], gpu.labels["container"]) == ("0", "dcgmproftester2")
    assert gpus("4.1-kubernetes", pod="dcgmproftester2", namespace="other") == ()
    assert gpus("4.1-kubernetes", pod="dcgmproftester") == (), "labels are compared as a whole"


def test_lines_whose_value_is_text_do_not_break_the_page() -> None:
    found = gpus("4-mig")
    assert [gpu.labels["GPU_I_ID"] for gpu in found] == ["7", "8", "9"]
    assert ["pod" in gpu.labels for gpu in found] == [True, False, True]
    assert values(line("DEV_GPU_TEMP", 61) + line("DEV_SM_CLOCK", "ERROR - FAILED TO CONVERT TO STRING")) == {
        "DEV_GPU_TEMP": 61
    }


def test_instances_that_repeat_the_boards_power_and_a_utilization_of_zero_have_one_power_and_their_engines() -> None:
    """Three instances of an A30: dcgm-exporter issues 257 and 216."""
    labels = 'gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA A30",GPU_I_PROFILE="1g.6gb",Hostname="n1"'

    def page(watts: float) -> str:
        return "".join(
            line("DEV_POWER_USAGE", watts, f'{labels},GPU_I_ID="{i}"')
            + line("DEV_GPU_UTIL", 0, f'{labels},GPU_I_ID="{i}"')
            + line("DEV_FB_USED", 1000 * i, f'{labels},GPU_I_ID="{i}"')
            + line("PROF_GR_ENGINE_ACTIVE", 0.93, f'{labels},GPU_I_ID="{i}"')
            for i in (3, 4, 5)
        )

    found = use([parse(page(watts), at, 0.0, {}) for at, watts in enumerate((50, 52.85))], (0, 9))
    assert (found.utilization, found.total_power_w, found.memory_peak_bytes) == (0.93, 52.85, 5000 * 2**20)
    assert [gpu.values["DCGM_FI_DEV_FB_USED"] for gpu in gpus(page(50))] == [3000, 4000, 5000]
    (one,) = gpus(page(50), GPU_I_ID="4")
    assert one.values["DCGM_FI_DEV_POWER_USAGE"] == 50, "of the board: an instance's own is not known"


@pytest.mark.parametrize(
    "field", ["DEV_FB_USED", "DEV_POWER_USAGE", "DEV_XID_ERRORS", "DEV_FB_USED_BYTES", "DEV_SM_CLOCK"]
)
def test_minus_one_is_no_value(field: str) -> None:
    assert values(line("DEV_GPU_TEMP", 61) + line(field, -1)) == {"DEV_GPU_TEMP": 61}


def test_labels_in_lower_case_are_known() -> None:
    """As an agent or a relabelling between the exporter and Kneewatch may write them."""
    labels = 'gpu="0",uuid="GPU-a",modelname="NVIDIA A100",gpu_i_id="{}",gpu_i_profile="3g.40gb",hostname="n"'
    page = "".join(line("PROF_GR_ENGINE_ACTIVE", 0.5, labels.format(i)) for i in "12")
    first, second = gpus(page)
    assert first.labels == {
        "gpu": "0", "UUID": "GPU-a", "modelName": "NVIDIA A100", "Hostname": "n", "GPU_I_ID": "1",
        "GPU_I_PROFILE": "3g.40gb",
    }  # fmt: skip
    assert gpus(page, GPU_I_ID="2") == (second,)
    assert gpus(line("DEV_GPU_TEMP", 61, 'UUID="GPU-a",model_name="H100"'))[0].labels["modelName"] == "H100"


def test_a_vgpu_has_what_its_host_lets_it_see() -> None:
    found = values("4-vgpu")
    assert (found["DEV_SM_CLOCK"], found["DEV_FB_RESERVED"], found["DEV_XID_ERRORS"]) == (1755, 717, 0)
    assert "DEV_POWER_USAGE" not in found


def test_the_host_is_taken_from_one_label_in_either_case() -> None:
    assert len(gpus("4.8-mig", Hostname="dcgm-exporter-wwwjh")) == 4
    assert [gpu.labels["modelName"] for gpu in gpus("4.8-mig", gpu="1")] == ["NVIDIA RTX 2000 Ada Generation"]


def test_a_shared_gpu_is_one_gpu_with_the_values_of_all_of_it() -> None:
    (gpu,) = gpus("4.8-shared")
    assert gpu.labels["container"] == "vllm"
    assert {"pod", "namespace"}.isdisjoint(gpu.labels), "it has several"
    assert (gpu.values["DCGM_FI_DEV_GPU_UTIL"], gpu.values["DCGM_FI_DEV_FB_USED"]) == (91, 13120)
    (of_team,) = gpus("4.8-shared", namespace="team-a")
    assert of_team.labels == gpu.labels | {"namespace": "team-a"}
    (of_pod,) = gpus("4.8-shared", pod="chat-1")
    assert of_pod.labels == gpu.labels | {"namespace": "team-a", "pod": "chat-1"}
    assert of_pod.values == gpu.values
    assert gpus("4.8-shared", pod="chat-1", namespace="team-b") == (), "one user has all labels, or it is not the one"


def test_names_and_units_of_4_9_are_turned_back() -> None:
    full, second = ({name[8:]: value for name, value in gpu.values.items()} for gpu in gpus("4.9"))
    assert (full["DEV_SM_CLOCK"], full["DEV_MEM_CLOCK"]) == (1980, 2619)
    assert (full["DEV_GPU_TEMP"], full["DEV_MEMORY_TEMP"], full["DEV_POWER_USAGE"]) == (66, 71, 612.345)
    assert full["DEV_TOTAL_ENERGY_CONSUMPTION"] == 5551899580_000
    assert (full["DEV_GPU_UTIL"], full["DEV_MEM_COPY_UTIL"], second["DEV_GPU_UTIL"]) == (100, 57, 29)
    assert (full["DEV_FB_FREE"], full["DEV_FB_USED"], full["DEV_FB_RESERVED"]) == (3072, 77824, 663)
    assert full["DEV_NVLINK_BANDWIDTH_TOTAL"] == 200_000, "KiB/s over 1000, which is no MiB/s"
    assert (second["DEV_XID_ERRORS"], second["DEV_PCIE_REPLAY_COUNTER"]) == (94, 2)
    assert (second["DEV_UNCORRECTABLE_REMAPPED_ROWS"], second["DEV_CORRECTABLE_REMAPPED_ROWS"]) == (1, 3)
    assert (full["DEV_CLOCK_THROTTLE_REASONS"], full["DEV_POWER_MGMT_LIMIT"]) == (4, 700)
    assert (full["DEV_POWER_VIOLATION"], second["DEV_THERMAL_VIOLATION"]) == (12_345_678_000, 500_000_000)
    assert (full["PROF_PIPE_TENSOR_ACTIVE"], full["PROF_SM_OCCUPANCY"]) == (0.412, 0.244)


@pytest.mark.parametrize(("page", "driver"), [("3-idle", "510.47.03"), ("4.9", "595.58.03")])
def test_the_driver_is_a_version_and_not_a_label(page: str, driver: str) -> None:
    gpu, *_ = gpus(page)
    assert gpu.versions == {"driver": driver}
    assert not any("VERSION" in name for name in gpu.labels)


def test_every_relayed_value_is_found_under_its_newer_name() -> None:
    unchanged = {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"}
    assert set(gpus("4.9")[0].values) == NAMES - unchanged


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (line("DEV_GPU_UTIL_RATIO", 37), 37),  # DCGM 4.6: per cent, whatever the name says
        (line("DEV_GPU_UTIL_RATIO", "0.37"), 37),  # 4.7
        (line("DEV_GPU_UTIL_RATIO", 1) + line("DEV_FB_USED_BYTES", 2**30), 100),  # 4.7, by its company
        (line("DEV_GPU_UTIL_RATIO", 1), None),  # 1 %, or all of it
        (line("DEV_GPU_UTIL_RATIO", 1) + line("DEV_GPU_UTIL_RATIO", 40, 'UUID="GPU-b"'), 1),
    ],
)
def test_a_ratio_that_was_per_cent_is_recognized_by_the_page(page: str, expected: float | None) -> None:
    assert gpus(page, UUID="GPU-a")[0].values.get("DCGM_FI_DEV_GPU_UTIL") == expected


def test_a_page_with_both_names_has_one_value() -> None:
    assert values(line("DEV_SM_CLOCK", 1980) + line("DEV_SM_CLOCK_HERTZ", 1980000000)) == {"DEV_SM_CLOCK": 1980}


def test_on_a_federated_page_the_exporters_own_pod_is_ignored() -> None:
    shared, idle = gpus("federated")
    assert {"pod", "namespace", "container"}.isdisjoint({*shared.labels, *idle.labels})
    assert shared.values == {"DCGM_FI_DEV_GPU_TEMP": 61, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 31035686671}
    (of_pod,) = gpus("federated", pod="pod3")
    assert (of_pod.labels["namespace"], of_pod.labels["container"]) == ("somenamespace", "runner")
    assert gpus("federated", pod="dcgm-exporter-dev-78z52") == ()


def test_the_first_names_of_pod_labels_are_known() -> None:
    (gpu,) = gpus(line("DEV_GPU_TEMP", 61, 'UUID="GPU-a",pod_name="p",pod_namespace="n",container_name="c"'))
    assert gpu.labels == {"UUID": "GPU-a", "pod": "p", "namespace": "n", "container": "c"}


@pytest.mark.parametrize("number", [*range(2**31 - 16, 2**31 - 12), *range(2**63 - 16, 2**63 - 12)])
def test_whole_blanks_are_no_values(number: int) -> None:
    assert values(line("DEV_GPU_TEMP", 61) + line("DEV_TOTAL_ENERGY_CONSUMPTION", number)) == {"DEV_GPU_TEMP": 61}


@pytest.mark.parametrize("text", ["140737488355328.000000", "1.40737488355331e+14", "NaN", "+Inf", "-Inf", "9.3e18"])
def test_other_blanks_are_no_values(text: str) -> None:
    assert values(line("DEV_GPU_TEMP", 61) + line("DEV_POWER_USAGE", text)) == {"DEV_GPU_TEMP": 61}


@given(st.integers(0, 2**60))
def test_a_counter_may_pass_the_blanks(number: int) -> None:
    blank = 2**31 - 16 <= number <= 2**31 - 13 or 2**47 <= number <= 2**47 + 3
    found = values(line("DEV_GPU_TEMP", 61) + line("DEV_TOTAL_ENERGY_CONSUMPTION", number))
    assert found.get("DEV_TOTAL_ENERGY_CONSUMPTION") == (None if blank else float(number))


@given(st.floats(-10, 1e6), st.sampled_from([("DEV_GPU_UTIL", 100.0), ("PROF_DRAM_ACTIVE", 1.01)]))
def test_utilisation_that_cannot_be_is_dropped(value: float, kind: tuple[str, float]) -> None:
    name, most = kind
    assert values(line("DEV_GPU_TEMP", 61) + line(name, value)).get(name) == (value if 0 <= value <= most else None)


def test_a_gpu_whose_values_are_all_blank_is_there() -> None:
    assert gpus(line("DEV_GPU_TEMP", 2**63 - 14)) == (Gpu({"gpu": "0", "UUID": "GPU-a"}, {}),)


def test_gpus_without_uuid_are_identified_by_number_device_and_host() -> None:
    page = "".join(line("DEV_GPU_TEMP", 50, f'gpu="{n}",Hostname="{host}"') for n in "01" for host in "ab")
    assert len(gpus(page)) == 4
    assert gpus(page + line("DEV_GPU_TEMP", 50, 'modelName="NVIDIA B200"')) == gpus(page), "nothing tells which"


def test_a_gpu_on_two_pages_is_one() -> None:
    device = read(line("DEV_GPU_TEMP", 61))
    assert choose([*device, *device], {}) == choose(device, {})


def test_more_gpus_than_a_target_may_have_ask_for_labels() -> None:
    page = "".join(
        line("DEV_GPU_TEMP", 50, f'gpu="{n}",UUID="GPU-{n}",GPU_I_ID="{i}"') for n in range(8) for i in range(7)
    )
    assert len(gpus(page, UUID="GPU-3")) == 7
    with pytest.raises(ValueError, match=rf"^56 GPUs, of at most {MAX_GPUS}; set labels that [^\n]+$"):
        gpus(page)


@pytest.mark.parametrize(
    "page", ["", AMD, INTEL, "<html>DCGM_FI_DEV_GPU_UTIL</html>", 'up{job="DCGM_FI_"} 1\n', "\x00\xff\n" * 9]
)
def test_another_page_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=r"^no series of dcgm-exporter on the page$"):
        gpus(page)


def test_an_exporter_that_finds_no_gpu_has_none() -> None:
    """So were the pages of dcgm-exporter issue 222. A GPU that is missing is for an alert, not for an error."""
    assert gpus("# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n") == ()


def test_labels_are_cut() -> None:
    (gpu,) = gpus(line("DEV_GPU_TEMP", 61, f'UUID="GPU-a",modelName="{"x" * 9000}",pod="{"y" * 5000}"'))
    assert max(map(len, gpu.labels.values())) == 253


@given(st.sampled_from(sorted(PAGES.values())), st.data())
def test_a_filter_gives_all_gpus_with_these_labels_and_no_others(page: str, data: st.DataObject) -> None:
    every = gpus(page)
    wanted = data.draw(st.sampled_from(every)).labels
    wanted = {name: wanted[name] for name in data.draw(st.sets(st.sampled_from(sorted(wanted))))}
    found = gpus(page, **wanted)
    assert all(wanted.items() <= gpu.labels.items() for gpu in found)
    identities = [(gpu.labels["UUID"], gpu.labels.get("GPU_I_ID")) for gpu in found]
    for gpu in every:
        has_all = wanted.items() <= gpu.labels.items()
        assert not has_all or (gpu.labels["UUID"], gpu.labels.get("GPU_I_ID")) in identities


@given(st.data())
def test_a_damaged_page_is_a_value_error_or_a_snapshot(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(sorted(PAGES.values()))).split("\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    damage = data.draw(
        st.sampled_from(["", "{", '{gpu="0"} 1', " NaN", " +Inf", '="', " 9" * 400, "} 1 2 3", "x" * 20_000])
    )
    lines[at] = lines[at][: data.draw(st.integers(0, 300))] + damage
    try:
        found = parse("\n".join(lines), 0, 0.0, {})
    except ValueError:
        return
    assert isinstance(found, GpuSnapshot)
