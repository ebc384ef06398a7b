"""What a run found, in words: the figure, what it rests on, and one sentence of what to do."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from example_records import CHAT, WALL_S, no_knee, result, step
from simulated_servers import CHAT as LENGTHS

from probe.capacity.model.bottleneck import BOTTLENECKS
from probe.capacity.search.knee import find_knee
from probe.capacity.search.search import Search
from probe.core import reasons
from probe.core.reasons import Reason
from probe.core.result import Capacity, CapacityResult, Correction, PriorForecast, Roofline, Stopped
from probe.core.snapshot import UserLoad
from probe.core.step import StepSummary
from probe.core.time_limits import out_of_time
from probe.report.forecast_text import beside_measured, forecast_words
from probe.report.html import report
from probe.report.knee_text import knee_words
from probe.report.result_text import (
    advice,
    headroom,
    result_words,
)

VERIFIED = Capacity(mode="verified", requests_per_second=12.5, lower=12.0, upper=13.0, limiting="tpot")
AT_LEAST = Capacity(mode="empirical", requests_per_second=10.0, lower=10.0, reason="the capacity is at least this")


def _lines(one: CapacityResult) -> dict[str, str]:
    lines = [line.partition(":") for line in result_words(one).splitlines()]
    return {label: words.strip() for label, _, words in lines}


def _with_users(rps: float | None, **values: Any) -> CapacityResult:
    return replace(result(**values), users=UserLoad(rps, None))


def test_a_knee_of_a_closed_loop_with_its_bounds_its_limit_and_its_cost() -> None:
    lines = _lines(result())
    assert lines["Knee"] == "4 requests in flight"
    assert lines["Capacity"] == "10 requests/s (10 to 12.5), 640 output tokens/s; empirical"
    assert lines["Limited by"] == "ttft"
    order = list(lines)
    assert order.index("Capacity") < order.index("Advice") < min(map(order.index, ("Ended by", "Error bound", "Cost")))
    assert lines["Ended by"] == "done (concurrency 8 broke ttft)"
    assert lines["Cost"] == "300 requests, 57,600 tokens, 31.5 s, 2.0 s over an objective"
    assert lines["Error bound"] == "at most 1.0 ms in TTFT, 1.0 ms in ITL"
    assert lines["Bottleneck"] == "none up to 8 in flight: throughput still grows there, though ttft is missed"


def test_replicas_with_different_flags_are_named() -> None:
    found = result()
    flags = {"replicas": "2", "block_size": "16", "max_num_seqs": "16 | 8"}
    lines = _lines(replace(found, context=replace(found.context, flags=flags)))
    assert lines["Replicas"] == ("the replicas differ in max_num_seqs (16 | 8); the capacity is for this mix")
    assert "Replicas" not in _lines(found)


def test_a_knee_that_is_a_rate_with_its_interval_and_its_mode() -> None:
    lines = _lines(result(capacity=replace(VERIFIED, bottleneck="kv_cache"), stopped=Stopped("done")))
    assert lines["Knee"] == knee_words(VERIFIED) == "12.5 requests/s"
    assert lines["Capacity"] == "12.5 requests/s (90 % interval 12 to 13); verified"
    assert lines["Bottleneck"] == "kv_cache"


def test_a_lower_bound_says_that_it_is_one() -> None:
    lines = _lines(_with_users(1.0, capacity=AT_LEAST, stopped=Stopped("done")))
    assert lines["Capacity"].startswith("at least 10 requests/s")
    assert lines["Knee"] == "no knee up to 4 requests in flight"
    assert lines["Note"] == "The capacity is at least this."
    assert lines["Ended by"] == "done"
    assert lines["Headroom"] == "at least 90 %: user traffic is 1 requests/s"


def test_a_load_that_the_guard_stopped_is_no_knee_and_its_limit_has_advice() -> None:
    stopped = replace(AT_LEAST, limiting="kv_cache", reason="the guard stopped concurrency 8")
    ended = result(capacity=stopped, stopped=Stopped("guard", "kv_cache"))
    assert _lines(ended)["Knee"] == "no knee up to 4 requests in flight"
    assert _lines(ended)["Limited by"] == "kv_cache"
    assert "raise --gpu-memory-utilization" in advice(ended)


def test_a_lower_bound_for_unknown_users_does_not_say_that_no_objective_was_broken() -> None:
    is_capped = replace(AT_LEAST, limiting="ttft", reason="the load of users is not known")
    ended = result(capacity=is_capped, stopped=Stopped("done"))
    lines = _lines(ended)
    assert lines["Capacity"].startswith("at least 10 requests/s")
    assert "no objective" not in f"{lines['Knee']} {advice(ended)}"


def test_a_limit_that_no_step_reached_is_the_models() -> None:
    passed = result(capacity=VERIFIED, steps=(step(4), step(8)), stopped=Stopped("done"))
    assert _lines(passed)["Limited by"] == "tpot (predicted by the model)"
    assert _lines(passed)["Knee"] == "predicted at 12.5 requests/s (every step met the objectives)"
    tripped = replace(passed, steps=(step(4), replace(step(8), tripped="queue")))
    assert _lines(tripped)["Limited by"] == "tpot"
    over = replace(result(steps=(step(4), step(8))), stopped=Stopped("budget", "over_objective_seconds"))
    assert _lines(over)["Limited by"] == "ttft", "the step that was cut short has measured it"


def test_no_knee_says_why() -> None:
    lines = _lines(result(capacity=no_knee("no step was valid: cut_short"), stopped=Stopped("guard", "queue")))
    assert lines["No knee"] == "no step was valid: cut_short."
    assert lines["Ended by"] == "guard (queue)"
    assert "Headroom" not in lines


@pytest.mark.parametrize(
    ("users_rps", "left", "words"),
    [
        (None, None, "unknown"),
        (0.0, 1.0, "100 %: no users are sending requests"),
        (2.5, 0.8, "80 %: user traffic is 2.5 requests/s"),
        (20.0, -0.6, "none: users ask for 60 % more than the measured capacity (user traffic is 20 requests/s)"),
    ],
)
def test_headroom_is_what_users_leave(users_rps: float | None, left: float | None, words: str) -> None:
    one = _with_users(users_rps, capacity=VERIFIED)
    assert headroom(one) == (left if left is None else pytest.approx(left))
    assert words in _lines(one)["Headroom"]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (result(capacity=VERIFIED), "make each step cheaper"),
        (result(capacity=replace(VERIFIED, limiting="preemptions")), "KV cache"),
        (result(capacity=replace(VERIFIED, limiting=None)), "plan with at most 12 requests/s"),
        (_with_users(11.0, capacity=VERIFIED), "only 12 % of the capacity is left"),
        (
            _with_users(20.0, capacity=VERIFIED),
            "ask for 60 % more than the measured capacity: add a replica now.",
        ),
        (result(capacity=AT_LEAST), "no objective was broken"),
        (result(capacity=replace(VERIFIED, mode="forecast")), "not a measurement"),
        (result(capacity=VERIFIED, stopped=Stopped("interrupt", "signal")), "let a run finish"),
        (result(capacity=no_knee(), stopped=Stopped("budget", "seconds")), "--max-seconds"),
        (result(capacity=no_knee(), stopped=Stopped("done")), "--rates"),
        (result(capacity=no_knee(), stopped=Stopped("guard", "queue")), "when the server is idle"),
        (result(capacity=no_knee(), stopped=Stopped("error", "worker_lost")), "a kill for memory"),
        (result(capacity=no_knee(), stopped=Stopped("error", "TypeError")), "measure again"),
        (
            result(capacity=AT_LEAST, stopped=Stopped("budget", "seconds")),
            "was broken: raise --max-seconds",
        ),
        (result(capacity=AT_LEAST, stopped=Stopped("guard", "server_unreadable")), "--stream-guard"),
        (result(capacity=replace(no_knee(), advice="begin lower")), "begin lower"),
        (result(capacity=replace(AT_LEAST, advice="raise --rates"), stopped=Stopped("done")), "broken: raise --rates"),
    ],
)
def test_the_advice_is_one_sentence_for_what_was_found(one: CapacityResult, words: str) -> None:
    said = advice(one)
    assert words in said
    assert said.endswith(".")
    assert said.count(". ") == 0


@pytest.mark.parametrize("trip", reasons.TRIPS, ids=lambda row: row.word)
def test_the_advice_after_a_stop_by_the_guard_is_that_of_its_reason(trip: Reason) -> None:
    stopped = Stopped("guard", trip.word)
    without = advice(result(capacity=no_knee(), stopped=stopped))
    assert without == (f"{reasons.ENDED_BY_GUARD.advice}." if trip.is_overload else f"{trip.advice}.")
    if trip.is_overload:
        limited = result(capacity=replace(VERIFIED, limiting=trip.word), stopped=stopped)
        assert advice(limited) == f"{trip.advice}."


_ENDS = (
    *(Stopped("guard", row.word) for row in reasons.TRIPS),
    *(Stopped("budget", row.word) for row in reasons.BUDGETS),
    *(Stopped("error", row.word) for row in reasons.ERRORS),
    *(Stopped(row.word) for row in reasons.ENDS if row is not reasons.ENDED_BY_GUARD),
)
_STEPS = {"no step": (), "first step": (step(8, reason="cut_short"),), "above": (step(4), step(8, reason="cut_short"))}


@pytest.mark.parametrize("find", [find_knee, Search(LENGTHS, CHAT).capacity], ids=["fixed", "search"])
@pytest.mark.parametrize("steps", _STEPS.values(), ids=_STEPS)
@pytest.mark.parametrize("stopped", _ENDS, ids=lambda one: f"{one.by}-{one.reason}")
def test_a_run_s_text_says_why_once_and_advises_once_what_fits(
    stopped: Stopped, steps: tuple[StepSummary, ...], find: Callable[..., Capacity]
) -> None:
    found = result(capacity=find(steps, stopped), steps=steps, stopped=stopped)
    words = result_words(found)
    for clause in advice(found).removesuffix(".").split("; "):
        assert words.count(clause) == 1, words
    if not steps:
        assert not re.search("less load|lower|add a replica", advice(found)), "there was no load"
    if stopped.by == "guard" and not reasons.find_end(stopped).is_overload:
        assert "idle" not in words


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("bad_request: HTTP 400: maximum context length is 1024 tokens. However, more", "shorten the workload"),
        ("bad_request: HTTP 422: Unexpected fields", "change what the first failure names: the workload, model or"),
        ("unauthorized: HTTP 401", "change what the first failure names"),
        ("server_error: HTTP 500: oops. Really", "look at the server's log for the first failure"),
        ("timeout: no answer within 30 s", "look at the server's log for the first failure"),
        (f"timeout: {out_of_time('no full answer within 90 s', '--timeout')}", "raise --timeout (capacity.timeout"),
        (f"timeout: {out_of_time('no full answer within 90 s (nothing more after 1 s)', '')}", "look at the server's"),
        ("rejected: HTTP 503: The engine is currently busy", "raise the queue limit"),
        ("rejected: HTTP 429: too many requests", "raise the limit for Kneewatch's key"),
    ],
)
def test_after_failed_requests_the_advice_follows_from_the_first_one(failure: str, words: str) -> None:
    one = replace(result(capacity=no_knee(), stopped=Stopped("guard", "failed_requests")), first_failure=failure)
    assert advice(one).startswith(words)
    assert advice(one).count(". ") == 0
    assert _lines(one)["Failure"] == failure
    overloaded = replace(one, stopped=Stopped("guard", "queue"))
    assert "when the server is idle" in advice(overloaded), "a failure beside it is not what ended the run"


_BUSY = "rejected: HTTP 503: The engine is currently busy and cannot accept new requests."
_BACKLOG = "rejected: HTTP 503: The engine has reached its prefill token backlog limit."


@pytest.mark.parametrize(
    ("failure", "engine", "words"),
    [
        (_BUSY, "vllm", "the server's queue limit (--max-num-queued-reqs)"),
        (_BACKLOG, "vllm", "the server's queue limit (--max-num-queued-tokens)"),
        (None, "vllm", "the server's queue limit (--max-num-queued-reqs or --max-num-queued-tokens)"),
        ("rejected: HTTP 503: The request queue is full.", "sglang", "the server's queue limit"),
    ],
)
def test_the_queue_limit_is_named_by_its_flag(failure: str | None, engine: str, words: str) -> None:
    one = result()
    limited = replace(
        one,
        capacity=replace(one.capacity, limiting="rejections", advice=None),
        context=replace(one.context, engine=engine),
        first_failure=failure,
    )
    assert _lines(limited)["Limited by"] == words


@pytest.mark.fault(
    "SE24",
    "Terminal escapes in a result",
    area="Security",
    users_see="printed as text",
    stays="-",
)
def test_no_word_from_outside_can_write_on_the_terminal() -> None:
    evil = "\x1b[2J\x1b]0;owned\x07"
    assert "\x1b" not in result_words(result(capacity=no_knee(evil), stopped=Stopped("error", evil)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_num_seqs", "capacity would be 40 % higher without this limit"),
        ("kv_cache", "capacity would be 40 % higher with twice the KV cache"),
        ("front_end", "capacity would be 40 % higher without the front end's time"),
        ("memory_bandwidth", "capacity would be 40 % higher with this cost halved"),
    ],
)
def test_a_bottleneck_says_what_it_costs(name: str, words: str) -> None:
    assert name in BOTTLENECKS
    found = replace(VERIFIED, bottleneck=name, bottleneck_gain=0.4)
    assert _lines(result(capacity=found))["Bottleneck"] == f"{name}: {words}"


DECODE = (
    "H100 SXM: decode at 37.3 % of its memory bandwidth (a step takes at least 12.8 ms, of which 4.8 ms to read"
    " the weights)"
)
NEAR = Roofline("H100 SXM", sure=True, step_s=0.0128, floor_s=0.00478, decode_ratio=0.373, prefill_ratio=0.38)
IN_USE = replace(NEAR, bandwidth_ratio=0.55, flops_ratio=0.121)
ESTIMATED = Roofline("H20 96GB", sure=False, bandwidth_ratio=0.55, flops_ratio=0.121)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            NEAR,
            f"{DECODE}; prefill at 38 % of its FLOP/s",
        ),
        (
            replace(NEAR, prefill_ratio=None),
            DECODE,
        ),
        (Roofline("H100 SXM", sure=True, prefill_ratio=0.38), "H100 SXM: prefill at 38 % of its FLOP/s"),
        (
            replace(NEAR, decode_ratio=3.73),
            "H100 SXM: 3.7 times the hardware limit: correct gpu, gpus, parameters or weight_bits",
        ),
        (
            replace(ESTIMATED, sure=True),
            "H20 96GB: vLLM estimates that up to 55 % of its bandwidth and 12.1 % of its FLOP/s were in use",
        ),
    ],
)
def test_how_near_to_the_gpu_s_limits_in_words(found: Roofline, words: str) -> None:
    assert _lines(result(capacity=replace(VERIFIED, roofline=found)))["Roofline"] == words


def test_vllm_s_estimate_is_shown_beside_the_fitted_one() -> None:
    words = _lines(result(capacity=replace(VERIFIED, roofline=IN_USE)))["Roofline"]
    assert words.startswith(f"{DECODE}; prefill at 38 % of its FLOP/s; vLLM estimates that up to 55 %")


def test_limits_that_are_not_confirmed_say_so() -> None:
    lines = _lines(result(capacity=replace(VERIFIED, roofline=ESTIMATED)))
    assert lines["Roofline"].endswith("; these limits are not confirmed by the GPU's manufacturer")
    assert "Roofline" not in _lines(result(capacity=VERIFIED))


def test_a_forecast_says_how_near_to_the_gpu_s_limits_too() -> None:
    found = replace(VERIFIED, mode="forecast", learnt_from=(1.0, 5.0), reason="experimental")
    words = forecast_words(result(capacity=replace(found, roofline=NEAR)))
    assert words.splitlines()[-1].startswith("Roofline: H100 SXM: decode at 37.3 %")
    assert "Roofline" not in forecast_words(result(capacity=found))


@pytest.mark.parametrize(
    ("judged", "ratio", "words"),
    [
        (6, -0.113, " and 6 earlier forecasts that were too high (lowered by 11 % from 14.1 requests/s)"),
        (1, 0.021, " and 1 earlier forecast that was too low (raised by 2 % from 14.1 requests/s)"),
        (6, 0.009, ""),
        (6, -0.009, ""),
    ],
)
def test_a_forecast_says_what_earlier_ones_have_moved_it_by_from_one_per_cent_on(
    judged: int, ratio: float, words: str
) -> None:
    correction = Correction(judged, ratio, PriorForecast(14.1, 0.1))
    found = replace(VERIFIED, mode="forecast", learnt_from=(1.0, 5.0), reason="experimental", correction=correction)
    lines = forecast_words(result(capacity=found)).splitlines()
    assert lines[1] == f"Learned from 1 to 5 requests/s of live traffic{words}; experimental."


# A forecast beside what was measured.

NOW_S = WALL_S + 31.5 + 2 * 3600


def _forecast(rps: float | None, **values: Any) -> CapacityResult:
    return result(capacity=Capacity(mode="forecast", requests_per_second=rps, reason="experimental"), **values)


@pytest.mark.parametrize(
    ("rps", "words"),
    [
        (12.9, "3 % above the last verified 12.5 (2 h ago)"),
        (10.0, "20 % below the last verified 12.5 (2 h ago)"),
        (12.54, "equal to the last verified 12.5 (2 h ago)"),
    ],
)
def test_a_forecast_stands_beside_what_load_has_measured(rps: float, words: str) -> None:
    assert beside_measured(_forecast(rps), result(capacity=VERIFIED), NOW_S) == words


BOUND = Capacity("forecast", 8.0, 7.0, reason="a lower bound", learnt_from=(1.0, 5.0), output_tokens_per_second=512.0)


def test_a_forecast_that_is_a_lower_bound_says_at_least() -> None:
    (first, *_) = forecast_words(result(capacity=BOUND)).splitlines()
    assert first == "Forecast: at least 8 requests/s, 512 output tokens/s, workload short."
    assert beside_measured(result(capacity=BOUND), result(capacity=VERIFIED), NOW_S) == ""
    above = result(capacity=replace(BOUND, requests_per_second=15.0))
    assert beside_measured(above, result(capacity=VERIFIED), NOW_S).startswith("20 % above the last verified")


def test_where_nothing_broke_it_stands_beside_a_lower_bound() -> None:
    said = beside_measured(_forecast(12.0), result(capacity=AT_LEAST), NOW_S)
    assert said == "20 % above the last empirical at least 10 (2 h ago)"


@pytest.mark.parametrize(
    ("forecast", "measured"),
    [
        (_forecast(12.0), None),
        (_forecast(None), result(capacity=VERIFIED)),
        (_forecast(12.0), result(capacity=no_knee())),
        (_forecast(12.0, model="another"), result(capacity=VERIFIED)),
    ],
    ids=["not measured", "not forecast", "no knee", "another model"],
)
def test_capacities_that_are_not_comparable_are_not_compared(
    forecast: CapacityResult, measured: CapacityResult | None
) -> None:
    assert beside_measured(forecast, measured, NOW_S) == ""


def test_a_run_that_ended_by_an_error_says_so_first() -> None:
    broken = result(capacity=AT_LEAST, stopped=Stopped("error", "worker_lost"), steps=(step(4), step(8)))
    first, *_ = result_words(broken).splitlines()
    assert first == "Incomplete:  an error ended the run (worker_lost); what follows is of the steps before it"
    assert "Incomplete: at least 10 requests/s" in report(broken)
    assert "Incomplete" not in result_words(result(capacity=AT_LEAST))
