"""Arithmetic in another process: what it returns, what it raises, and that it ends with us."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from process import eventually

from probe.runtime.helper_process import HelperError, HelperProcess, KeptHelper, run_in_helper


@pytest.fixture
def other() -> Iterator[HelperProcess]:
    with HelperProcess() as process:
        yield process


def test_it_calls_a_function_elsewhere_and_with_less_priority(other: HelperProcess) -> None:
    assert other.call("os:getpid") != os.getpid()
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert other.call("os:getpriority", os.PRIO_PROCESS, 0) == min(ours + 10, 19)


def test_a_kept_object_answers_several_calls(other: HelperProcess) -> None:
    other.call_and_keep("collections:Counter", "aab")
    other.ask("update", "b")
    assert dict(other.ask("most_common")) == {"a": 2, "b": 2}


def test_two_who_ask_at_once_have_each_their_own_answer(other: HelperProcess) -> None:
    """Who is cancelled while he waits for one asks for what there is so far."""
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(other.call, "subprocess:getoutput", "sleep 0.5; seq 200000")
        time.sleep(0.2)
        assert [other.call("math:sqrt", float(n * n)) for n in range(20)] == list(range(20))
        assert slow.result().splitlines()[-1] == "200000"


def test_an_error_comes_back_as_one_line_and_ends_nothing(other: HelperProcess) -> None:
    with pytest.raises(HelperError, match=r"^json:loads: JSONDecodeError: "):
        other.call("json:loads", "{\n")
    assert other.call("json:loads", "[1]") == [1]


@pytest.mark.fault(
    "SI11",
    "The helper process that computes dies",
    area="Signals",
    users_see="one line",
    stays="the caller goes on",
)
def test_a_process_that_dies_is_reported(other: HelperProcess) -> None:
    with pytest.raises(HelperError, match=r"^the helper process ended with status 3 \(computing os:_exit\)$"):
        other.call("os:_exit", 3)


def test_a_single_call_for_an_event_loop() -> None:
    assert asyncio.run(run_in_helper("math:hypot", 3.0, 4.0)) == 5.0


def test_cancelling_a_call_ends_its_process() -> None:
    async def run() -> float:
        thinking = asyncio.create_task(run_in_helper("time:sleep", 60))
        await asyncio.sleep(0.5)
        thinking.cancel()
        began = time.monotonic()
        with suppress(asyncio.CancelledError):
            await thinking
        return time.monotonic() - began

    began = time.monotonic()
    assert asyncio.run(run()) < 5
    assert time.monotonic() - began < 20, "the thread that waited for it has ended too"


@pytest.mark.fault("ST121")
def test_a_kept_process_counts_its_cpu_and_another_takes_its_place_once_it_dies() -> None:
    async def run() -> None:
        helper = KeptHelper()
        first = await helper.compute("os:getpid")
        assert await helper.compute("os:getpid") == first
        before_s = helper.cpu_s
        assert before_s > 0.01, "it has started"
        await helper.compute("builtins:sum", range(3_000_000))
        assert helper.cpu_s > before_s + 0.005
        with pytest.raises(HelperError, match="killed by signal 9"):
            await helper.compute("os:kill", first, 9)
        assert await helper.compute("os:getpid") != first
        helper.close()

    asyncio.run(run())


@pytest.mark.parametrize("then", ["time.sleep(60)", "it.call('time:sleep', 60)", "it.call('timeit:repeat')"])
@pytest.mark.fault(
    "SI12",
    "The parent of a helper process is killed, also while the helper computes",
    area="Signals",
    users_see="nothing",
    stays="the helper ends",
)
def test_it_ends_when_the_process_that_started_it_is_killed(then: str) -> None:
    code = (
        "from probe.runtime.helper_process import HelperProcess; import time;"
        f" it = HelperProcess(); print(it.call('os:getpid'), flush=True); {then}"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        parent.kill()
    eventually(lambda: not _alive(pid), within_s=10, what="the end of the orphan")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
