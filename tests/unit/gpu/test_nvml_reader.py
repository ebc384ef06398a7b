"""NVML read through the real nvidia-ml-py, from a library of an imaginary machine with two GPUs (fake_nvml.c)."""

import asyncio
import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.snapshot import Gpu, GpuSnapshot
from probe.gpu.fields import LABELS, NAMES
from probe.gpu.nvml_reader import Nvml
from probe.monitor.gpu_readers import _Fresh

LOST, DRIVER_NOT_LOADED, MISMATCH, NO_PERMISSION = 15, 9, 18, 4
OLD_NAMES, NEW_NAMES = 1, 2
H100, A10 = 0, 1
XID = "DCGM_FI_DEV_XID_ERRORS"
H100_LABELS = {"gpu": "0", "UUID": "GPU-h100", "device": "nvidia0", "modelName": "NVIDIA H100 80GB HBM3"}
A10_LABELS = {"gpu": "1", "UUID": "GPU-a10", "device": "nvidia1", "modelName": "NVIDIA A10"}
ACTIVITY = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.875,
    "DCGM_FI_PROF_SM_ACTIVE": 0.6125,
    "DCGM_FI_PROF_SM_OCCUPANCY": 0.235,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.1875,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.445,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 12.5 * 1024 * 1024,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 6.25 * 1024 * 1024,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 250 * 1.024,
}
H100_VALUES = {
    "DCGM_FI_DEV_SM_CLOCK": 1980,
    "DCGM_FI_DEV_MEM_CLOCK": 2619,
    "DCGM_FI_DEV_GPU_TEMP": 41,
    "DCGM_FI_DEV_MEMORY_TEMP": 52,
    "DCGM_FI_DEV_POWER_USAGE": 412.345,
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": 650.5,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 9876543210,
    "DCGM_FI_DEV_GPU_UTIL": 87,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 34,
    "DCGM_FI_DEV_FB_USED": 62464,
    "DCGM_FI_DEV_FB_FREE": 18432,
    "DCGM_FI_DEV_FB_RESERVED": 663.5,
    XID: 0,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0x104,
    "DCGM_FI_DEV_POWER_VIOLATION": 1111111111111,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 2222222,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 17,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 13,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 2,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 5,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 3,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 1,
}
A10_VALUES = {
    "DCGM_FI_DEV_SM_CLOCK": 1695,
    "DCGM_FI_DEV_MEM_CLOCK": 6251,
    "DCGM_FI_DEV_GPU_TEMP": 55,
    "DCGM_FI_DEV_POWER_USAGE": 98.765,
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": 150,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1234567890,
    "DCGM_FI_DEV_GPU_UTIL": 63,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 29,
    "DCGM_FI_DEV_FB_USED": 21000,
    "DCGM_FI_DEV_FB_FREE": 1731,
    "DCGM_FI_DEV_FB_RESERVED": 297,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 1,
    "DCGM_FI_DEV_POWER_VIOLATION": 700,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 800,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 4,
}


class Fake(ctypes.Structure):
    """`struct fake` of fake_nvml.c, which says what each is."""

    _fields_ = [
        ("count", ctypes.c_int),
        ("init", ctypes.c_int),
        ("error", ctypes.c_int * 2),
        *((name, ctypes.c_int) for name in ("hang", "mig", "names", "xid", "asked_ms")),
        *((name, ctypes.c_int) for name in ("sessions", "samples", "event_sets", "waiting", "torn")),
    ]


class Hand:
    """A clock that a test moves by hand; other threads read it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_ns(self) -> int:
        return round(self.now_s * 1e9)

    def wall_s(self) -> float:
        return 1_790_000_000.0


@pytest.fixture(scope="session")
def library(c_compiler: str, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Loaded under the name that nvidia-ml-py asks for: its own CDLL then finds this one, also beside a real driver."""
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{path.name}"]
    subprocess.run([c_compiler, *flags, "-o", path, Path(__file__).with_name("fake_nvml.c")], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def fake(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The machine, in order; whatever was taken of it in a test has to be given back."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    machine = Fake.in_dll(library, "fake")
    ctypes.memset(ctypes.addressof(machine), 0, ctypes.sizeof(machine))
    machine.count = 2
    yield machine
    for thread in _threads():  # has said that it ends
        thread.join(5)
    assert (machine.sessions, machine.samples, machine.event_sets, machine.torn) == (0, 0, 0, 0)
    assert not _threads()


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("nvml")]


def with_nvml(
    work: Callable[[Nvml, Hand], Coroutine[Any, Any, Any]], labels: dict[str, str] | None = None, timeout_s: float = 10
) -> Any:
    """Return what `work` returns, with a reader that is closed after it."""

    async def around() -> Any:
        clock = Hand()
        nvml = Nvml(clock, labels, timeout_s)
        try:
            async with asyncio.timeout(10):
                return await work(nvml, clock)
        finally:
            await nvml.close()

    return asyncio.run(around())


async def _read(nvml: Nvml, _: Hand) -> GpuSnapshot:
    return await nvml.read()


def refusal(error: pytest.ExceptionInfo[TargetError]) -> str:
    words = str(error.value)
    assert words.startswith("NVML: ")
    assert "\n" not in words
    return words


@pytest.mark.slow
@pytest.mark.usefixtures("fake")
def test_every_value_is_in_the_units_of_dcgm_exporter() -> None:
    async def twice(nvml: Nvml, clock: Hand) -> GpuSnapshot:
        await nvml.read()
        clock.now_s += 5
        return await nvml.read()

    snapshot = with_nvml(twice)
    assert (snapshot.source, snapshot.at_ns, snapshot.wall_s) == ("nvml", 1005 * 10**9, 1_790_000_000.0)
    h100, a10 = snapshot.gpus
    assert h100.values == pytest.approx(H100_VALUES | ACTIVITY)
    assert a10.values == pytest.approx(A10_VALUES)  # and what it does not have is not 0
    assert h100.values.keys() == NAMES


@pytest.mark.slow
@pytest.mark.usefixtures("fake")
def test_labels_are_those_of_dcgm_exporter() -> None:
    gpus = with_nvml(_read).gpus
    assert [gpu.labels for gpu in gpus] == [H100_LABELS, A10_LABELS]
    assert set(H100_LABELS) < set(LABELS)


@pytest.mark.usefixtures("fake")
def test_activity_is_the_mean_since_the_last_reading_that_is_long_enough_ago() -> None:
    async def work(nvml: Nvml, clock: Hand) -> list[bool]:
        found = []
        for step_s in (0, 0.09, 0.02, 0.1):
            clock.now_s += step_s
            found.append((await nvml.read()).gpus[H100].values.keys() >= ACTIVITY.keys())
        return found

    assert with_nvml(work) == [False, False, True, True]


@pytest.mark.parametrize("names", [OLD_NAMES, NEW_NAMES])
def test_a_call_is_known_by_its_old_and_by_its_new_name(fake: Fake, names: int) -> None:
    fake.names = names
    values = with_nvml(_read).gpus[H100].values
    assert (values["DCGM_FI_DEV_GPU_TEMP"], values["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"]) == (41, 0x104)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("name", list(A10_LABELS))
def test_only_gpus_that_have_the_labels_are_read(name: str) -> None:
    (gpu,) = with_nvml(_read, {name: A10_LABELS[name]}).gpus
    assert gpu.labels == A10_LABELS


@pytest.mark.usefixtures("fake")
def test_labels_that_no_gpu_has_are_an_error_that_says_which_there_are() -> None:
    with pytest.raises(TargetError) as error:
        with_nvml(_read, {"gpu": "1", "modelName": "NVIDIA L4"})
    assert refusal(error) == ("NVML: no GPU has gpu=1, modelName=NVIDIA L4; there are gpu=0 GPU-h100, gpu=1 GPU-a10")


def test_instances_of_a_divided_gpu_have_their_own_memory_and_activity(fake: Fake) -> None:
    fake.mig = 1

    async def twice(nvml: Nvml, clock: Hand) -> tuple[Gpu, ...]:
        await nvml.read()
        clock.now_s += 5
        return (await nvml.read()).gpus

    board, two, nine, a10 = with_nvml(twice)
    assert (board.labels, a10.labels) == (H100_LABELS, A10_LABELS)
    assert two.labels == H100_LABELS | {"GPU_I_ID": "2", "GPU_I_PROFILE": "2g.20gb"}
    assert nine.labels == H100_LABELS | {"GPU_I_ID": "9", "GPU_I_PROFILE": "1g.10gb"}
    per_instance = {name for name in H100_VALUES if name.startswith("DCGM_FI_DEV_FB")}
    assert board.values.keys() == H100_VALUES.keys() - per_instance - {
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_MEM_COPY_UTIL",
    }
    assert nine.values == pytest.approx(
        {
            "DCGM_FI_DEV_FB_USED": 9000,
            "DCGM_FI_DEV_FB_FREE": 77,
            "DCGM_FI_DEV_FB_RESERVED": 0,
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.965,
            "DCGM_FI_PROF_SM_ACTIVE": 0.7025,
            "DCGM_FI_PROF_SM_OCCUPANCY": 0.325,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.2775,
        }
    )
    assert (two.values["DCGM_FI_DEV_FB_USED"], two.values["DCGM_FI_PROF_GR_ENGINE_ACTIVE"]) == (2000, 0.895)


def test_an_instance_can_be_read_alone(fake: Fake) -> None:
    fake.mig = 1
    (gpu,) = with_nvml(_read, {"UUID": "GPU-h100", "GPU_I_ID": "9"}).gpus
    assert gpu.labels["GPU_I_PROFILE"] == "1g.10gb"


def test_handles_of_mig_instances_are_freed_when_they_are_gone(fake: Fake) -> None:
    async def undivided(nvml: Nvml, _: Hand) -> tuple[int, int]:
        fake.mig = 1
        await nvml.read()
        divided = fake.samples
        fake.mig = 0
        await nvml.read()
        return divided, fake.samples

    assert with_nvml(undivided) == (4, 2)


def test_the_last_xid_error_is_kept(fake: Fake) -> None:
    async def work(nvml: Nvml, _: Hand) -> list[float]:
        seen = []
        for xid in (0, 79, 48):
            fake.xid = xid
            while (await nvml.read()).gpus[H100].values[XID] != xid:
                pass
            seen.append((await nvml.read()).gpus[H100].values[XID])
        return seen

    assert with_nvml(work) == [0, 79, 48]
    assert 0 < fake.asked_ms <= 1000  # which is how long closing may take


def test_a_call_that_nvidia_ml_py_has_dropped_is_known_by_its_new_name(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.names = NEW_NAMES
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperature")
    assert with_nvml(_read).gpus[H100].values["DCGM_FI_DEV_GPU_TEMP"] == 41


@pytest.mark.usefixtures("fake")
def test_the_driver_tells_its_version_and_that_of_cuda() -> None:
    assert with_nvml(_read).gpus[H100].versions == {"driver": "595.58.03", "cuda": "13.1"}


@pytest.mark.fault(
    "FA98",
    "A GPU falls off the bus",
    area="Foreign answers",
    users_see="it is listed without values, with its last XID",
    stays="the other GPUs are read",
)
def test_a_lost_gpu_is_listed_without_values_and_the_others_are_read(fake: Fake) -> None:
    async def lose(nvml: Nvml, clock: Hand) -> tuple[Gpu, ...]:
        await nvml.read()
        clock.now_s += 5
        fake.error[A10] = LOST
        await nvml.read()
        clock.now_s += 5
        return (await nvml.read()).gpus

    h100, a10 = with_nvml(lose)
    assert (a10.labels, a10.values) == (A10_LABELS, {})
    assert h100.values == pytest.approx(H100_VALUES | ACTIVITY)  # so NVML was not initialised anew


def test_a_gpu_that_was_lost_is_known_by_its_labels_and_its_xid_until_it_is_back(fake: Fake) -> None:
    async def lose(nvml: Nvml, _: Hand) -> tuple[Gpu, Gpu]:
        await nvml.read()
        fake.error[H100] = LOST
        fake.xid = 79
        while fake.xid:  # noqa: ASYNC110 - another thread takes it
            await asyncio.sleep(0.001)
        await nvml.read()
        assert not fake.sessions  # so NVML is initialised anew, and then not even its UUID can be had
        (lost,) = (await nvml.read()).gpus
        fake.error[H100] = 0
        await nvml.read()
        (back,) = (await nvml.read()).gpus
        return lost, back

    lost, back = with_nvml(lose, {"UUID": "GPU-h100"})
    assert lost == Gpu(H100_LABELS, {XID: 79})
    assert back.values == pytest.approx(H100_VALUES | {XID: 79})


def test_activity_is_no_mean_over_a_time_in_which_the_gpu_was_lost(fake: Fake) -> None:
    async def lose(nvml: Nvml, clock: Hand) -> list[bool]:
        found = []
        for error in (0, LOST, 0, 0):
            fake.error[H100] = error
            clock.now_s += 5
            found.append((await nvml.read()).gpus[H100].values.keys() >= ACTIVITY.keys())
        return found

    assert with_nvml(lose) == [False, False, False, True]


def test_a_gpu_that_is_lost_from_the_beginning_is_listed(fake: Fake) -> None:
    fake.error[H100] = LOST
    lost, a10 = with_nvml(_read).gpus
    assert lost == Gpu({"gpu": "0", "device": "nvidia0"}, {})
    assert a10.values
    assert [gpu.labels for gpu in with_nvml(_read, {"UUID": "GPU-a10"}).gpus] == [A10_LABELS]


def test_a_gpu_of_another_container_is_not_listed(fake: Fake) -> None:
    fake.error[H100] = NO_PERMISSION
    assert [gpu.labels for gpu in with_nvml(_read).gpus] == [A10_LABELS]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (MISMATCH, "libnvidia-ml.so.1 and the loaded driver have different versions"),
        (DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
        (999, "Unknown Error"),
    ],
)
def test_a_driver_that_cannot_be_had_is_an_error_and_asked_again(fake: Fake, code: int, words: str) -> None:
    async def work(nvml: Nvml, _: Hand) -> int:
        fake.init = code
        with pytest.raises(TargetError, match=words) as error:
            await nvml.read()
        refusal(error)
        fake.init = 0
        return len((await nvml.read()).gpus)

    assert with_nvml(work) == 2


@pytest.mark.fault(
    "FA99",
    "The GPU driver is unloaded while Kneewatch runs",
    area="Foreign answers",
    users_see="an error until it is loaded again",
    stays="canaries",
)
def test_a_driver_that_is_unloaded_is_an_error_until_it_is_loaded_again(fake: Fake) -> None:
    async def work(nvml: Nvml, _: Hand) -> int:
        await nvml.read()
        fake.error[H100] = fake.error[A10] = DRIVER_NOT_LOADED
        for _ in range(2):
            with pytest.raises(TargetError, match="driver is not loaded"):
                await nvml.read()
            assert not fake.sessions
        fake.error[H100] = fake.error[A10] = 0
        return len((await nvml.read()).gpus)

    assert with_nvml(work) == 2


def test_a_driver_without_gpus_is_an_error_that_says_what_a_container_needs(fake: Fake) -> None:
    fake.count = 0
    with pytest.raises(TargetError, match=r"shows no GPU.*NVIDIA_VISIBLE_DEVICES") as error:
        with_nvml(_read)
    refusal(error)


def test_a_machine_without_a_driver_is_an_error_that_says_what_a_container_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", absent)  # this machine may have one, or the imaginary one already
    with pytest.raises(TargetError, match=r"no libnvidia-ml\.so\.1.*NVIDIA_DRIVER_CAPABILITIES") as error:
        with_nvml(_read)
    refusal(error)


def test_without_its_python_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(TargetError, match=r"pip install 'kneewatch\[nvml\]'") as error:
        with_nvml(_read)
    refusal(error)


@pytest.mark.fault(
    "FA97",
    "The GPU driver is stuck",
    area="Foreign answers",
    users_see="an error each time, and one thread is used up",
    stays="canaries; closing does not wait",
)
def test_a_driver_that_is_stuck_is_an_error_each_time_and_takes_one_thread(fake: Fake) -> None:
    async def work(nvml: Nvml, _: Hand) -> int:
        fake.hang = 1
        for _ in range(3):
            with pytest.raises(TargetError, match="has not answered") as error:
                await nvml.read()
            assert error.value.outcome is Outcome.TIMEOUT
            refusal(error)
        assert not nvml._asked.qsize()
        stuck = [thread for thread in _threads() if thread.name == "nvml"]
        assert len(stuck) == 1
        assert stuck[0].daemon  # the process ends without it
        fake.hang = 0
        while True:
            try:
                return len((await nvml.read()).gpus)
            except TargetError:
                await asyncio.sleep(0.001)

    assert with_nvml(work, timeout_s=0.05) == 2


@pytest.mark.fault("FA97")
def test_closing_does_not_wait_for_a_driver_that_is_stuck_which_gives_all_back_when_it_goes_on(fake: Fake) -> None:
    async def stick(nvml: Nvml, _: Hand) -> None:
        fake.hang = 1
        with pytest.raises(TargetError):
            await nvml.read()

    with_nvml(stick, timeout_s=0.02)
    assert fake.sessions == 1
    fake.hang = 0  # and then the fixture looks


def test_a_reader_that_was_never_asked_closes() -> None:
    asyncio.run(Nvml(Hand()).close())
    assert not _threads()


def test_the_imaginary_library_has_the_structures_of_nvidia_ml_py(library: ctypes.CDLL) -> None:
    sizes = (ctypes.c_size_t * 8).in_dll(library, "fake_sizes")
    structures = (
        pynvml.c_nvmlMemory_v2_t,
        pynvml.c_nvmlUtilization_t,
        pynvml.c_nvmlFieldValue_t,
        pynvml.c_nvmlEventData_t,
        pynvml.c_nvmlTemperature_v1_t,
        pynvml.c_nvmlGpmSupport_t,
        pynvml.c_nvmlGpmMetric_t,
    )
    assert list(sizes) == [*map(ctypes.sizeof, structures), pynvml.c_nvmlGpmMetricsGet_t.metrics.offset]


@pytest.mark.usefixtures("fake")
def test_two_who_ask_at_once_get_the_same_answer() -> None:
    async def both(nvml: Nvml, _: Hand) -> Sequence[GpuSnapshot]:
        return await asyncio.gather(nvml.read(), nvml.read())

    one, other = with_nvml(both)
    assert one is other


@pytest.mark.usefixtures("fake")
def test_a_reader_for_two_does_not_ask_again_at_once() -> None:
    """A capacity run and the schedule: the second of two readings in a moment would have no activity."""

    async def work(nvml: Nvml, clock: Hand) -> Sequence[GpuSnapshot]:
        fresh = _Fresh(nvml.read, clock, 0.1)
        found = []
        for step_s in (0, 0.05, 0.06):
            clock.now_s += step_s
            found.append(await fresh.read())
        return found

    first, second, third = with_nvml(work)
    assert first is second
    assert third is not second
