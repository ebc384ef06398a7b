"""Capacity as series: the last knee of a target, and how its runs ended."""

from dataclasses import replace

import pytest
from example_records import WALL_S, no_knee, result, step
from exposition import samples, value, values
from prometheus_client import CollectorRegistry

from exporters.capacity import OUTCOMES, CapacityExporter
from probe.capacity.trend.fingerprint import capacity_sample, fingerprint, from_number
from probe.core import reasons
from probe.core.result import Capacity, CapacityResult, Stopped
from probe.core.shift import Baseline, Shift
from probe.core.snapshot import UserLoad

LABELS = {"target": "a", "model": "m", "workload": "short", "mode": "empirical"}


def _registry() -> tuple[CollectorRegistry, CapacityExporter]:
    registry = CollectorRegistry()
    exporter = CapacityExporter(registry)
    exporter.start_at_zero("a", 86400.0)
    return registry, exporter


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_runs_count_from_zero_however_they_end(outcome: str) -> None:
    registry, exporter = _registry()
    assert value(registry, "kneewatch_capacity_runs_total", target="a", outcome=outcome) == 0
    if outcome == "refused":
        exporter.count_refusal("a", "locked")
    else:
        exporter.observe(result(stopped=Stopped(outcome)))
    assert value(registry, "kneewatch_capacity_runs_total", target="a", outcome=outcome) == 1
    assert sum(values(registry, "kneewatch_capacity_runs_total")) == 1


def test_before_any_run_there_is_no_figure() -> None:
    registry, _ = _registry()
    assert {name for name, _ in samples(registry)} <= {
        "kneewatch_capacity_runs_total",
        "kneewatch_capacity_schedule_interval_seconds",
        "kneewatch_capacity_steps_total",
        "kneewatch_capacity_over_objective_seconds_total",
        "kneewatch_capacity_refusals_total",
        "kneewatch_guard_trips_total",
    }
    assert value(registry, "kneewatch_capacity_over_objective_seconds_total", target="a") == 0


def test_a_knee_is_published_with_its_bounds() -> None:
    registry, exporter = _registry()
    exporter.observe(result())
    expected = {
        "capacity_requests_per_second": 10.0,
        "capacity_requests_per_second_lower": 10.0,
        "capacity_requests_per_second_upper": 12.5,
        "capacity_output_tokens_per_second": 640.0,
        "knee_concurrency": 4,
        "prefill_tokens_per_second": 12_000.0,
        "capacity_last_success_timestamp_seconds": WALL_S + 31.5,
    }
    for name, number in expected.items():
        assert value(registry, f"kneewatch_{name}", **LABELS) == number
    assert value(registry, "kneewatch_capacity_over_objective_seconds_total", target="a") == 2.0


def test_a_run_without_a_knee_leaves_the_figure_and_its_age_alone() -> None:
    registry, exporter = _registry()
    exporter.observe(result())
    exporter.observe(result(started_s=WALL_S + 3600, capacity=no_knee(), stopped=Stopped("interrupt")))
    assert value(registry, "kneewatch_capacity_requests_per_second", **LABELS) == 10.0
    assert value(registry, "kneewatch_capacity_last_success_timestamp_seconds", **LABELS) == WALL_S + 31.5
    assert sum(values(registry, "kneewatch_capacity_runs_total")) == 2


def test_an_upper_bound_that_is_not_known_any_more_is_absent() -> None:
    registry, exporter = _registry()
    exporter.observe(result())
    at_least = Capacity(mode="empirical", requests_per_second=20.0, lower=20.0, knee_concurrency=8)
    exporter.observe(result(capacity=at_least))
    assert value(registry, "kneewatch_capacity_requests_per_second", **LABELS) == 20.0
    assert values(registry, "kneewatch_capacity_requests_per_second_upper") == []
    assert values(registry, "kneewatch_capacity_output_tokens_per_second") == []


def test_a_knee_of_before_the_restart_is_shown_but_counts_as_no_run() -> None:
    registry, exporter = _registry()
    exporter.restore(result())
    assert value(registry, "kneewatch_capacity_requests_per_second", **LABELS) == 10.0
    assert sum(values(registry, "kneewatch_capacity_runs_total")) == 0
    assert value(registry, "kneewatch_capacity_over_objective_seconds_total", target="a") == 0


def test_the_knee_of_a_model_that_is_not_served_any_more_is_gone() -> None:
    """Two knees of one target would be two answers to how much more it can take."""
    registry, exporter = _registry()
    exporter.observe(result(model="old"))
    exporter.observe(result(model="new"))
    exporter.observe(result(target="b", model="other"))
    assert values(registry, "kneewatch_capacity_requests_per_second", target="a", model="old") == []
    assert len(values(registry, "kneewatch_capacity_requests_per_second", target="a")) == 1
    assert len(values(registry, "kneewatch_capacity_requests_per_second", target="b")) == 1


def test_a_measured_capacity_replaces_one_of_another_mode() -> None:
    """The search may verify its model in one night and not in the next: the older figure is no answer any more."""
    registry, exporter = _registry()
    exporter.observe(result(capacity=Capacity(mode="empirical", requests_per_second=10.0, lower=9.0)))
    exporter.observe(result(capacity=Capacity(mode="verified", requests_per_second=11.0)))
    for name in ("requests_per_second", "last_success_timestamp_seconds", "requests_per_second_lower"):
        assert values(registry, f"kneewatch_capacity_{name}", target="a", mode="empirical") == []
    assert values(registry, "kneewatch_capacity_requests_per_second", target="a") == [11.0]


def test_a_forecast_stands_beside_a_measurement_and_each_has_its_age() -> None:
    """A forecast is another answer than a measurement, and is labelled as such."""
    registry, exporter = _registry()
    exporter.observe(result())
    exporter.publish_forecast(result(capacity=Capacity(mode="forecast", requests_per_second=20.0)))
    assert sorted(values(registry, "kneewatch_capacity_requests_per_second", target="a")) == [10.0, 20.0]


@pytest.mark.fault(
    "TR40",
    "Runs with load at a lower capacity that are not verified, beside forecasts every half an hour",
    area="Truth",
    users_see='the capacity of the last run, with `mode="unverified"`, in all that reads `mode!="forecast"`',
    stays="the forecast, as a series of its own",
)
def test_a_run_that_was_not_verified_takes_the_place_of_one_that_was_and_no_forecast_takes_its() -> None:
    registry, exporter = _registry()
    exporter.observe(result())
    exporter.observe(result(capacity=Capacity("forecast", 6.0, 5.5, 6.5)))
    exporter.publish_forecast(result(capacity=Capacity("forecast", 11.0, 9.0, 12.0)))
    name = "kneewatch_capacity_requests_per_second"
    assert value(registry, name, **LABELS | {"mode": "unverified"}) == 6.0
    assert value(registry, "kneewatch_knee_upper_requests_per_second", **LABELS | {"mode": "unverified"}) == 6.5
    assert sorted(values(registry, name, target="a")) == [6.0, 11.0]
    exporter.observe(result(capacity=Capacity("forecast", 2.0, 2.0, None)))
    assert value(registry, name, **LABELS | {"mode": "unverified"}) == 6.0, "a lower bound says less"


@pytest.mark.parametrize("reason", [row.word for row in reasons.TRIPS])
def test_trips_of_the_guard_count_from_zero_by_reason(reason: str) -> None:
    """A trip is rare: the first one is the one to see, and `increase` needs a zero before it."""
    registry, exporter = _registry()
    assert value(registry, "kneewatch_guard_trips_total", target="a", reason=reason) == 0
    exporter.observe(result(stopped=Stopped("guard", reason)))
    assert value(registry, "kneewatch_guard_trips_total", target="a", reason=reason) == 1


def test_trips_that_a_run_outlives_count_too_and_none_twice() -> None:
    registry, exporter = _registry()
    steps = [replace(step(8, reason="cut_short"), tripped="queue"), step(4)]
    exporter.observe(result(steps=steps, stopped=Stopped("done")))
    assert value(registry, "kneewatch_guard_trips_total", target="a", reason="queue") == 1
    exporter.observe(result(steps=steps[::-1], stopped=Stopped("guard", "queue")))
    assert value(registry, "kneewatch_guard_trips_total", target="a", reason="queue") == 2


def test_an_end_that_the_guard_did_not_cause_is_no_trip() -> None:
    registry, exporter = _registry()
    exporter.observe(result(stopped=Stopped("budget", "seconds")))
    assert sum(values(registry, "kneewatch_guard_trips_total")) == 0


@pytest.mark.parametrize("reason", [row.word for row in reasons.REFUSALS])
def test_refusals_count_from_zero_by_their_reason(reason: str) -> None:
    registry, exporter = _registry()
    assert value(registry, "kneewatch_capacity_refusals_total", target="a", reason=reason) == 0
    exporter.count_refusal("a", reason)
    assert value(registry, "kneewatch_capacity_refusals_total", target="a", reason=reason) == 1
    assert sum(values(registry, "kneewatch_capacity_refusals_total")) == 1


SHIFT = Shift(
    ratio=-0.1,
    baseline=Baseline(requests_per_second=11.1, count=28, since_s=WALL_S, noise_ratio=0.03),
    fired={"confirmed_drop": False, "median_of_3": True, "mann_whitney": True, "rise": False},
    since_s=WALL_S,
)


def _compare(exporter: CapacityExporter, of: CapacityResult, shift: Shift | None) -> None:
    found = capacity_sample(of)
    assert found is not None
    exporter.compare(of.target, "short", found, shift)


def test_a_shift_is_published_by_method_beside_its_baseline() -> None:
    registry, exporter = _registry()
    _compare(exporter, result(), SHIFT)
    assert value(registry, "kneewatch_knee_shift_ratio", **LABELS) == -0.1
    assert value(registry, "kneewatch_knee_baseline_requests_per_second", **LABELS) == 11.1
    assert value(registry, "kneewatch_knee_baseline_since_timestamp_seconds", **LABELS) == WALL_S
    for method, fired in SHIFT.fired.items():
        assert value(registry, "kneewatch_knee_shifted", **LABELS, method=method) == float(fired)


def test_without_a_baseline_nothing_is_said_of_shifts() -> None:
    registry, exporter = _registry()
    _compare(exporter, result(), None)
    _compare(exporter, result(), SHIFT)
    _compare(exporter, result(model="other"), None)
    assert not [name for name, _ in samples(registry) if "knee_shift" in name or "baseline" in name]


def test_the_next_figure_of_another_kind_takes_the_place_of_the_last_one() -> None:
    """All runs with load are compared with one another; two shifts at once would be two alerts."""
    registry, exporter = _registry()
    _compare(exporter, result(), SHIFT)
    _compare(exporter, result(capacity=Capacity(mode="verified", requests_per_second=9.0)), SHIFT)
    assert len(values(registry, "kneewatch_knee_shift_ratio")) == 1
    assert len(values(registry, "kneewatch_knee_shifted")) == 4
    _compare(exporter, result(capacity=Capacity(mode="forecast", requests_per_second=9.0)), SHIFT)
    assert value(registry, "kneewatch_knee_shift_ratio", **LABELS | {"mode": "unverified"}) == -0.1
    _compare(exporter, result(target="b"), SHIFT)
    assert len(values(registry, "kneewatch_knee_shift_ratio")) == 2


def test_the_fingerprint_is_exported_beside_the_capacity() -> None:
    registry, exporter = _registry()
    exporter.observe(result())
    (number,) = values(registry, "kneewatch_capacity_fingerprint")
    assert from_number(number) == fingerprint(result().model, result().context)


# By how much the last forecast was off.

RESIDUAL = "kneewatch_capacity_model_residual_ratio"


def test_a_run_that_measures_says_by_how_much_the_forecast_was_off() -> None:
    registry, exporter = _registry()
    assert values(registry, RESIDUAL) == []
    exporter.publish_forecast_error(result(), result(capacity=Capacity("forecast", 9.0)))
    assert value(registry, RESIDUAL, target="a", model="m", workload="short") == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("measured", "forecast"),
    [
        (Capacity("verified", 10.0, 9.0, 11.0), None),
        (Capacity("verified", 10.0, 9.0, 11.0), Capacity("forecast", reason="not enough evidence")),
        (Capacity("empirical", 10.0, 10.0, None), Capacity("forecast", 30.0)),
        (Capacity("forecast", 10.0, 9.0, 11.0), Capacity("forecast", 30.0)),
        (no_knee(), Capacity("forecast", 30.0)),
        (Capacity("verified", 10.0, 9.0, 11.0), Capacity("forecast", 6.0, 5.0, None)),
    ],
    ids=["no forecast", "a silent one", "a lower bound", "not measured", "no knee", "a forecast lower bound"],
)
def test_a_capacity_that_was_not_measured_gives_no_residual_of_a_forecast(
    measured: Capacity, forecast: Capacity | None
) -> None:
    registry, exporter = _registry()
    exporter.publish_forecast_error(result(capacity=measured), result(capacity=forecast) if forecast else None)
    assert values(registry, RESIDUAL) == []


def test_a_forecast_of_another_server_is_not_judged() -> None:
    registry, exporter = _registry()
    exporter.publish_forecast_error(result(), result(model="another", capacity=Capacity("forecast", 9.0)))
    assert values(registry, RESIDUAL) == []


def _headroom(registry: CollectorRegistry, mode: str) -> float | None:
    return value(registry, "kneewatch_capacity_headroom_ratio", **LABELS | {"mode": mode})


def test_headroom_is_what_users_leave_of_each_capacity_now() -> None:
    registry, exporter = _registry()
    exporter.publish_headroom("a", UserLoad(4.0, None))
    assert values(registry, "kneewatch_capacity_headroom_ratio") == []  # of nothing
    exporter.observe(result())
    forecast = Capacity(mode="forecast", requests_per_second=16.0, output_tokens_per_second=100.0)
    exporter.publish_forecast(result(capacity=forecast))
    exporter.publish_headroom("a", UserLoad(4.0, 90.0))
    assert _headroom(registry, "empirical") == pytest.approx(0.6)
    assert _headroom(registry, "forecast") == pytest.approx(0.1)  # by tokens
    exporter.publish_headroom("a", UserLoad(20.0, None))
    assert _headroom(registry, "empirical") == pytest.approx(-1.0)
    exporter.publish_headroom("a", None)
    assert values(registry, "kneewatch_capacity_headroom_ratio") == []


@pytest.mark.fault("ST123")
def test_a_forecast_from_before_what_is_valid_has_no_headroom() -> None:
    registry, exporter = _registry()
    exporter.observe(result(started_s=WALL_S - 99_999))
    exporter.publish_forecast(result(started_s=WALL_S, capacity=Capacity("forecast", 16.0)))
    exporter.publish_headroom("a", UserLoad(4.0, None), forecasts_since_s=WALL_S)
    assert _headroom(registry, "forecast") == pytest.approx(0.75)
    exporter.publish_headroom("a", UserLoad(4.0, None), forecasts_since_s=WALL_S + 60)
    assert _headroom(registry, "forecast") is None
    assert _headroom(registry, "empirical") == pytest.approx(0.6), "what was measured counts until the next run"


@pytest.mark.fault("TR19")
def test_of_another_number_of_replicas_there_is_no_headroom() -> None:
    registry, exporter = _registry()
    measured = result()
    flags = {**measured.context.flags, "replicas": "3"}
    exporter.observe(replace(measured, context=replace(measured.context, flags=flags)))
    for now, has_headroom in (("3", True), ("2", False), ("3", True), ("4", False), (None, False)):
        exporter.publish_headroom("a", UserLoad(4.0, None), now)
        assert (values(registry, "kneewatch_capacity_headroom_ratio") != []) == has_headroom


def test_a_forecast_that_is_a_lower_bound_has_no_headroom() -> None:
    """It is as near to the load of users as the most requests that they had running."""
    registry, exporter = _registry()
    exporter.publish_forecast(result(capacity=Capacity("forecast", 5.0, 4.0, None)))
    exporter.publish_headroom("a", UserLoad(4.0, None))
    assert values(registry, "kneewatch_capacity_headroom_ratio") == []


def _for_users(rps: float, upper: float | None) -> CapacityResult:
    found = result(capacity=Capacity("forecast", rps, 0.9 * rps, upper, bottleneck="prefill"))
    return replace(found, context=replace(found.context, workload={**found.context.workload, "name": "users"}))


def test_a_forecast_for_users_stands_beside_the_other_capacities_and_replaces_its_own_kind_only() -> None:
    registry, exporter = _registry()
    name = "kneewatch_capacity_requests_per_second"
    exporter.observe(result())
    exporter.publish_forecast(result(capacity=Capacity("forecast", 9.0, 8.0, 10.0)))
    exporter.publish_for_users(_for_users(5.0, 5.5))
    exporter.publish_headroom("a", UserLoad(4.0, None))
    users = {**LABELS, "workload": "users", "mode": "forecast"}
    assert sorted(values(registry, name, target="a")) == [5.0, 9.0, 10.0]
    assert value(registry, "kneewatch_capacity_headroom_ratio", **users) == pytest.approx(0.2)
    exporter.publish_for_users(_for_users(6.0, None))
    exporter.publish_forecast(result(capacity=Capacity("forecast", 8.0, 7.0, 9.0)))
    assert sorted(values(registry, name, target="a")) == [6.0, 8.0, 10.0]
    assert value(registry, name + "_upper", **users) is None
    exporter.publish_for_users(replace(_for_users(7.0, 8.0), capacity=no_knee()))
    assert value(registry, name, **users) == 6.0
    exporter.forget("a")
    assert values(registry, name) == []


def test_a_stored_forecast_for_users_is_replaced_by_the_first_one_of_now() -> None:
    """The workload of the capacity was users before the restart, and is another one now."""
    registry, exporter = _registry()
    exporter.publish_forecast(_for_users(4.0, 5.0))
    exporter.publish_for_users(_for_users(5.0, 5.5))
    exporter.publish_forecast(result(capacity=Capacity("forecast", 9.0, 8.0, 10.0)))
    assert sorted(values(registry, "kneewatch_capacity_requests_per_second")) == [5.0, 9.0]


def test_headroom_of_a_capacity_that_was_replaced_is_gone() -> None:
    registry, exporter = _registry()
    exporter.observe(result())
    exporter.publish_headroom("a", UserLoad(4.0, None))
    exporter.observe(result(model="other"))
    assert values(registry, "kneewatch_capacity_headroom_ratio") == []
    exporter.publish_headroom("a", UserLoad(4.0, None))
    assert len(values(registry, "kneewatch_capacity_headroom_ratio")) == 1


def test_one_bottleneck_is_exported_and_none_where_none_was_found() -> None:
    registry, exporter = _registry()
    found = replace(result().capacity, bottleneck="kv_cache")
    exporter.observe(result(capacity=found))
    assert value(registry, "kneewatch_capacity_bottleneck", **LABELS, bottleneck="kv_cache") == 1
    assert value(registry, "kneewatch_capacity_bottleneck", **LABELS, bottleneck="prefill") == 0
    assert sum(values(registry, "kneewatch_capacity_bottleneck")) == 1
    exporter.observe(result())
    assert values(registry, "kneewatch_capacity_bottleneck") == []


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [(None, "valid"), *((row.word, row.verdict) for row in reasons.UNJUDGED), ("of a later version", "lost")],
)
def test_steps_count_by_whether_they_judge_anything(reason: str | None, verdict: str) -> None:
    registry, exporter = _registry()
    assert values(registry, "kneewatch_capacity_steps_total") == [0.0] * 6
    exporter.observe(result(steps=(replace(step(), valid=reason is None, reason=reason),)))
    assert value(registry, "kneewatch_capacity_steps_total", target="a", verdict=verdict) == 1
    assert sum(values(registry, "kneewatch_capacity_steps_total")) == 1
