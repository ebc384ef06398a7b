"""The steps of a replay: the recorded times at each speed, within a budget known beforehand."""

import pytest

from probe.capacity.run.replay_steps import Replay, replay_steps
from probe.capacity.run.request import StepSettings
from probe.cli.ramp_command import RampOptions, check_budget, steps
from probe.config.capacity import CapacityConfig
from probe.core.errors import ConfigError
from probe.core.step import Arrivals, Pattern
from probe.core.trace import TraceRequest, trace_of

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
