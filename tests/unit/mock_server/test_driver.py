"""The driver on an event loop whose clock jumps to the next timer, and overshoots as real ones do."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from probe.mock_server.driver import MAX_LAG_S, Driver, Faults, Generation
from probe.mock_server.metrics import Metrics
from probe.mock_server.profiles import PROFILES
from probe.simulator.cost import FrontEnd, Jitter, Profile, StepCost

OVERSHOOT_S = 0.0007
STEADY = replace(PROFILES["tiny"], cost=StepCost(0.004, 0.0, 0.0), jitter=Jitter())


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now_s = 100.0
        self.overshoot_s = OVERSHOOT_S
        self.idle_waits = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now_s


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: _JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            self._loop.idle_waits += 1
            raise AssertionError("nothing would ever happen again")
        if timeout > 0:
            self._loop.now_s += timeout + self._loop.overshoot_s
        return super().select(0)


def _run(scene: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        runner.run(scene)


def _driver(profile: Profile = STEADY, faults: Faults | None = None) -> tuple[Driver, Metrics]:
    metrics = Metrics(profile, "m")
    return Driver(profile, metrics, faults=faults or Faults()), metrics


def _loop() -> _JumpingLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _JumpingLoop)
    return loop


def _samples(metrics: Metrics, driver: Driver) -> dict[str, float]:
    page = metrics.page(driver.engine).decode()
    return {
        sample.name + sample.labels.get("finished_reason", ""): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_a_thousand_steps_take_what_they_cost_though_every_sleep_overshoots() -> None:
    async def scene() -> None:
        driver, _ = _driver()
        started_s = _loop().time()
        generation = driver.submit(prompt_tokens=10, output_tokens=1000)
        numbers = [await generation.next_token() for _ in range(1000)]
        assert numbers == list(range(1, 1001))
        took_s = _loop().time() - started_s
        assert 4.0 <= took_s <= 4.0 + 2 * OVERSHOOT_S
        assert 0 < driver.worst_lag_s <= 2 * OVERSHOOT_S

    _run(scene())


def test_after_a_long_hold_up_it_does_not_pour_out_what_it_missed() -> None:
    async def scene() -> None:
        driver, _ = _driver()
        generation = driver.submit(prompt_tokens=10, output_tokens=500)
        await generation.next_token()
        _loop().now_s += 10.0
        started_s = _loop().time()
        for _ in range(499):
            await generation.next_token()
        assert _loop().time() - started_s >= 498 * 0.004 - MAX_LAG_S - 0.004

    _run(scene())


def test_without_requests_nothing_is_scheduled() -> None:
    async def scene() -> None:
        driver, _ = _driver()
        generation = driver.submit(prompt_tokens=10, output_tokens=2)
        while await generation.next_token() != 2:
            pass
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        again = driver.submit(prompt_tokens=10, output_tokens=1)
        assert await again.next_token() == 1

    _run(scene())


def test_series_hold_the_times_of_the_schedule() -> None:
    async def scene() -> None:
        _loop().overshoot_s = 0.0
        driver, metrics = _driver(replace(STEADY, max_num_seqs=1))
        first = driver.submit(prompt_tokens=100, output_tokens=11)
        second = driver.submit(prompt_tokens=50, output_tokens=1)
        for generation in (first, second):
            while await generation.next_token() != generation.output_tokens:
                pass
        seen = _samples(metrics, driver)
        assert seen["vllm:time_to_first_token_seconds_sum"] == pytest.approx(0.004 + 12 * 0.004)
        assert seen["vllm:inter_token_latency_seconds_sum"] == pytest.approx(10 * 0.004)
        assert seen["vllm:inter_token_latency_seconds_count"] == 10
        assert seen["vllm:request_queue_time_seconds_sum"] == pytest.approx(11 * 0.004)
        assert seen["vllm:request_prefill_time_seconds_sum"] == pytest.approx(2 * 0.004)
        assert seen["vllm:prompt_tokens_total"] == 150
        assert seen["vllm:prefix_cache_queries_total"] == 0, "this server has no prefix cache"
        assert seen["vllm:generation_tokens_total"] == 12
        assert seen["vllm:iteration_tokens_total_count"] == 12
        assert seen["vllm:iteration_tokens_total_sum"] == 162

    _run(scene())


def test_preemptions_are_counted_for_the_server_and_for_the_request() -> None:
    async def scene() -> None:
        driver, metrics = _driver(replace(STEADY, num_blocks=65))
        generations = [driver.submit(prompt_tokens=128, output_tokens=200) for _ in range(6)]
        for generation in generations:
            while await generation.next_token() != 200:
                pass
        seen = _samples(metrics, driver)
        assert seen["vllm:num_preemptions_total"] > 0
        assert seen["vllm:request_num_preemptions_sum"] == seen["vllm:num_preemptions_total"]
        assert seen["vllm:request_num_preemptions_count"] == 6
        assert seen["vllm:prompt_tokens_total"] == 6 * 128, "recomputed prompts are not counted again"

    _run(scene())


def test_an_abort_frees_the_blocks_at_once_and_is_in_no_counter_like_vllms() -> None:
    async def scene() -> None:
        driver, metrics = _driver()
        generation = driver.submit(prompt_tokens=100, output_tokens=100)
        await generation.next_token()
        assert driver.engine.kv_usage > 0
        driver.abort(generation)
        driver.abort(generation)
        assert (driver.engine.kv_usage, driver.engine.running) == (0, 0)
        assert await generation.next_token() is None
        assert _samples(metrics, driver)["vllm:request_success_totalabort"] == 0

    _run(scene())


def test_a_stall_holds_every_token_until_it_is_lifted() -> None:
    async def scene() -> None:
        driver, _ = _driver()
        generation = driver.submit(prompt_tokens=10, output_tokens=5)
        await generation.next_token()
        driver.faults = Faults(is_stalled=True)
        waiting = asyncio.create_task(generation.next_token())
        await asyncio.sleep(60)
        assert not waiting.done()
        assert driver.engine.running == 1
        driver.faults = Faults()
        assert await waiting == 2

    _run(scene())


def test_a_slow_step_is_slower_by_so_much() -> None:
    async def scene() -> None:
        driver, _ = _driver(faults=Faults(extra_step_s=0.5))
        started_s = _loop().time()
        generation = driver.submit(prompt_tokens=10, output_tokens=4)
        while await generation.next_token() != 4:
            pass
        assert _loop().time() - started_s == pytest.approx(4 * 0.504, abs=2 * OVERSHOOT_S)

    _run(scene())


def test_closing_cuts_requests_short_and_takes_no_more() -> None:
    async def scene() -> None:
        driver, _ = _driver()
        running = driver.submit(prompt_tokens=10, output_tokens=5)
        driver.close()
        assert await running.next_token() is None
        late = driver.submit(prompt_tokens=10, output_tokens=5)
        assert await late.next_token() is None
        assert not driver.engine.has_work

    _run(scene())


async def _times_s(generation: Generation) -> list[float]:
    """Return when each token came, or all until the request was cut short."""
    times = []
    while len(times) < generation.output_tokens and await generation.next_token() is not None:
        times.append(_loop().time())
    return times


def test_requests_pass_through_the_front_end_one_after_the_other() -> None:
    async def scene() -> None:
        _loop().overshoot_s = 0.0
        driver, metrics = _driver(replace(STEADY, front_end=FrontEnd(per_request_s=0.1, per_prompt_token_s=0.001)))
        started_s = _loop().time()
        generations = [driver.submit(prompt_tokens=tokens, output_tokens=1) for tokens in (100, 300, 50)]
        assert not driver.engine.has_work, "the engine does not know of them yet"
        times = [(await _times_s(generation))[0] - started_s for generation in generations]
        assert times == pytest.approx([0.204, 0.604, 0.754])
        assert _samples(metrics, driver)["vllm:time_to_first_token_seconds_sum"] == pytest.approx(3 * 0.004)

    _run(scene())


def test_a_client_that_leaves_the_front_end_never_comes_to_the_engine() -> None:
    async def scene() -> None:
        driver, _ = _driver(replace(STEADY, front_end=FrontEnd(per_request_s=0.1)))
        gone = driver.submit(prompt_tokens=10, output_tokens=1)
        stays = driver.submit(prompt_tokens=10, output_tokens=1)
        driver.abort(gone)
        driver.abort(gone)
        assert await gone.next_token() is None
        assert await stays.next_token() == 1
        assert gone.number == -1

    _run(scene())


def test_slow_handing_out_holds_up_clients_and_not_the_engine() -> None:
    async def scene() -> None:
        _loop().overshoot_s = 0.0
        driver, metrics = _driver(replace(STEADY, front_end=FrontEnd(per_output_token_s=0.003)))
        started_s = _loop().time()
        answers = [driver.submit(prompt_tokens=10, output_tokens=20) for _ in range(4)]
        times = await asyncio.gather(*map(_times_s, answers))
        # 12 ms to hand out the tokens of a step of 4 ms, one step after the other.
        assert times[0] == times[3] == pytest.approx([started_s + 0.004 + 0.012 * n for n in range(1, 21)])
        seen = _samples(metrics, driver)
        assert seen["vllm:inter_token_latency_seconds_sum"] == pytest.approx(4 * 19 * 0.004)
        assert seen["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(4 * (0.004 + 0.012 * 19))

    _run(scene())


@pytest.mark.parametrize("leave", [Driver.abort, lambda driver, _: driver.close()], ids=["abort", "close"])
def test_tokens_do_not_reach_a_client_that_has_gone(leave: Callable[[Driver, Generation], None]) -> None:
    async def scene() -> None:
        driver, _ = _driver(replace(STEADY, front_end=FrontEnd(per_output_token_s=0.1)))
        generation = driver.submit(prompt_tokens=10, output_tokens=5)
        await generation.next_token()
        assert not driver.engine.has_work, "all made, but not out"
        leave(driver, generation)
        assert await _times_s(generation) == []
        await asyncio.sleep(2)
        assert generation.sent == 1

    _run(scene())


def test_cached_prefix_tokens_are_counted_and_not_computed() -> None:
    async def scene() -> None:
        driver, metrics = _driver(replace(PROFILES["tiny"], prefix_caching=True, jitter=Jitter()))
        for _ in range(2):
            await _times_s(driver.submit(prompt_tokens=200, output_tokens=2, shared_tokens=160))
        seen = _samples(metrics, driver)
        assert seen["vllm:prefix_cache_queries_total"] == seen["vllm:prompt_tokens_total"] == 400
        assert seen["vllm:prefix_cache_hits_total"] == 160
        assert seen["vllm:iteration_tokens_total_sum"] == 200 + 40 + 4

    _run(scene())
