import numpy as np
import promql_parser
import pytest

from alerts import sli
from benchmarks.backfill import Line
from benchmarks.promql.evaluate import Engine

CANARIES, USERS = ({one.objective: one for one in kept} for kept in (sli.CANARIES, sli.USERS))


@pytest.mark.parametrize("one", [*sli.CANARIES, *sli.USERS], ids=lambda one: f"{one.who}-{one.objective}")
def test_every_expression_is_promql(one: sli.Sli) -> None:
    for expr in (
        *(one.total_grown("1m"), one.bad_grown("1m")),
        *(one.good_ratio("5m", 'target="a"'), one.error_ratio("5m", 'target="a",workload=~".*"')),
    ):
        promql_parser.parse(expr)


def test_aborted_requests_count_neither_as_good_nor_bad() -> None:
    assert 'outcome!="aborted"' in sli.AVAILABILITY.total_grown("1m")


def test_latency_judges_the_requests_that_succeeded() -> None:
    assert all('outcome="ok"' in one.total_grown("1m") for one in sli.CANARIES if one is not sli.AVAILABILITY)


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


@pytest.mark.parametrize("phase_s", [0.0, 0.4, 11.0])
@pytest.mark.parametrize("scrape_s", [15.0, 30.0, 60.0])
def test_recorded_minutes_add_up_to_what_was_counted(scrape_s: float, phase_s: float) -> None:
    """At any scrape interval and moment: `increase()` would be off by parts of requests."""
    times = np.arange(phase_s, 2 * 3600, scrape_s)
    whole, restarted = (np.floor(times / 13) for _ in range(2))
    reset = len(times) // 2
    restarted[reset:] -= restarted[reset] - 3  # three requests since the restart
    engine = Engine()
    engine.write(Line({"__name__": name}, times, values) for name, values in (("c", whole), ("r", restarted)))

    def recorded(name: str) -> float:
        (minutes,) = engine.series(f"sum ({sli.grown(name, '1m')})", 60.0, 2 * 3600, 60.0)
        return float(sum(minutes.values))

    assert recorded("c") == whole[-1] - whole[0]
    # What was counted in the minute of the restart before it is lost: at most five requests.
    counted = restarted[reset - 1] - restarted[0] + restarted[-1]
    assert counted - 5 <= recorded("r") <= counted
