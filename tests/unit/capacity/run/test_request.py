"""Whether a run may begin: refusals add no load, and say why."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from example_records import CHAT, snapshot

from probe.capacity.model.hints import Hints, ModelSize
from probe.capacity.run.admission import preflight
from probe.capacity.run.load_plan import load_plan, replay_steps
from probe.capacity.run.request import Budget, Replay, RunRequest, StepSettings, hints_of, steps_of
from probe.capacity.search.fixed_steps import FixedSteps
from probe.capacity.search.unverified import Spending
from probe.cli.ramp_command import RampOptions, check_budget, steps
from probe.config.capacity import CapacityConfig, ServerLimitsConfig
from probe.core.errors import ConfigError, TargetError
from probe.core.request import Api, Outcome
from probe.core.snapshot import ServerSnapshot
from probe.core.step import Arrivals, Pattern, StepPlan
from probe.core.trace import TraceRequest, trace_of
from probe.core.workload import Workload
from probe.observe.guard import GuardLimits, GuardVerdict
from probe.runtime.helper_process import HelperProcess

BUDGET = Budget(1000, 60.0, 5.0)


def _reads(server: ServerSnapshot | None) -> Callable[[], Awaitable[ServerSnapshot]]:
    async def read() -> ServerSnapshot:
        if server is None:
            raise TargetError("http://a/metrics: no metrics of a server (HTTP 404)", Outcome.UNREACHABLE)
        return server

    return read


def _fires(answer: list[str] | TargetError) -> Callable[[], Awaitable[list[str]]]:
    async def firing() -> list[str]:
        if isinstance(answer, TargetError):
            raise answer
        return answer

    return firing


def _verdict(server: ServerSnapshot | None, alerts: list[str] | TargetError | None = None) -> GuardVerdict:
    firing = None if alerts is None else _fires(alerts)
    return asyncio.run(preflight(_reads(server), GuardLimits(), firing))[0]


@pytest.mark.parametrize(
    ("server", "reason", "words"),
    [
        (None, "no_server_metrics", "HTTP 404"),
        (snapshot(waiting=None), "no_server_metrics", "does not report its queue"),
        (snapshot(waiting=1.0), "busy", "1 requests"),
        (snapshot(kv_cache_usage=0.99), "busy", "99%"),
    ],
)
def test_a_server_that_is_busy_or_cannot_be_seen_gets_no_load(
    server: ServerSnapshot | None, reason: str, words: str
) -> None:
    verdict = _verdict(server)
    assert not verdict.allows_load
    assert verdict.reason == reason
    assert words in (verdict.detail or "")


@pytest.mark.fault(
    "LO27",
    "A page fires for the target",
    area="Load",
    users_see="refused: `alert_firing`, with its name",
    stays="-",
)
def test_a_firing_page_forbids_the_run_by_name() -> None:
    verdict = _verdict(snapshot(), ["KneewatchTtftBurn", "KneewatchDown"])
    assert (verdict.allows_load, verdict.reason) == (False, "alert_firing")
    assert "KneewatchTtftBurn, KneewatchDown" in (verdict.detail or "")


@pytest.mark.fault(
    "PR1",
    "Prometheus is down when a run is due",
    area="Prometheus",
    users_see="the run is refused: `no_prometheus`",
    stays="canaries, series",
)
def test_a_prometheus_that_does_not_answer_forbids_the_run() -> None:
    down = TargetError("http://prometheus: Prometheus does not answer (refused)", Outcome.UNREACHABLE)
    verdict = _verdict(snapshot(), down)
    assert (verdict.allows_load, verdict.reason) == (False, "no_prometheus")
    assert "http://prometheus" in (verdict.detail or "")


def test_a_calm_server_without_alerts_may_be_loaded_and_is_returned_as_it_was() -> None:
    calm = snapshot(running=3.0)
    verdict, server = asyncio.run(preflight(_reads(calm), GuardLimits(), _fires([])))
    assert verdict == GuardVerdict(allows_load=True)
    assert server is calm


@pytest.mark.parametrize(("reason", "asked"), [("timeout", 2), ("unreachable", 1)])
def test_a_first_page_that_is_late_is_asked_for_again(reason: str, asked: int) -> None:
    answers = [TargetError("http://a/metrics: no metrics of a server", Outcome.UNREACHABLE, reason), snapshot()]

    async def read() -> ServerSnapshot:
        answer = answers.pop(0)
        if isinstance(answer, TargetError):
            raise answer
        return answer

    verdict, _ = asyncio.run(preflight(read, GuardLimits()))
    assert (2 - len(answers), verdict.allows_load) == (asked, asked == 2)


def test_prometheus_is_not_asked_about_a_server_that_is_refused_anyway() -> None:
    asked = 0

    async def firing() -> list[str]:
        nonlocal asked
        asked += 1
        return []

    asyncio.run(preflight(_reads(snapshot(waiting=5.0)), GuardLimits(), firing))
    assert asked == 0


# Which steps.


WORKLOAD = Workload(name="w", api=Api.CHAT, prompt_tokens=8, output_tokens=4)


PLENTY = Budget(10**9, 600.0, 20.0)


def _plans(steps: StepSettings) -> list[StepPlan]:
    async def ask() -> list[StepPlan]:
        async with load_plan(RunRequest("a", CHAT, PLENTY, steps), WORKLOAD) as plan:
            assert isinstance(plan, FixedSteps)
            return list(iter(plan.next_step, None))

    return asyncio.run(ask())


def test_a_closed_loop_is_a_step_for_each_concurrency_in_that_order() -> None:
    plans = _plans(StepSettings(concurrency=(1, 2, 4), seconds=15.0))
    assert [plan.concurrency for plan in plans] == [1, 2, 4]
    assert {(p.seconds, p.requests, p.loop, p.warm_up_s, p.arrivals) for p in plans} == {
        (15.0, None, "closed", 3, None)
    }
    assert {p.warm_up_s for p in _plans(StepSettings(concurrency=(2,), requests=50))} == {0.0}


def test_an_open_loop_is_a_step_for_each_rate_with_poisson_arrivals() -> None:
    plans = _plans(StepSettings(rates=(0.5, 12.5), seconds=10.0))
    assert [plan.arrivals for plan in plans] == [Arrivals(rate_rps=0.5), Arrivals(rate_rps=12.5)]
    assert {(plan.loop, plan.seconds, plan.warm_up_s) for plan in plans} == {("open", 10.0, 2.0)}
    assert min(plan.concurrency for plan in plans) > 100, "it is a limit, and not what is in flight"
    assert not any(plan.holds for plan in plans)


def test_rates_have_the_arrival_pattern_and_the_limit_in_flight_asked_for() -> None:
    bursts = StepSettings(rates=(4.0,), arrivals=Arrivals(Pattern.GAMMA, burstiness=0.25), max_concurrency=16)
    (plan,) = _plans(bursts)
    assert plan.arrivals == Arrivals(Pattern.GAMMA, 4.0, 0.25)
    assert (plan.concurrency, plan.holds, bursts.streams) == (16, True, 16)
    assert bursts.conditions == {"arrivals": "gamma, burstiness 0.25", "max_concurrency": 16}
    rising = StepSettings(rates=(4.0,), arrivals=Arrivals(Pattern.RISING), seconds=10.0)
    assert _plans(rising)[0].arrivals == Arrivals(Pattern.RISING, 4.0, ramp_s=2.0), "in the warm-up"
    assert rising.conditions == {"arrivals": "rising"}
    assert StepSettings(rates=(4.0,)).conditions == {}, "as a search has them"


def test_without_steps_the_knee_is_searched_with_what_is_known_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[Any, ...]] = []
    monkeypatch.setattr(HelperProcess, "__init__", lambda _: None)
    monkeypatch.setattr(HelperProcess, "__exit__", lambda *_: None)
    monkeypatch.setattr(HelperProcess, "call_and_keep", lambda _, *what: kept.append(what))

    async def ask() -> None:
        flags = {"max_num_seqs": 8, "max_num_batched_tokens": 512}
        server = ServerLimitsConfig.model_validate(flags)
        hints, steps = Hints(**flags), StepSettings(observe_s=7.0)
        async with load_plan(RunRequest("a", CHAT, PLENTY, steps, server=server), WORKLOAD) as plan:
            assert plan.observe_s == 7.0
            assert plan.survives_overload
            assert kept == [("probe.capacity.search.search:Search", WORKLOAD, CHAT, hints, Spending(600.0, 10**9))]

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("raw", "steps"),
    [
        ({}, StepSettings(confirm_s=180.0)),
        (
            {"concurrency": [1, 2], "step": "20s", "confirm": "60s"},
            StepSettings(concurrency=(1, 2), seconds=20.0, confirm_s=60.0),
        ),
        ({"rates": [0.5, 1]}, StepSettings(rates=(0.5, 1.0), confirm_s=180.0)),
        (
            {"rates": [4], "arrivals": {"burstiness": 0.5}, "max_concurrency": 16},
            StepSettings(
                rates=(4.0,), arrivals=Arrivals(Pattern.GAMMA, burstiness=0.5), max_concurrency=16, confirm_s=180.0
            ),
        ),
        ({"observe": "1m"}, StepSettings(confirm_s=180.0, observe_s=60.0)),
    ],
)
def test_steps_are_those_of_the_configuration(raw: dict[str, Any], steps: StepSettings) -> None:
    assert steps_of(CapacityConfig.model_validate(raw)) == steps


@pytest.mark.parametrize(
    ("raw", "hints"),
    [
        ({"max_num_seqs": 8, "max_num_batched_tokens": 512}, Hints(8, 512)),
        (
            {"gpu": "H100 SXM", "parameters": "70B", "weight_bits": 8, "gpus": 4},
            Hints(gpu="H100 SXM", model=ModelSize(70e9, 8, 4)),
        ),
        ({"gpu": "NVIDIA L4"}, Hints(gpu="NVIDIA L4")),
    ],
)
def test_a_search_knows_what_the_configuration_says_of_the_server(raw: dict[str, Any], hints: Hints) -> None:
    assert hints_of(ServerLimitsConfig.model_validate(raw)) == hints


TRACE = trace_of(TraceRequest(90, 10, i * 0.5) for i in range(120))  # a minute
UNTIMED = trace_of([TraceRequest(90, 10), TraceRequest(50, 10)])


def test_each_speed_is_a_step_that_sends_all_of_the_trace() -> None:
    slow, fast = replay_steps(Replay(TRACE, (1.0, 4.0)), 64, holds=True)
    assert (slow.warm_up_s + slow.seconds, fast.warm_up_s + fast.seconds) == pytest.approx((60.0, 15.0))
    assert slow.warm_up_s == pytest.approx(10.0)
    assert slow.arrivals is not None
    assert slow.arrivals.times_s == tuple(i * 0.5 for i in range(120))
    assert (slow.arrivals.pattern, slow.arrivals.rate_rps, slow.concurrency, slow.holds) == (
        Pattern.REPLAY,
        2.0,
        64,
        True,
    )
    assert fast.arrivals is not None
    assert fast.arrivals.times_s == tuple(i * 0.125 for i in range(120))
    assert (fast.load, fast.arrivals.speed) == (8.0, 4.0)
    assert slow.without_times.arrivals == Arrivals(Pattern.REPLAY, 2.0), "a summary does not repeat the trace"


def test_a_step_may_send_the_beginning_only_or_the_trace_again() -> None:
    (begun,) = replay_steps(Replay(TRACE, seconds=30.0), 64, holds=False)
    assert begun.arrivals is not None
    assert len(begun.arrivals.times_s) == 60
    (again,) = replay_steps(Replay(TRACE, seconds=90.0), 64, holds=False)
    assert again.arrivals is not None
    assert again.arrivals.times_s[119:122] == (59.5, 60.0, 60.5)


def test_a_short_step_has_times_to_be_extended_by() -> None:
    (short,) = replay_steps(Replay(TRACE, seconds=5.0), 64, holds=False)
    assert short.arrivals is not None
    assert (len(short.arrivals.times_s), short.load) == (30, 2.0)


def test_what_a_replay_costs_is_known_before_it_begins() -> None:
    replay = Replay(TRACE, (1.0, 2.0))
    assert (replay.requests, replay.tokens) == (240, 24_000)
    check_budget(replay, 90.0, 24_000)
    with pytest.raises(ConfigError, match=r"--trace: takes 90 s, more than the budget's 60 s; raise --max-seconds, or"):
        check_budget(replay, 60.0, 24_000)
    with pytest.raises(
        ConfigError, match="--trace: sends 24000 tokens, more than the budget's 23999; raise --max-tokens"
    ):
        check_budget(replay, 90.0, 23_999)
    long = Replay(trace_of(TraceRequest(1, 1, i * 1e-5) for i in range(100)), (1.0,), 3600.0)
    with pytest.raises(ConfigError, match="expected at most 1000000"):
        check_budget(long, 9000.0, 10**12)


def test_a_trace_with_times_is_replayed_unless_other_levels_are_asked_for() -> None:
    configured = CapacityConfig.model_validate({"rates": [1], "arrivals": "constant"})
    found = steps(RampOptions(speeds="1,2", step_seconds=9.0), configured, TRACE)
    assert (found.replay, found.rates) == (Replay(TRACE, (1.0, 2.0), 9.0), None)
    assert found.conditions == {"arrivals": "replay"}
    assert steps(RampOptions(), configured, TRACE).replay == Replay(TRACE)
    assert steps(RampOptions(rates="3"), configured, TRACE).replay is None
    assert steps(RampOptions(), CapacityConfig(), UNTIMED) == StepSettings(confirm_s=180.0), "a search"


@pytest.mark.parametrize("gap_s", [1e-6, 1e-5, 3e-5])
@pytest.mark.parametrize("speeds", [None, "1,2"])
def test_a_trace_that_is_too_dense_names_the_speed_that_fits(gap_s: float, speeds: str | None) -> None:
    dense = trace_of(TraceRequest(1, 1, i * gap_s) for i in range(200))
    with pytest.raises(ConfigError) as refused:
        steps(RampOptions(speeds=speeds or "4"), CapacityConfig(), dense)
    words = str(refused.value)
    assert words.startswith(f"--trace: more than 10000 requests/s at --speeds {speeds or '4'}; expected --speeds of at")
    fits = float(words.rsplit(" ", 1)[1])
    assert 0.98e4 * gap_s < fits <= 1e4 * gap_s
    assert steps(RampOptions(speeds=f"{fits:g}"), CapacityConfig(), dense).replay is not None


def test_a_trace_that_is_too_dense_by_itself_does_not_name_an_option_that_was_not_given() -> None:
    dense = trace_of(TraceRequest(1, 1, i * 1e-5) for i in range(200))
    with pytest.raises(
        ConfigError, match=r"^--trace: more than 10000 requests/s at --speeds 1; expected .* at most 0\.(1|0999)$"
    ):
        steps(RampOptions(), CapacityConfig(), dense)


@pytest.mark.parametrize(
    ("options", "trace", "words"),
    [
        (RampOptions(speeds="1"), None, "--speeds: requires --trace FILE"),
        (RampOptions(speeds="1"), UNTIMED, "--speeds: requires a trace with times; this one is sent with --rates or"),
        (RampOptions(speeds="2,1"), TRACE, "--speeds 2,1: expected rising numbers above 0 and at most 1000"),
        (RampOptions(speeds="1", rates="1"), TRACE, "--rates, --speeds: both are set; remove one"),
        (RampOptions(arrivals="constant"), TRACE, "--arrivals: has no effect where a trace is sent at its times"),
        (RampOptions(confirm_seconds=9.0), TRACE, "--confirm-seconds: has no effect where a trace is sent"),
    ],
)
def test_options_that_do_not_fit_a_trace_are_refused(options: RampOptions, trace: object, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        steps(options, CapacityConfig(), trace)  # type: ignore[arg-type]
    assert str(refused.value).startswith(words)
