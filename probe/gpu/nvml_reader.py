"""Reads this machine's GPUs from NVIDIA's driver (NVML), for a monitor in the same pod as the server.

In: the labels of the GPUs to read. Out: a GpuSnapshot. NVML's calls block, and a hanging driver blocks them forever. So
they run in a thread of their own, and every wait for it has a limit, also at the end of the process.
"""

import asyncio
import importlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from types import ModuleType

from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.snapshot import GpuSnapshot
from probe.core.text import one_line
from probe.gpu.nvml_session import KnownGpus, NvmlSession

_IN_CONTAINER = (
    "a container needs runtimeClassName nvidia, NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES with utility"
)


class Nvml:
    """The reader. `labels`: only GPUs that have all of these (gpu, UUID, device, modelName, GPU_I_ID, GPU_I_PROFILE).

    After a failed snapshot NVML is initialised again for the next one: the driver may have been reloaded.
    """

    def __init__(self, clock: Clock, labels: Mapping[str, str] | None = None, timeout_s: float = 3.0) -> None:
        self._clock = clock
        self._labels = dict(labels or {})
        self._timeout_s = timeout_s
        self._known = KnownGpus()
        self._session: NvmlSession | None = None
        self._asked: SimpleQueue[Future[GpuSnapshot] | None] = SimpleQueue()
        self._answer: Future[GpuSnapshot] | None = None
        self._waiting = 0  # callers that wait for that answer
        self._ended: Future[None] = Future()
        self._thread: threading.Thread | None = None

    async def read(self) -> GpuSnapshot:
        """Return a snapshot of the GPUs. Raise TargetError if there are none, or the driver does not answer in time."""
        if self._answer is not None and not self._answer.done():
            if not self._waiting:
                raise self._stuck()
            return await self._wait()  # another caller has just asked
        if self._thread is None:
            # Not an executor: Python would wait for its threads before it exits.
            self._thread = threading.Thread(target=self._serve, name="nvml", daemon=True)
            self._thread.start()
        self._answer = Future()
        self._answer.set_running_or_notify_cancel()  # a caller that gives up must not cancel it for others
        self._asked.put(self._answer)
        return await self._wait()

    async def _wait(self) -> GpuSnapshot:
        assert self._answer is not None  # noqa: S101 - it has just been asked for
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(self._answer)
        except TimeoutError:
            raise self._stuck() from None
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Shut NVML down: now, or when a hanging driver continues."""
        if self._thread is not None:
            self._asked.put(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await asyncio.wrap_future(self._ended)

    def _stuck(self) -> TargetError:
        return TargetError(
            f"NVML: the NVIDIA driver has not answered for {self._timeout_s:g} s; check whether nvidia-smi hangs too, "
            "and the kernel log for NVRM",
            Outcome.TIMEOUT,
        )

    def _serve(self) -> None:
        """Answer requests until None arrives. Runs in the thread."""
        self._ended.set_running_or_notify_cancel()  # a caller that gives up must not cancel it
        while (answer := self._asked.get()) is not None:
            try:
                answer.set_result(self._read())
            except BaseException as error:  # noqa: BLE001 - raised to the caller that awaits the answer
                answer.set_exception(error)
        self._end()
        self._ended.set_result(None)

    def _read(self) -> GpuSnapshot:
        nv = _pynvml()
        try:
            if self._session is None:
                self._session = NvmlSession(nv, self._clock, self._known)
            gpus, answered = self._session.read(self._labels)
        except nv.NVMLError as error:
            self._end()
            raise TargetError(f"NVML: {_words(nv, error)}", Outcome.UNREACHABLE) from None
        if not answered:
            self._end()
        if not gpus:
            raise TargetError(f"NVML: {self._none()}", Outcome.UNREACHABLE)
        return GpuSnapshot(self._clock.monotonic_ns(), self._clock.wall_s(), "nvml", gpus)

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _none(self) -> str:
        """Return why no GPU was found."""
        if not self._known.labels:
            return f"the driver shows no GPU; {_IN_CONTAINER}"
        wanted = ", ".join(f"{name}={value}" for name, value in self._labels.items())
        there = ", ".join(f"gpu={gpu} {labels.get('UUID', '')}".strip() for gpu, labels in self._known.labels.items())
        return f"no GPU has {wanted}; there are {one_line(there)}"


def _pynvml() -> ModuleType:
    """Import pynvml, an optional package. Raise TargetError if it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise TargetError(
            "NVML: the Python package nvidia-ml-py is not installed: pip install 'kneewatch[nvml]'", Outcome.UNREACHABLE
        ) from None


def _words(nv: ModuleType, error: Exception) -> str:
    """Return what an NVMLError means, and the fix."""
    meanings = {
        nv.NVML_ERROR_LIBRARY_NOT_FOUND: f"there is no libnvidia-ml.so.1, so no NVIDIA driver; {_IN_CONTAINER}",
        nv.NVML_ERROR_DRIVER_NOT_LOADED: f"the NVIDIA driver is not loaded, or not for this container; {_IN_CONTAINER}",
        nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "libnvidia-ml.so.1 and the loaded driver have different versions, "
        "because the driver was updated: restart this container, or else the node",
    }
    return meanings.get(getattr(error, "value", None), one_line(str(error)))
