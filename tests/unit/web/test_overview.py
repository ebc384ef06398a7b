"""The first page's rows: states, what is wrong in words, and strips of canaries that stay inside their picture."""

import re
import time
from dataclasses import replace

import pytest
from example_fleet import fleet
from example_records import CHAT, WALL_S, failing, record, result, snapshot, status
from hypothesis import given
from hypothesis import strategies as st

from probe.core import objectives as slo
from probe.core.failure_log import Since
from probe.core.objectives import Objectives
from probe.core.request import Outcome, RequestRecord
from probe.core.snapshot import CrossChecks, EngineMinutes, Gpu, GpuSnapshot, UserLatency, UserLoad, UserMinutes
from probe.core.target_status import CanaryStatus, TargetStatus
from probe.report.figures import moment
from probe.report.html import ago, good_share
from probe.web.overview import (
    CanaryStrip,
    Overview,
    canary_summary,
    failures,
    headroom_now,
    href,
    row,
    since_words,
    strip,
)

NOTHING = Objectives(name="none", availability=None)
_BAR = re.compile(r"M(\d+) (-?[\d.]+)h3V28h-3z")


def _strip(*outcomes: Outcome, objectives: Objectives = CHAT, ttft_s: float = 0.1) -> CanaryStrip:
    recent = [record(ttft_s=ttft_s, outcome=outcome) for outcome in outcomes]
    return strip(recent, objectives, [slo.met(one, objectives) for one in recent])


@given(
    ttfts=st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=60),
    outcome=st.sampled_from(Outcome),
    objectives=st.sampled_from([CHAT, NOTHING]),
)
def test_every_bar_is_inside_the_strip_and_none_overlaps(
    ttfts: list[float], outcome: Outcome, objectives: Objectives
) -> None:
    recent = [record(ttft_s=ttft, outcome=outcome) for ttft in ttfts]
    drawn = strip(recent, objectives, [slo.met(one, objectives) for one in recent])
    bars = [(int(x), float(y)) for _, path in drawn.paths for x, y in _BAR.findall(path)]
    assert len(bars) == len(recent)
    assert sum(path.count("M") for _, path in drawn.paths) == len(recent)
    assert all(0 <= x <= drawn.width - 3 and 0 <= y < drawn.height for x, y in bars)
    assert len({x for x, _ in bars}) == len(recent)
    if objectives.ttft:
        assert drawn.objective_y is not None
        assert 0 < drawn.objective_y < drawn.height
    else:
        assert drawn.objective_y is None


def test_the_newest_canary_is_on_the_right_and_the_strip_says_what_it_shows() -> None:
    drawn = _strip(Outcome.TIMEOUT, Outcome.OK)
    at = {kind: int(_BAR.findall(path)[0][0]) for kind, path in drawn.paths}
    assert at["failed"] > at["good"]
    assert drawn.words == "TTFT of the last 2 canaries: 1 good, 1 failed"


def test_client_bound_and_aborted_canaries_are_not_slow() -> None:
    assert [kind for kind, _ in _strip(Outcome.CLIENT_BOUND).paths] == ["good"]
    assert [kind for kind, _ in _strip(Outcome.ABORTED).paths] == ["failed"]
    assert good_share([record(outcome=Outcome.ABORTED)], CHAT) is None


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        (status(), "starting"),
        (status(passive=True), "passive"),
        (status(up=True, recent=[record()] * 4), "starting"),
        (status(up=True, recent=[record()] * 5), "good"),
        (status(up=True, recent=[record(ttft_s=0.9)] * 2), "starting"),
        (status(up=True, recent=[record(ttft_s=0.9)] * 3), "slow"),
        (status(up=True, recent=[record(), record(outcome=Outcome.TIMEOUT)] * 3), "failing"),
        (status(up=False, recent=[record(outcome=Outcome.TIMEOUT)]), "failing"),
        (status(up=False, recent=[record(outcome=Outcome.TIMEOUT), *[record()] * 9]), "degraded"),
        (status(up=True, recent=[record()], gpu_error="no connection"), "degraded"),
        (status(passive=True, server_error="no connection"), "degraded"),
        (status(gpu_error="no connection"), "starting"),
        (status(recent=[record()]), "degraded"),  # the last canary is old
    ],
)
def test_the_state_of_a_target(shown: TargetStatus, state: str) -> None:
    assert row(shown).state == state


@pytest.mark.parametrize(("xid", "state"), [(0.0, "good"), (43.0, "good"), (94.0, "degraded"), (79.0, "degraded")])
def test_a_target_is_not_good_beside_an_error_of_its_gpu(xid: float, state: str) -> None:
    """43 is an error of a program."""
    card = Gpu({"gpu": "0", "modelName": "H100"}, {"DCGM_FI_DEV_XID_ERRORS": xid})
    shown = row(status(up=True, recent=[record()] * 5, gpus=GpuSnapshot(0, 0.0, "dcgm", (card,))))
    assert shown.state == state
    assert shown.wrong == ([f"GPU 0: its last error was XID {xid:.0f}"] if state == "degraded" else [])


def test_a_target_that_refuses_load_is_told_from_a_dead_one() -> None:
    busy = record(outcome=Outcome.REJECTED, detail="HTTP 503: busy", is_overload=True)
    (words, *_) = row(status(up=False, recent=[busy])).wrong
    assert words.startswith("the first canary failed (rejected: HTTP 503: busy; the server is up and refuses load")
    dead = record(outcome=Outcome.UNREACHABLE, detail="cannot be reached")
    assert "is up" not in row(status(up=False, recent=[dead])).wrong[0]


def test_a_failing_target_shows_since_when() -> None:
    now_s = time.time()
    failed = [record(outcome=Outcome.TIMEOUT, detail="no token", done_wall_s=now_s - 15 * i) for i in range(1, 300)]
    before = record(done_wall_s=now_s - 15 * 300)
    (words, *_) = row(status(up=False, recent=failed[:60], **failing(*failed, before))).wrong
    since = f"since {moment(now_s - 15 * 299, now_s)} (1 h ago), last answered 1 h ago"
    assert words == f"299 of 299 canaries failed (timeout: no token) {since}"
    (words, *_) = row(status(up=False, recent=failed[:60], **failing(*failed))).wrong
    assert words.endswith(" (1 h ago or earlier)"), "it may have failed before"
    (words,) = row(status(up=False, recent=failed[:1])).wrong
    assert words == "the first canary failed (timeout: no token)"


def test_one_success_among_failures_does_not_restart_since() -> None:
    now_s = time.time()
    canaries = [
        record(outcome=Outcome.OK if i % 5 < 2 else Outcome.SERVER_ERROR, detail="HTTP 500", done_wall_s=now_s - 15 * i)
        for i in range(60)
    ] + [record(done_wall_s=now_s - 15 * i) for i in range(60, 80)]
    shown = row(status(up=True, recent=canaries[:60], **failing(*canaries)))
    assert shown.state == "failing"
    assert shown.since == Since(now_s - 15 * 59, is_exact=True)
    (words, *_) = shown.wrong
    assert words.startswith("36 of 60 canaries failed (server error: HTTP 500) since ")
    assert words.endswith("(15 min ago), last answered 0 s ago")
    over = row(status(up=True, recent=[record()] * 10 + canaries[:50], **failing(*[record()] * 10, *canaries)))
    assert (over.state, over.since) == ("degraded", None), "ten successes in a row end it"


def test_users_decide_the_state_too_and_a_slow_target_says_why() -> None:
    late = {"ttft": UserLatency(80.0, 77.0, is_met=False, p95_s=(2.5, 5.0))}
    checks = CrossChecks(
        is_kv_cache_too_small=True,
        user_minutes=UserMinutes(300.0, 80.0, 0.0, late),
        engine_minutes=EngineMinutes(300.0, 0.9, 5.0, 279.0),
    )
    shown = row(status(up=True, recent=[record()] * 20, server=snapshot(), checks=checks))
    assert shown.state == "slow"
    assert shown.wrong[0] == "users: TTFT over 500 ms in 77 of 80 requests in 5 min, p95 2.5 s to 5 s"
    assert shown.because == "the KV cache is full (90 %, 5 waiting, 279 preempted in 5 min)"
    idle = replace(checks, is_kv_cache_too_small=False, engine_minutes=EngineMinutes(300.0, 0.1, 0.0, 0.0))
    quiet = row(status(up=True, recent=[record()] * 20, server=snapshot(), checks=idle))
    assert quiet.because == "not known: the server shows no queue and no full KV cache"
    failed = CrossChecks(user_minutes=UserMinutes(300.0, 60.0, 30.0))
    broken = row(status(up=True, recent=[record()] * 20, server=snapshot(), checks=failed))
    assert (broken.state, broken.shares.failed) == ("failing", 0.5)
    assert broken.wrong[0] == "users: 30 of 60 requests failed in 5 min"


def test_the_worst_targets_come_first_by_share_and_then_by_users() -> None:
    def some(name: str, failed: int, rps: float = 1.0) -> TargetStatus:
        recent = [record(outcome=Outcome.TIMEOUT)] * failed + [record()] * (20 - failed)
        return status(name=name, up=failed == 0, recent=recent, users=UserLoad(rps, 1.0))

    shown = [some("good", 0), some("some", 8, 9.0), some("small", 20), some("large", 20, 30.0)]
    assert [one.status.name for one in Overview().rows(shown)] == ["large", "small", "some", "good"]


def test_a_server_that_may_still_be_starting_does_not_fail_and_a_rare_kind_of_canary_is_not_lost_among_others() -> None:
    dead = [record(outcome=Outcome.UNREACHABLE)] * 3
    starts = CanaryStatus("short", "m", 15.0, up=False, recent=dead, is_starting=True)
    assert row(status(up=False, recent=dead, canaries=[starts])).state == "starting"
    often = CanaryStatus("short", "m", 15.0, up=True, recent=[record()] * 60)
    rare = CanaryStatus("long", "m", 600.0, up=False, recent=[record(outcome=Outcome.TIMEOUT)] * 2)
    assert row(status(up=False, recent=[record()] * 60, canaries=[often, rare])).state == "failing"


def test_headroom_is_that_of_now_and_of_what_load_has_measured() -> None:
    now = status(users=UserLoad(2.5, 64.0), capacity=result(), measured=result())
    assert headroom_now(now) == pytest.approx(0.75)
    assert headroom_now(status(capacity=result())) is None
    assert headroom_now(status(users=UserLoad(2.5, 64.0))) is None
    close = row(status(users=UserLoad(9.5, 64.0), measured=result())).wrong
    assert "users leave only 5 % of the measured capacity" in close
    beyond = row(status(users=UserLoad(10.69, 64.0), measured=result())).wrong
    assert "users ask for 6.9 % more than the measured capacity" in beyond


def test_rows_are_as_new_as_the_canaries_however_often_they_are_asked_for() -> None:
    seen, name = Overview(), "a"
    before = status(name=name, up=True, recent=[record()])
    assert seen.rows([before])[0].good == 1.0
    assert seen.rows([before])[0].strip is seen.rows([before])[0].strip
    after = status(name=name, up=False, recent=[record(outcome=Outcome.TIMEOUT), record()])
    assert seen.rows([after])[0].good == 0.5
    assert seen.rows([status(name=name)])[0].strip is None
    seen.rows([status(name="b")])
    assert not seen._known, "who went away is forgotten"


def test_an_address_keeps_slashes_and_hides_nothing_else() -> None:
    assert href("qwen/pod-1") == "targets/qwen/pod-1"
    assert href("a b?c#d%e") == "targets/a%20b%3Fc%23d%25e"
    assert href("\ud800") == "targets/%3F"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s ago"), (0, "0 s ago"), (59, "59 s ago"), (120, "2 min ago"), (7200, "2 h ago"), (864000, "10 d ago")],
)
def test_ago_in_the_largest_unit(seconds: float, words: str) -> None:
    assert ago(time.time() - seconds) == words


@pytest.mark.slow
def test_a_known_verdict_makes_the_same_row() -> None:
    for one in fleet(20, recent=10):
        assert row(one) == row(one, canary_summary(one))


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.TIMEOUT])
def test_a_server_that_sleeps_is_neither_failing_nor_in_need_of_attention(outcome: Outcome) -> None:
    late = [record(outcome=outcome, ttft_s=9.0) for _ in range(10)]
    before = status(up=outcome is Outcome.OK, recent=late)
    assert row(before).state in ("slow", "failing")
    shown = row(replace(before, asleep_since_s=1000.0))
    assert (shown.state, list(shown.wrong)) == ("asleep", [])


def test_each_failing_kind_of_canary_is_named_with_its_reason() -> None:
    down = record(model="sql", outcome=Outcome.NOT_FOUND, detail="no such model")
    kinds = [
        CanaryStatus("short", "m", 15.0, up=True, recent=[record()]),
        CanaryStatus("short", "sql", 60.0, up=False, recent=[down], since=Since(WALL_S, is_exact=True)),
        CanaryStatus("long", "m", 60.0, up=None),
    ]
    shown = row(status(up=False, canaries=kinds, recent=[record(), down]))
    assert shown.state == "failing"
    (words,) = shown.wrong
    assert words.startswith(
        "canaries of short with sql: the first canary failed (not found: no such model) since"
        f" {moment(WALL_S, time.time())}"
    )


NIGHT_S = 1_795_402_140.0  # 2026-11-23 02:49:00 UTC


def _canaries(*outcomes: Outcome) -> list[RequestRecord]:
    """Return a canary every 15 s, newest first; `outcomes` oldest first."""
    ends = {Outcome.CLIENT_BOUND: "length"}  # answered
    made = [
        record(outcome=each, done_wall_s=NIGHT_S + 15 * i, finish_reason=ends.get(each))
        for i, each in enumerate(outcomes)
    ]
    return made[::-1]


def _status(name: str, *outcomes: Outcome) -> TargetStatus:
    return status(name=name, **failing(*_canaries(*outcomes)))


def test_failures_of_one_kind_are_one_line_that_counts_all_of_them() -> None:
    (one,) = failures([_status("a", Outcome.OK, *[Outcome.UNREACHABLE] * 2000)], NIGHT_S + 60)
    assert one.words == "2000 x unreachable since 02:49:15 UTC"
    assert one.is_current


def test_another_outcome_or_a_success_begins_another_group() -> None:
    bad = Outcome.SERVER_ERROR
    found = failures(
        [_status("a", bad, Outcome.OK, Outcome.TIMEOUT, Outcome.TIMEOUT, bad, Outcome.CLIENT_BOUND)], NIGHT_S + 7200
    )
    assert [one.words for one in found] == [
        "server error at 02:50 UTC",
        "2 x timeout at 02:49 UTC",
        "server error at 02:49 UTC",
    ]
    assert not any(one.is_current for one in found)
    assert [one.group.recovered_s for one in found] == [NIGHT_S + 75, NIGHT_S + 75, NIGHT_S + 15]


def test_failures_that_end_the_next_day_name_both_days() -> None:
    late = [record(outcome=Outcome.TIMEOUT, done_wall_s=NIGHT_S + 86400 * i) for i in (1, 0)]
    shown = status(**failing(record(done_wall_s=NIGHT_S + 2 * 86400), *late))
    assert failures([shown], NIGHT_S + 2 * 86400)[0].words == "2 x timeout from 23 Nov 02:49 to 24 Nov 02:49 UTC"


def test_present_failures_are_listed_before_past_ones() -> None:
    later_s = NIGHT_S + 1e4
    over = status(name="over", **failing(record(done_wall_s=later_s), record(outcome=Outcome.TIMEOUT)))
    found = failures([over, _status("down", Outcome.UNREACHABLE)], later_s)
    assert [one.name for one in found] == ["down", "over"]
    many = [_status(f"t{i}", Outcome.TIMEOUT) for i in range(30)]
    assert len(failures(many, later_s)) == 20


def test_since_when_a_target_is_up_or_down() -> None:
    shown = _status("a", Outcome.TIMEOUT, Outcome.OK, Outcome.OK, Outcome.ABORTED)
    assert since_words(shown, NIGHT_S + 15 + 120) == "02:49:15 UTC (2 min ago)"
    first = _status("a", Outcome.OK, Outcome.OK)
    assert since_words(first, NIGHT_S + 120) == "02:49:00 UTC (2 min ago or earlier)"
    assert since_words(status(), time.time()) == ""
