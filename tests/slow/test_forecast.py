"""Capacity from live traffic: silent where it would be guessing. How right it is: test_forecast_accuracy.py."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from simulated_servers import CHAT, FAST, profile, promise, restarted, twin_of, watched, without, workload

from probe.capacity.model.forecast import forecast
from probe.capacity.model.server_model import Hints
from probe.capacity.model.twin import find_capacity
from probe.core.objectives import Objectives
from probe.core.result import Capacity
from probe.core.snapshot import ServerSnapshot, with_kv_cache_tokens
from probe.core.workload import Workload
from probe.observe.snapshot_history import SnapshotHistory, unpack
from probe.scrape.replicas import merged

pytestmark = pytest.mark.long

USUAL = promise(0.5, 0.03)
HINTS = Hints(max_num_seqs=512)
BUSY = watched(profile(FAST), CHAT, 12.0, 60.0)


def said(
    snapshots: Sequence[ServerSnapshot],
    asked: Workload = CHAT,
    objectives: Objectives = USUAL,
    hints: Hints | None = HINTS,
    requests: int = 400,
) -> Capacity:
    """Return the forecast, which has either no values or all."""
    found = forecast(snapshots, asked, objectives, hints, requests=requests)
    assert found.mode == "forecast"
    assert found.reason
    assert (found.fitted_server is None) == (found.requests_per_second is None or found.is_lower_bound)
    whole = (found.requests_per_second, found.lower, found.upper, found.output_tokens_per_second, found.learnt_from)
    if found.requests_per_second is None:
        assert whole == (None,) * 5
    else:
        assert None not in whole
    return found


def silence(snapshots: Sequence[ServerSnapshot], **how: object) -> str:
    found = said(snapshots, **how)  # type: ignore[arg-type]
    assert found.requests_per_second is None
    return str(found.reason)


def test_too_few_readings() -> None:
    assert "of the server: 0, at least" in silence([])
    assert "of the server: 11, at least" in silence(BUSY[:11])


def test_an_idle_server() -> None:
    assert "almost no traffic" in silence(watched(profile(FAST), CHAT, 0.0, 30.0))
    assert "too few requests run at a time" in silence(watched(profile(FAST), CHAT, 0.3, 120.0))


def test_snapshots_of_one_moment() -> None:
    assert "almost no traffic" in silence([BUSY[0]] * 50)


def test_without_a_latency_promised_no_load_is_too_much() -> None:
    assert "no latency objective" in silence(BUSY, objectives=promise(None, None))
    assert "no latency objective" in silence(BUSY, objectives=Objectives("o", availability=0.999))


def test_a_cache_of_unknown_size() -> None:
    hidden = [replace(r, kv_cache_tokens=None) for r in BUSY]
    assert "set capacity.server.kv_cache_tokens" in silence(hidden)
    assert said([with_kv_cache_tokens(r, BUSY[0].kv_cache_tokens) for r in hidden]) == said(BUSY)


def test_a_cache_that_is_a_seventh_of_what_the_page_says() -> None:
    """Usage stays right, so that running requests show it. By the page's size, 29 requests/s were forecast."""
    known, objectives = profile(FAST, max_num_seqs=256, kv_tokens=16_000), promise(0.5, 0.05)
    truth = find_capacity(twin_of(known, CHAT), objectives, 10.0, requests=1500)
    right = watched(known, CHAT, 0.7 * truth, 120.0)
    wrong = [replace(r, kv_cache_tokens=7.0 * (r.kv_cache_tokens or 0.0)) for r in right]
    for snapshots in (wrong, _kept(wrong)):
        found = said(snapshots, objectives=objectives, hints=Hints(max_num_seqs=256))
        assert found.requests_per_second == pytest.approx(truth, rel=0.1)
        assert found.lower is not None
        assert found.upper is not None
        assert found.lower < truth < found.upper
        assert "tokens of such requests (learnt from traffic; the server says 112,000, 7" in str(found.reason)


def test_before_traffic_shows_the_size_of_a_hybrid_model_s_cache_its_forecast_is_a_lower_bound() -> None:
    """Its page has the size for requests of 8,192 tokens, of which two fit; a shorter one holds no more than those."""
    known, objectives = profile(FAST, max_num_seqs=256, kv_tokens=48_000), promise(0.5, 0.05)
    truth = find_capacity(twin_of(known, CHAT), objectives, 25.0, requests=1500)
    sizes = {"kv_block_tokens": 48_000.0, "kv_longest_requests": 4.0}
    snapshots = [
        # A gauge is missing, as on a page that shows the usage of the fullest engine only.
        replace(r, kv_cache_tokens=4 * 8192.0, kv_cache_usage=None, others={**r.others, **sizes})
        for r in watched(known, CHAT, 0.3 * truth, 120.0)
    ]
    found = forecast(snapshots, CHAT, objectives, Hints(max_num_seqs=256), requests=400)
    assert found.requests_per_second is not None
    assert found.is_lower_bound
    assert found.requests_per_second < truth
    assert "tokens of such requests (not yet learnt from traffic; the server says 32,768" in str(found.reason)


def _kept(snapshots: Sequence[ServerSnapshot]) -> list[ServerSnapshot]:
    """Return the snapshots as a running Kneewatch keeps them: without buckets."""
    history = SnapshotHistory()
    for snapshot in snapshots:
        history.add(snapshot)
    return unpack(history.packed)


def test_a_server_with_a_flag_that_no_model_has() -> None:
    flags = {"prefill_schedule_interval": "4"}
    assert "(prefill_schedule_interval=4); measure with" in silence(BUSY, hints=replace(HINTS, flags=flags))
    shown = [replace(r, scheduler_limits={"prefill_schedule_interval": 4}) for r in BUSY]
    assert "(prefill_schedule_interval=4)" in silence(shown)
    priority = said(BUSY, hints=replace(HINTS, flags={"scheduling_policy": "priority"}))
    assert "requests of one priority (scheduling_policy=priority)" in str(priority.reason)


def test_a_queue_limit_that_the_capacity_reaches_and_one_that_it_does_not() -> None:
    few, many = ({"max_num_queued_reqs": limit} for limit in ("20", "500"))
    assert "vLLM refuses more than 20 (max_num_queued_reqs)" in silence(BUSY, hints=replace(HINTS, flags=few))
    assert said(BUSY, hints=replace(HINTS, flags=many)) == said(BUSY)


@pytest.mark.parametrize("missing", ["itl", "ttft"])
def test_a_server_without_the_histograms_it_takes(missing: str) -> None:
    assert "almost no traffic" in silence([without(r, missing) for r in BUSY])


def test_an_objective_that_no_load_meets() -> None:
    assert "no rate holds" in silence(BUSY, objectives=promise(0.002, None))


def test_an_objective_that_is_far_from_broken() -> None:
    """Such a figure would be an extrapolation over more than the step cost model was seen to hold for."""
    assert "not enough evidence: the highest load measured" in silence(
        watched(profile(FAST), CHAT, 2.0, 90.0), hints=HINTS
    )


def test_an_unknown_max_num_seqs() -> None:
    """A server with 16 of them looks like one with hundreds, until they are taken."""
    snapshots = watched(profile(FAST, max_num_seqs=16), CHAT, 5.5, 90.0)
    assert "max_num_seqs is not known" in silence(snapshots, hints=None)


def test_a_capacity_that_an_unknown_max_num_seqs_may_limit_is_a_lower_bound() -> None:
    """By its step costs alone the server would hold 14 requests/s, with 31 running. It runs at most 24."""
    known, objectives = profile(FAST, max_num_seqs=24), promise(0.5, 0.0145)
    truth = find_capacity(twin_of(known, CHAT), objectives, 10.0, seeds=(7,), requests=1500)
    snapshots = watched(known, CHAT, 0.7 * truth, 120.0)
    assert any(15 < (each.running or 0) < 24 for each in snapshots)
    found = forecast(snapshots, CHAT, objectives, requests=400)
    assert found.requests_per_second is not None
    assert found.lower is not None
    assert found.upper is None
    assert 0.7 * truth < found.requests_per_second < 1.05 * truth
    assert found.lower < truth
    assert "max_num_seqs is not known" in str(found.reason)


def test_a_capacity_within_what_has_run_does_not_depend_on_max_num_seqs() -> None:
    """The objective breaks before 24 requests run at a time, as they have."""
    known, objectives = profile(FAST, max_num_seqs=64), promise(0.5, 0.0115)
    found = said(watched(known, CHAT, 6.0, 120.0), objectives=objectives, hints=None)
    assert found.upper is not None
    assert "max_num_seqs" not in str(found.reason)


def test_a_cost_model_that_explains_nothing() -> None:
    """Every other window is of a server three times as slow: another one behind the same address."""
    fast, slow = BUSY, watched(replace(profile(FAST), cost=replace(FAST, host_s=0.03)), CHAT, 12.0, 60.0)
    mixed: list[ServerSnapshot] = []
    for i, snapshot in enumerate(fast):
        source = (fast, slow)[i // 2 % 2][i]
        mixed.append(replace(source, at_ns=snapshot.at_ns))
    assert said(mixed).requests_per_second is None


def test_a_restart_between_snapshots_is_left_out() -> None:
    truth = find_capacity(twin_of(profile(FAST), CHAT), USUAL, 25.0, seeds=(0, 1), requests=150)
    assert said(restarted(BUSY, 30), requests=150).requests_per_second == pytest.approx(truth, rel=0.15)


def test_live_requests_shorter_than_the_workload_s_count_for_less() -> None:
    """Ten a second of a tenth of the tokens are a tenth of the load."""
    snapshots = watched(profile(FAST), workload(60, 60), 8.0, 90.0)
    assert "not enough evidence" in silence(snapshots, asked=workload(2000, 400), objectives=promise(1.0, 0.05))


def test_two_replicas_that_are_read_together_have_twice_the_capacity_of_one() -> None:
    one, other = BUSY, watched(profile(FAST), CHAT, 12.0, 60.0, seed=2)
    together = [merged({"one:8000": a, "other:8000": b}) for a, b in zip(one, other, strict=True)]
    found, alone = said(together).requests_per_second, said(one).requests_per_second
    assert found == pytest.approx(2 * (alone or 0.0), rel=0.1)
