import numpy as np
import promql_parser
import pytest

from alerts import sli
from benchmarks.backfill import Floats, Line
from benchmarks.promql.evaluate import Engine

CANARIES, USERS = ({one.objective: one for one in kept} for kept in (sli.CANARIES, sli.USERS))


@pytest.mark.parametrize("one", [*sli.CANARIES, *sli.USERS], ids=lambda one: f"{one.who}-{one.objective}")
def test_every_expression_is_promql(one: sli.Sli) -> None:
    for expr in (
        *(one.total_grown("1m"), one.bad_grown("1m"), *one.counters().values()),
        *(one.good_ratio("5m", 'target="a"'), one.error_ratio("5m", 'target="a",workload=~".*"')),
    ):
        promql_parser.parse(expr)


def test_aborted_requests_count_neither_as_good_nor_bad() -> None:
    assert 'outcome!="aborted"' in next(iter(sli.AVAILABILITY.counters().values()))


def test_latency_judges_the_requests_that_succeeded() -> None:
    latencies = [next(iter(one.counters().items())) for one in sli.CANARIES if one is not sli.AVAILABILITY]
    assert all('outcome="ok"' in expr for _, expr in latencies)
    assert len(dict(latencies)) == 1  # counted once for all of them


def test_a_selector_narrows_good_and_all_requests_alike() -> None:
    selector = 'target="a"'
    assert CANARIES["ttft"].good_ratio("5m", selector).count(selector) == 3


def test_users_are_judged_without_a_bound_in_the_rule_and_by_target_alone() -> None:
    for one in sli.USERS:
        assert "le=" not in one.error_ratio("5m")
        assert "workload" not in one.error_ratio("5m")


def test_good_ones_without_a_series_are_none_of_usual_objectives_and_not_known_of_others() -> None:
    for expr in (CANARIES["ttft"].good_ratio("5m"), CANARIES["ttft"].bad_grown("1m")):
        assert "or 0 * " in expr
    for one in (USERS["ttft"], CANARIES["e2e"], CANARIES["itl"]):  # without the objective there is nothing to record
        for expr in (one.good_ratio("5m"), one.bad_grown("1m")):
            assert "or 0 * " not in expr


def test_recorded_names_say_level_metric_and_operation() -> None:
    assert CANARIES["ttft"].budget_record == "target_workload:kneewatch_canary_ttft_budget:left_ratio"
    assert USERS["ttft"].budget_record == "target:kneewatch_users_ttft_budget:left_ratio"
    assert USERS["tpot"].error_record("5m") == "target:kneewatch_users_tpot_errors:ratio_rate5m"


@pytest.mark.fault(
    "E150",
    "Samples reach Prometheus up to two minutes late (remote write, agent, federation), or in bursts",
    area="Prometheus",
    users_see="a page as much later, at most four minutes after the server died",
    stays="each request is counted once, in the minute in which it arrives",
)
@pytest.mark.parametrize("late_s", [0.0, 45.0, 60.0, 120.0])
@pytest.mark.parametrize("scrape_s", [15.0, 30.0, 60.0])
def test_recorded_minutes_add_up_to_what_was_counted_however_late_it_arrives(scrape_s: float, late_s: float) -> None:
    """At any scrape interval: `increase()` would be off by parts of requests, and a difference of samples by most."""
    times = np.arange(0.4, 2 * 3600, scrape_s)
    whole = np.floor(times / 13)
    restarted = whole.copy()
    reset = len(times) // 2
    restarted[reset:] -= restarted[reset] - 3  # three requests since the restart
    arrived = times + late_s + np.where(np.arange(len(times)) % 7 < 3, 40.0, 0.0)  # some wait for others
    minutes = np.arange(300.0, 2 * 3600 + 600, 60.0)
    newest = [np.flatnonzero(arrived <= at)[-1] for at in minutes]

    def recorded(values: Floats) -> float:
        (one,) = (one for one in sli.USERS if one.objective == "availability")
        all_record, good_record = one.counters()
        engine = Engine()
        labels = {"job": "kneewatch", "instance": "a", "target": "t"}
        engine.write(Line({**labels, "__name__": name}, minutes, values[newest]) for name in (all_record, good_record))
        (grown,) = engine.series(one.total_grown("1m"), 360.0, minutes[-1], 60.0)
        return float(sum(grown.values))

    assert recorded(whole) == whole[-1] - whole[newest[0]]
    # What was counted between the last sample before the restart and the restart is lost: at most ten requests.
    counted = restarted[reset - 1] - restarted[newest[0]] + restarted[-1]
    assert counted - 10 <= recorded(restarted) <= counted
