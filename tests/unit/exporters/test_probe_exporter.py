"""The client's series: what was counted, under which labels, and zero before anything happened."""

from dataclasses import replace
from typing import Any

import pytest
from example_records import CHAT, WALL_S, record, spec, token_events
from exposition import samples, value, values
from set_clock import SetClock

from exporters.client_series import TargetUp
from exporters.probe import ProbeExporter
from exporters.rendered_samples import RenderedSamples
from probe.core.objectives import Objective, Objectives
from probe.core.request import Outcome, RequestRecord, Traffic

LABELS = {"target": "a", "model": "m", "workload": "short", "traffic": "canary"}


def _exported(*records: RequestRecord, objectives: Objectives = CHAT) -> RenderedSamples:
    exporter = ProbeExporter({"a": objectives})
    exporter.start_at_zero("a", "m", "short", Traffic.CANARY)
    for one in records:
        exporter.observe(one, WALL_S)
    return exporter.relay


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_counts_from_zero(outcome: Outcome) -> None:
    before = _exported()
    assert value(before, "kneewatch_requests_total", **LABELS, outcome=outcome.value) == 0
    after = _exported(record(outcome=outcome))
    assert value(after, "kneewatch_requests_total", **LABELS, outcome=outcome.value) == 1
    assert sum(values(after, "kneewatch_requests_total")) == 1


def test_good_requests_count_from_zero_for_every_objective() -> None:
    registry = _exported()
    for objective in ("availability", "ttft", "tpot", "all"):
        assert value(registry, "kneewatch_good_requests_total", **LABELS, objective=objective) == 0


def test_our_own_footprint_counts_from_zero() -> None:
    """Without a zero before it `increase` does not see the first request, and subtracts too little."""
    registry = _exported()
    for kind in ("prompt", "output"):
        assert value(registry, "kneewatch_tokens_total", target="a", model="m", traffic="canary", kind=kind) == 0


@pytest.mark.parametrize(
    ("one", "good"),
    [
        (record(), {"availability", "ttft", "tpot", "all"}),
        (record(ttft_s=0.6), {"availability", "tpot"}),
        (record(gap_s=0.06), {"availability", "ttft"}),
        (record(ttft_s=0.6, gap_s=0.06), {"availability"}),
        (record(outcome=Outcome.TIMEOUT), set()),
        (record(outcome=Outcome.ABORTED), set()),
    ],
    ids=["good", "late", "slow", "late and slow", "failed", "aborted"],
)
def test_a_request_is_good_for_the_objectives_it_met(one: RequestRecord, good: set[str]) -> None:
    registry = _exported(one)
    for objective in ("availability", "ttft", "tpot", "all"):
        expected = float(objective in good)
        assert value(registry, "kneewatch_good_requests_total", **LABELS, objective=objective) == expected


def test_e2e_and_the_longest_gap_are_counted_where_they_are_promised() -> None:
    whole = replace(CHAT, e2e=Objective(0.95, 0.777), itl=Objective(0.9, 0.0333))
    registry = _exported(record(), record(ttft_s=0.4, gap_s=0.034), record(ttft_s=0.77), objectives=whole)
    for objective, good in (("ttft", 2), ("tpot", 3), ("e2e", 2), ("itl", 2), ("all", 1)):
        assert value(registry, "kneewatch_good_requests_total", **LABELS, objective=objective) == good
    assert value(registry, "kneewatch_objective_seconds", target="a", objective="itl") == 0.0333
    assert value(registry, "kneewatch_objective_ratio", target="a", objective="e2e") == 0.95
    assert value(registry, "kneewatch_e2e_seconds_bucket", **LABELS, le="0.777") == 2
    assert value(registry, "kneewatch_itl_seconds_bucket", **LABELS, le="0.0333") == 4


def test_the_first_answer_token_has_series_of_a_server_that_reasons_only() -> None:
    plain = record(ttft_s=0.1, gap_s=0.2)
    assert values(_exported(plain), "kneewatch_first_answer_seconds_count") == []
    reasoned = _exported(plain, replace(plain, events=replace(plain.events, first_answer=2)))
    assert values(reasoned, "kneewatch_first_answer_seconds_count") == [1]
    assert value(reasoned, "kneewatch_first_answer_seconds_sum", **LABELS) == pytest.approx(0.5)


def test_the_first_token_with_text_has_series_where_tokens_without_came_before() -> None:
    plain = record(ttft_s=0.1, gap_s=0.2)
    assert values(_exported(plain), "kneewatch_first_visible_seconds_count") == []
    hidden = _exported(plain, replace(plain, events=replace(plain.events, first_visible=2)))
    assert value(hidden, "kneewatch_first_visible_seconds_sum", **LABELS) == pytest.approx(0.5)
    assert value(hidden, "kneewatch_ttft_seconds_sum", **LABELS) == pytest.approx(0.2)


def test_without_them_a_held_back_stream_counts_for_no_other_objective() -> None:
    held = record(gap_s=0.0)
    only_itl = Objectives("o", itl=Objective(0.9, 0.1))
    registry = _exported(held, objectives=only_itl)
    assert value(registry, "kneewatch_good_requests_total", **LABELS, objective="itl") == 1
    assert values(registry, "kneewatch_good_requests_total", objective="tpot") == []
    assert values(_exported(held), "kneewatch_good_requests_total", objective="itl") == []


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_failed_request_is_good_for_no_latency_however_its_tokens_came(outcome: Outcome) -> None:
    """The alerts compare good ones with answered ones: a failure among them would hide a miss."""
    slow, cut = record(gap_s=0.1), replace(record(gap_s=0.0), outcome=outcome)
    registry = _exported(slow, cut, objectives=replace(CHAT, itl=Objective(0.9, 0.05)))
    for objective, good in (("ttft", 1), ("tpot", 0), ("itl", 0), ("all", 0)):
        assert value(registry, "kneewatch_good_requests_total", **LABELS, objective=objective) == good


def test_objectives_that_are_not_promised_have_no_series() -> None:
    registry = _exported(record(), objectives=Objectives(name="loose", availability=None))
    assert values(registry, "kneewatch_objective_ratio") == []
    assert values(registry, "kneewatch_good_requests_total", objective="ttft") == []


def test_promises_are_series_of_their_own() -> None:
    registry = _exported()
    assert value(registry, "kneewatch_objective_ratio", target="a", objective="availability") == 0.999
    assert value(registry, "kneewatch_objective_ratio", target="a", objective="ttft") == 0.95
    assert value(registry, "kneewatch_objective_seconds", target="a", objective="tpot") == 0.05
    assert value(registry, "kneewatch_objective_seconds", target="a", objective="availability") is None


@pytest.mark.parametrize("within_s", [0.123, 0.333, 0.5, 7.0])
def test_an_objective_is_counted_by_a_bucket_at_its_threshold(within_s: float) -> None:
    objectives = replace(CHAT, ttft=Objective(0.9, within_s), tpot=Objective(0.9, within_s / 10))
    registry = _exported(
        record(ttft_s=within_s * 0.999, gap_s=0.001), record(ttft_s=within_s * 1.001), objectives=objectives
    )
    bounds = {
        float(dict(labels)["le"]) for name, labels in samples(registry) if name == "kneewatch_ttft_seconds_bucket"
    }
    assert within_s in bounds
    assert value(registry, "kneewatch_ttft_seconds_bucket", **LABELS, le=str(within_s)) == 1
    for name in ("tpot", "itl"):
        found = values(registry, f"kneewatch_{name}_seconds_bucket", le=str(within_s / 10))
        assert len(found) == 1


@pytest.mark.fault(
    "TR15",
    "A request that fails or breaks off",
    area="Truth",
    users_see="its outcome is counted; no latency, not even zero",
    stays="-",
)
def test_only_what_succeeded_has_latencies() -> None:
    broken = replace(record(), outcome=Outcome.BROKEN_STREAM)
    registry = _exported(record(ttft_s=0.2, gap_s=0.01), record(outcome=Outcome.TIMEOUT), broken)
    for name in ("ttft", "tpot", "e2e", "schedule_lag"):
        assert value(registry, f"kneewatch_{name}_seconds_count", **LABELS) == 1
    assert value(registry, "kneewatch_itl_seconds_count", **LABELS) == 2
    assert value(registry, "kneewatch_ttft_seconds_sum", **LABELS) == pytest.approx(0.2)
    assert value(registry, "kneewatch_e2e_seconds_sum", **LABELS) == pytest.approx(0.22)


def test_a_single_token_has_no_tpot_and_no_sample_of_zero() -> None:
    registry = _exported(record(asked=spec(output_tokens=1)))
    assert value(registry, "kneewatch_ttft_seconds_count", **LABELS) == 1
    assert not value(registry, "kneewatch_tpot_seconds_count", **LABELS)
    assert not value(registry, "kneewatch_itl_seconds_count", **LABELS)


def test_only_the_canary_says_whether_the_target_is_up() -> None:
    assert values(_exported(), "kneewatch_target_up") == []
    assert value(_exported(record()), "kneewatch_target_up", target="a") == 1
    assert value(_exported(record(), record(outcome=Outcome.TIMEOUT)), "kneewatch_target_up", target="a") == 0
    capacity = record(outcome=Outcome.REJECTED, traffic=Traffic.CAPACITY)
    assert value(_exported(record(), capacity), "kneewatch_target_up", target="a") == 1
    unsent = record(outcome=Outcome.CLIENT_BOUND, finish_reason=None)
    assert values(_exported(unsent), "kneewatch_target_up") == []
    assert value(_exported(record(outcome=Outcome.TIMEOUT), unsent), "kneewatch_target_up", target="a") == 0


def test_the_objectives_window_is_exported_with_their_name() -> None:
    assert value(_exported(), "kneewatch_objective_window_seconds", target="a", slo="chat") == CHAT.window_s


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.TIMEOUT])
def test_while_a_server_sleeps_it_is_neither_up_nor_down(outcome: Outcome) -> None:
    exporter = ProbeExporter({"a": CHAT})
    for _ in range(2):
        exporter.observe(record(outcome=outcome), WALL_S)
        exporter.observe(record(outcome=Outcome.ABORTED), WALL_S)
        assert value(exporter.relay, "kneewatch_target_up", target="a") == (outcome is Outcome.OK)
        for _ in range(2):
            exporter.remove_up("a")
            assert values(exporter.relay, "kneewatch_target_up") == []


def test_the_last_success_is_not_moved_by_a_failure() -> None:
    exporter = ProbeExporter({"a": CHAT})
    exporter.observe(record(), WALL_S)
    exporter.observe(record(outcome=Outcome.TIMEOUT), WALL_S + 60)
    assert value(exporter.relay, "kneewatch_last_success_timestamp_seconds", **LABELS) == WALL_S


def test_tokens_are_what_the_server_counted() -> None:
    registry = _exported(record(asked=spec(100, 7)), record(outcome=Outcome.UNREACHABLE))
    tokens = {"target": "a", "model": "m", "traffic": "canary"}
    assert value(registry, "kneewatch_tokens_total", **tokens, kind="prompt") == 100
    assert value(registry, "kneewatch_tokens_total", **tokens, kind="output") == 7


def test_two_kinds_of_traffic_and_two_targets_are_kept_apart() -> None:
    exporter = ProbeExporter({"a": CHAT, "b": CHAT})
    exporter.observe(record(), WALL_S)
    exporter.observe(record(traffic=Traffic.CAPACITY), WALL_S)
    exporter.observe(record(target="b"), WALL_S)
    assert [v for v in values(exporter.relay, "kneewatch_requests_total", outcome="ok") if v] == [1, 1, 1]


def test_step_up_load_is_counted_when_the_page_is_asked_for_and_has_no_latencies() -> None:
    exporter = ProbeExporter({"a": CHAT})
    labels = LABELS | {"traffic": "capacity"}
    for count in range(1, 4):
        exporter.observe(record(traffic=Traffic.CAPACITY), WALL_S)
        assert value(exporter.relay, "kneewatch_requests_total", **labels, outcome="ok") == count
    assert values(exporter.relay, "kneewatch_ttft_seconds_count") == []


def test_announced_canary_series_stay_when_a_capacity_run_comes_first() -> None:
    exporter = ProbeExporter({"a": CHAT})
    exporter.start_at_zero("a", "m", "short", Traffic.CANARY)
    exporter.observe(record(traffic=Traffic.CAPACITY), WALL_S)
    assert value(exporter.relay, "kneewatch_requests_total", **LABELS, outcome="timeout") == 0


def test_series_announced_without_a_model_go_once_it_is_known() -> None:
    exporter = ProbeExporter({"a": CHAT})
    exporter.start_at_zero("a", "unknown", "short", Traffic.CANARY)
    exporter.observe(record(), WALL_S)
    assert not [1 for _, labels in samples(exporter.relay) if ("model", "unknown") in labels]
    exporter = ProbeExporter({"a": CHAT})
    exporter.start_at_zero("a", "unknown", "short", Traffic.CANARY)
    exporter.observe(record(model="unknown", outcome=Outcome.UNREACHABLE), WALL_S)
    exporter.observe(record(), WALL_S)
    labels = LABELS | {"model": "unknown"}
    assert value(exporter.relay, "kneewatch_requests_total", **labels, outcome="unreachable") == 1


@pytest.mark.parametrize("name", ['"', "\\", "\n", 'a"} 1\nevil_total{x="', "\\n", "ключ", "\U0001f600"])
@pytest.mark.fault("FA93")
def test_a_name_from_outside_stays_inside_its_label(name: str) -> None:
    registry = _exported(record(model=name))
    labels = {**LABELS, "model": name}
    assert value(registry, "kneewatch_requests_total", **labels, outcome="ok") == 1
    assert all(found.startswith("kneewatch_") for found, _ in samples(registry))


@pytest.mark.parametrize("reads", [[3], [1, 2, 1], [1, 1, 1]])
def test_tokens_of_one_read_have_no_gap_that_is_counted(reads: list[int]) -> None:
    """A proxy holds a whole answer back, or a busy client reads two events at once: a gap of 0 would look very good."""
    events = token_events((10**9 + i * 10**7, 1, True) for i, count in enumerate(reads) for _ in range(count))
    registry = _exported(replace(record(start_s=0.5), events=events, output_tokens=len(events)))
    assert value(registry, "kneewatch_itl_seconds_bucket", **LABELS, le="0.001") == 0
    assert value(registry, "kneewatch_itl_seconds_count", **LABELS) == len(reads) - 1
    assert value(registry, "kneewatch_itl_seconds_sum", **LABELS) == pytest.approx(0.01 * (len(reads) - 1))


def _bounds(relay: RenderedSamples, name: str) -> set[float]:
    found = (dict(labels) for series, labels in samples(relay) if series == f"kneewatch_{name}_seconds_bucket")
    return {float(labels["le"]) for labels in found}


@pytest.mark.slow
def test_another_targets_new_threshold_takes_nothing_but_the_histograms_whose_bounds_it_changes() -> None:
    exporter = ProbeExporter({"a": CHAT, "b": CHAT})
    exporter.start_at_zero("b", "m", "short", Traffic.CANARY)
    exporter.observe(record(), WALL_S)
    before, announced = samples(exporter.relay), values(exporter.relay, "kneewatch_requests_total", target="b")
    quick = replace(CHAT, ttft=Objective(0.9, 0.123))
    exporter.set_bounds([CHAT, quick])
    after = samples(exporter.relay)
    lost = {name for name, _ in before.keys() - after.keys()}
    assert lost == {f"kneewatch_ttft_seconds_{part}" for part in ("bucket", "count", "sum")}
    assert all(after[key] == said for key, said in before.items() if key[0] not in lost)
    assert value(exporter.relay, "kneewatch_target_up", target="a") == 1
    assert values(exporter.relay, "kneewatch_requests_total", target="b") == announced
    exporter.observe(record(), WALL_S)
    exporter.observe(record(target="b"), WALL_S)
    assert value(exporter.relay, "kneewatch_requests_total", **LABELS, outcome="ok") == 2
    assert value(exporter.relay, "kneewatch_ttft_seconds_count", **LABELS) == 1
    assert value(exporter.relay, "kneewatch_tpot_seconds_count", **LABELS) == 2
    assert 0.123 in _bounds(exporter.relay, "ttft")


def test_a_threshold_that_is_a_bound_already_changes_nothing() -> None:
    exporter = ProbeExporter({"a": CHAT})
    exporter.observe(record(), WALL_S)
    before = samples(exporter.relay)
    assert 0.15 in _bounds(exporter.relay, "ttft")
    exporter.set_bounds([CHAT, replace(CHAT, ttft=Objective(0.9, 0.15))])
    assert samples(exporter.relay) == before


def test_a_threshold_without_an_objective_is_no_longer_a_bucket_bound() -> None:
    tight = replace(CHAT, tpot=Objective(0.9, 0.0123))
    exporter = ProbeExporter({"a": tight})
    exporter.observe(record(), WALL_S)
    assert all(0.0123 in _bounds(exporter.relay, name) for name in ("tpot", "itl"))
    exporter.set_bounds([CHAT])
    exporter.observe(record(), WALL_S)
    assert not any(0.0123 in _bounds(exporter.relay, name) for name in ("tpot", "itl"))


@pytest.mark.fault("A65")
def test_a_server_of_ever_new_names_has_eight_of_them_and_the_rest_is_other() -> None:
    registry = _exported(*(record(model=f"m{i}", outcome=Outcome.NOT_FOUND) for i in range(40)))
    failed = {"workload": "short", "traffic": "canary", "outcome": "not_found"}

    models = {dict(labels)["model"] for name, labels in samples(registry) if name == "kneewatch_requests_total"}

    assert models - {"m"} == {*(f"m{i}" for i in range(8)), "other"}
    assert value(registry, "kneewatch_requests_total", target="a", model="other", **failed) == 32


@pytest.mark.fault(
    "TI13",
    "Canaries stop, whatever the reason: the last one is old",
    area="Time",
    users_see='`kneewatch_target_up` is absent; the pages say "no recent canary shows whether the server is up"; '
    "KneewatchProbeSilent fires",
    stays="no value of the past is shown as of now",
)
def test_up_is_absent_once_later_canaries_should_have_ended() -> None:
    """Whatever was rendered last, and in whatever way."""
    clock = SetClock(1000.0)
    exporter = ProbeExporter({}, clock)
    exporter.set_bounds([CHAT])
    exporter.add("a", CHAT)
    exporter.start_at_zero("a", "m", "short", Traffic.CANARY, up_for_s=105.0)

    def up() -> list[float]:
        return values(exporter.relay, "kneewatch_target_up")

    assert up() == []
    exporter.observe(record(), WALL_S)
    clock.now_s += 104.0
    assert up() == [1.0]
    clock.now_s += 2.0
    assert up() == []
    exporter.observe(record(traffic=Traffic.ONDEMAND), WALL_S)
    assert up() == [], "a request on demand is no canary"
    exporter.set_bounds([CHAT, replace(CHAT, ttft=Objective(0.9, 0.123))])
    assert up() == []
    assert value(exporter.relay, "kneewatch_requests_total", **LABELS, outcome="ok") == 1
    exporter.observe(record(outcome=Outcome.TIMEOUT), WALL_S)
    assert up() == [0.0]


def test_a_client_bound_canary_without_an_answer_leaves_up_as_it_was() -> None:
    unanswered = record(outcome=Outcome.CLIENT_BOUND, finish_reason=None)
    for before, shown in ((record(), [1.0]), (record(outcome=Outcome.TIMEOUT), [0.0])):
        assert values(_exported(before, unanswered), "kneewatch_target_up") == shown
    assert values(_exported(unanswered), "kneewatch_last_success_timestamp_seconds") == []


def _kinds(clock: SetClock) -> ProbeExporter:
    """Return an exporter that expects three kinds of canaries: two of a model that is not known yet, and an adapter."""
    exporter = ProbeExporter({"a": CHAT}, clock)
    for model, workload, up_for_s in (("unknown", "short", 105.0), ("unknown", "long", 500.0), ("sql", "short", 105.0)):
        exporter.start_at_zero("a", model, workload, Traffic.CANARY, up_for_s)
    return exporter


def _long(**values: Any) -> RequestRecord:
    one = record(**values)
    return replace(one, spec=replace(one.spec, workload="long"))


def test_the_worst_of_the_newest_canaries_of_each_kind_decides_whether_the_target_is_up() -> None:
    clock = SetClock(1000.0)
    exporter = _kinds(clock)

    def up(*records: RequestRecord) -> list[float]:
        for one in records:
            exporter.observe(one, WALL_S)
        return values(exporter.relay, "kneewatch_target_up")

    assert up(record(), _long()) == [1.0]
    assert up(record(model="sql", outcome=Outcome.NOT_FOUND), record(), _long()) == [0.0]
    assert up(record(model="sql")) == [1.0]
    assert up(record(model="unknown", outcome=Outcome.UNREACHABLE)) == [0.0]
    assert up(record()) == [1.0], "the same kind, which has learnt its model"
    assert up(_long(outcome=Outcome.TIMEOUT)) == [0.0]
    clock.now_s += 106.0
    assert up(record()) == [0.0], "the rare kind's failure still counts"
    clock.now_s += 400.0
    assert up(record()) == [1.0], "it is too old"


def test_each_kind_counts_from_zero_until_its_own_model_is_known() -> None:
    exporter = _kinds(SetClock(1000.0))

    def zeros(model: str, workload: str) -> list[float]:
        return values(exporter.relay, "kneewatch_requests_total", model=model, workload=workload, outcome="timeout")

    assert [zeros("unknown", "short"), zeros("unknown", "long"), zeros("sql", "short")] == [[0.0]] * 3
    exporter.observe(record(model="sql"), WALL_S)
    assert zeros("unknown", "short") == [0.0], "the adapter's canary says nothing of the other kind"
    exporter.observe(record(), WALL_S)
    assert zeros("unknown", "short") == []
    assert zeros("unknown", "long") == [0.0]
    assert values(exporter.relay, "kneewatch_tokens_total", model="unknown") == [0.0, 0.0]
    exporter.observe(_long(), WALL_S)
    assert not [1 for _, labels in samples(exporter.relay) if ("model", "unknown") in labels]


def test_the_page_asks_whether_a_target_is_up_while_canaries_end() -> None:
    """It is rendered in another thread, which runs at any time, here in the middle of the question."""
    up = TargetUp(SetClock())
    for workload in ("a", "b"):
        up.add(record(asked=replace(spec(8, 3), workload=workload)), is_up=True)

    class Meanwhile(dict[tuple[str, str], float]):
        def get(self, *_: Any) -> float:
            up.forget()
            return 60.0

    up._valid_s = Meanwhile()
    assert up.is_up
    assert up.is_up is None
