"""Whether a scheduled run may begin: each "no" by its word and its numbers, and what a "yes" allows."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from example_records import CHAT, record, snapshot

from probe.capacity.run.admission import Admission, AdmissionCheck
from probe.config.capacity import CapacityConfig
from probe.core import reasons
from probe.core.request import Outcome, RequestRecord
from probe.core.result import Capacity
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.observe.server_state import ServerState

NIGHT_S = datetime(2026, 11, 23, 3, 0, tzinfo=UTC).timestamp()  # a Monday
KNOWN = Capacity(mode="empirical", requests_per_second=10.0, upper=12.5, output_tokens_per_second=640.0)


@dataclass
class Clock:
    now_s: float = 1000.0
    at_wall_s: float = NIGHT_S

    def monotonic_ns(self) -> int:
        return round(self.now_s * 1e9)

    def wall_s(self) -> float:
        return self.at_wall_s


@dataclass
class Scene:
    """A target as it was watched: calm, unless a test says otherwise."""

    capacity: dict[str, Any] = field(default_factory=dict)
    spent: Callable[[float], int | None] = lambda _: 0
    firing: Callable[[], Awaitable[list[str]]] | None = None
    clock: Clock = field(default_factory=Clock)
    server: dict[str, Any] = field(default_factory=dict)  # what it says when it is asked
    state: ServerState = field(default_factory=ServerState)
    permission: AdmissionCheck = field(init=False)

    def __post_init__(self) -> None:
        config = CapacityConfig.model_validate(
            {"mode": "verify", "step": "15s", "budget": {"tokens_per_run": 500_000}, **self.capacity}
        )
        self.permission = AdmissionCheck(
            config, CHAT, self.clock, self.state, firing_pages=self.firing, spent=self.spent
        )

    def canary(self, kind: int = 0, **values: Any) -> RequestRecord:
        one = record(start_s=self.clock.now_s - 1.0, **values)
        self.permission.add_canary(one, kind)
        self.state.add_record(one)
        return one

    def reads(self, **values: Any) -> ServerSnapshot:
        return replace(snapshot(), at_ns=self.clock.monotonic_ns(), **values)

    def reading(self, **values: Any) -> None:
        self.state.add(self.reads(**values))

    def ask(self, known: Capacity | None = None) -> Admission:
        async def read() -> ServerSnapshot:
            self.reading(**self.server)
            return self.reads(**self.server)

        permit = asyncio.run(self.permission.ask(read, known))
        verdict = permit.verdict
        assert verdict.allows_load == (verdict.reason is None) == (verdict.detail is None)
        assert verdict.allows_load or reasons.find(reasons.REFUSALS, verdict.reason) is not None
        return permit


def _refusal(scene: Scene, known: Capacity | None = None) -> tuple[str | None, str]:
    verdict = scene.ask(known).verdict
    return verdict.reason, verdict.detail or ""


def _calm(**values: Any) -> Scene:
    scene = Scene(**values)
    scene.canary()
    return scene


def test_a_calm_server_may_be_loaded_with_all_a_run_may_cost() -> None:
    permit = _calm(server={"running": 3.0}).ask()
    assert permit.verdict.allows_load
    assert (permit.tokens, permit.seconds) == (500_000, None)
    assert permit.server is not None
    assert permit.server.running == 3.0


# The canary.


def test_before_the_first_canary_and_after_one_that_failed_nothing_is_loaded() -> None:
    scene = Scene()
    assert _refusal(scene) == ("canary_failed", "the last canary did not succeed (none has ended yet)")
    scene.canary(outcome=Outcome.TIMEOUT)
    assert _refusal(scene) == ("canary_failed", "the last canary did not succeed (timeout)")
    scene.canary(outcome=Outcome.CLIENT_BOUND)
    assert _refusal(scene)[0] == "canary_failed", "a machine that is too late for one request is no place to load from"
    scene.canary()
    assert scene.ask().verdict.allows_load


def test_a_server_that_slept_since_kneewatch_started_is_asleep_and_not_without_canaries() -> None:
    scene = Scene(server={"is_asleep": True})
    scene.reading(is_asleep=True)
    assert _refusal(scene)[0] == "asleep"
    scene.canary(outcome=Outcome.TIMEOUT)
    assert _refusal(scene)[0] == "asleep"
    scene.server["is_asleep"] = False
    scene.reading(is_asleep=False)
    assert _refusal(scene)[0] == "canary_failed"


# Windows.

WINDOWS: dict[str, Any] = {"schedule": {"windows": ["01:00-05:00"], "timezone": "Europe/Berlin"}}


def test_in_a_window_a_run_has_until_its_end() -> None:
    permit = _calm(capacity=WINDOWS).ask()  # 04:00 in Berlin
    assert permit.verdict.allows_load
    assert permit.seconds == 3600.0


def test_outside_every_window_nothing_is_loaded() -> None:
    scene = _calm(capacity=WINDOWS, clock=Clock(at_wall_s=NIGHT_S + 3600.0))
    assert _refusal(scene) == ("outside_window", "no window is open (01:00-05:00, Europe/Berlin)")


def test_a_window_that_closes_within_a_step_is_too_short() -> None:
    given = {**WINDOWS, "concurrency": [1, 2]}
    scene = _calm(capacity=given, clock=Clock(at_wall_s=NIGHT_S + 3590.0))
    assert _refusal(scene) == ("outside_window", "the window closes in 10 s, a first step takes 15 s")
    assert _calm(capacity=given, clock=Clock(at_wall_s=NIGHT_S + 3580.0)).ask().verdict.allows_load


def test_a_search_watches_before_its_first_step() -> None:
    scene = _calm(capacity=WINDOWS, clock=Clock(at_wall_s=NIGHT_S + 3580.0))
    assert _refusal(scene) == ("outside_window", "the window closes in 20 s, a first step takes 45 s")


# The day's tokens.


@pytest.mark.parametrize(
    ("spent", "left"), [(0, 500_000), (1_500_000, 500_000), (1_700_000, 300_000), (1_875_000, 125_000)]
)
def test_a_run_gets_what_is_left_of_the_day(spent: int, left: int) -> None:
    permit = _calm(spent=lambda _: spent).ask()
    assert permit.verdict.allows_load
    assert permit.tokens == left


@pytest.mark.parametrize(("spent", "left"), [(1_875_001, 124_999), (2_000_000, 0), (9_000_000, 0)])
def test_less_than_a_useful_amount_is_not_spent(spent: int, left: int) -> None:
    reason, detail = _refusal(_calm(spent=lambda _: spent))
    assert (reason, detail) == ("budget_spent", f"{left} of the day's 2000000 tokens are left")


@pytest.mark.fault("K04")
def test_without_knowing_what_is_spent_nothing_more_is() -> None:
    reason, detail = _refusal(_calm(spent=lambda _: None))
    assert reason == "budget_spent"
    assert "spent tokens are unknown" in detail


def test_a_day_that_is_written_counts() -> None:
    budget = {"budget": {"tokens_per_run": 100, "tokens_per_day": 150}}
    assert _calm(capacity=budget, spent=lambda _: 100).ask().tokens == 50


def test_the_run_of_the_day_before_is_not_held_against_a_daily_schedule() -> None:
    asked: list[float] = []

    def spent(since_s: float) -> int:
        asked.append(since_s)
        return 0

    _calm(spent=spent).ask()
    (since_s,) = asked
    assert NIGHT_S - since_s < 23 * 3600, "so many hours lie between two nights in spring"
    assert NIGHT_S - since_s > 22 * 3600


# The server.


def test_the_checks_of_the_server_and_its_alerts_come_by_their_words() -> None:
    async def fires() -> list[str]:
        return ["Slow"]

    assert _refusal(_calm(server={"waiting": 2.0}))[0] == "busy"
    assert _refusal(_calm(server={"waiting": None}))[0] == "no_server_metrics"
    assert _refusal(_calm(firing=fires)) == ("alert_firing", "Slow fires for the target")


@pytest.mark.fault(
    "LO25",
    "A restart just before a run",
    area="Load",
    users_see="refused: `rollout`",
    stays="-",
)
def test_a_server_that_restarted_of_late_is_left_alone() -> None:
    scene = _calm(server={"prompt_tokens": 50.0})
    scene.reading(prompt_tokens=1000.0)
    scene.clock.now_s += 60.0
    scene.reading(prompt_tokens=0.0)
    scene.clock.now_s += 100.0
    scene.canary()
    reason, detail = _refusal(scene)
    assert reason == "rollout"
    assert detail == "the server restarted 100 s ago: prompt_tokens fell from 1000 to 0"
    scene.clock.now_s += 201.0
    assert scene.ask().verdict.allows_load


def test_after_a_replica_came_a_run_waits_as_after_a_restart() -> None:
    scene = _calm(server={"replicas": {"a": snapshot(), "b": snapshot()}})
    scene.reading(replicas={"a": snapshot()})
    assert _refusal(scene) == ("rollout", "the server changed 0 s ago: its replicas changed, b came")


def test_a_restart_that_only_the_last_reading_shows_is_seen() -> None:
    scene = _calm(server={"version": "0.33"})
    scene.reading(version="0.32")
    assert _refusal(scene) == ("rollout", "the server restarted 0 s ago: version 0.32 became 0.33")


def test_several_servers_behind_one_address_are_not_loaded_and_not_called_a_rollout() -> None:
    scene = _calm()
    for started_s in (1.0, 2.0, 1.0):
        scene.clock.now_s += 5.0
        scene.reading(started_s=started_s)
    scene.server = {"started_s": 2.0}
    reason, detail = _refusal(scene)
    assert reason == "several_servers"
    assert "configure a target for each" in detail


# Burn rate.


@pytest.mark.fault(
    "LO26",
    "An error budget that burns",
    area="Load",
    users_see="refused: `burn_rate`",
    stays="-",
)
def test_an_error_budget_that_burns_is_no_time_for_load() -> None:
    scene = Scene()
    for i in range(100):
        scene.canary(ttft_s=0.8 if i < 6 else 0.1)
    assert _refusal(scene) == ("burn_rate", "burn rate of the last hour's canaries: ttft 1.2")
    scene = Scene()
    for i in range(100):
        scene.canary(ttft_s=0.8 if i < 4 else 0.1)
    assert scene.ask().verdict.allows_load


def test_one_or_two_bad_canaries_are_an_accident() -> None:
    """At an availability of 99.9 % each would be a burn rate of 10."""
    scene = Scene()
    for i in range(100):
        scene.canary(outcome=Outcome.TIMEOUT if i < 2 else Outcome.OK)
    assert scene.ask().verdict.allows_load
    scene.canary(outcome=Outcome.TIMEOUT)
    scene.canary()
    assert _refusal(scene)[0] == "burn_rate"


def test_canaries_of_more_than_an_hour_ago_burn_nothing() -> None:
    scene = Scene()
    for _ in range(10):
        scene.canary(outcome=Outcome.TIMEOUT)
    scene.clock.now_s += 3500.0
    scene.canary()
    assert _refusal(scene)[0] == "burn_rate"
    scene.clock.now_s += 160.0
    scene.canary()
    assert scene.ask().verdict.allows_load


# Live load.


def _watched(requests: float, tokens: float, *, seconds: float = 100.0, canaries: int = 0) -> Scene:
    """A server that answered so much meanwhile; it has its last word when it is asked."""

    def says(count: float, output: float) -> dict[str, Any]:
        histogram = Histogram(((float("inf"), count),), 0.0)
        return {"histograms": {"ttft": histogram}, "generation_tokens": output}

    scene = _calm()
    scene.reading(**says(500.0, 9000.0))
    scene.clock.now_s += seconds
    for _ in range(canaries):
        scene.canary()
    scene.server = says(500.0 + requests, 9000.0 + tokens)
    return scene


@pytest.mark.parametrize(
    ("requests", "tokens", "words"),
    [
        (600, 0, None),
        (601, 0, "users take 60% of the capacity (6.01 of 10 requests/s), more than 60%"),
        (100, 50_000, "users take 78% of the capacity (500 of 640 output tokens/s), more than 60%"),
    ],
)
@pytest.mark.fault(
    "LO28",
    "Users take most of the capacity",
    area="Load",
    users_see="refused: `live_load`",
    stays="-",
)
def test_users_who_take_most_of_the_capacity_leave_no_room(requests: float, tokens: float, words: str | None) -> None:
    """By requests or by tokens: few long answers are a load too."""
    assert _refusal(_watched(requests, tokens), KNOWN) == (("live_load", words) if words else (None, ""))


def test_our_own_canaries_are_no_users() -> None:
    assert _refusal(_watched(610, 0), KNOWN)[0] == "live_load"
    assert _refusal(_watched(610, 0, canaries=10), KNOWN)[0] is None


def test_unknown_user_traffic_is_not_judged_and_is_reported() -> None:
    permit = _watched(10_000, 10**6).ask(None)
    assert permit.verdict.allows_load
    assert permit.unchecked == ("live load: no capacity with an upper bound",)
    at_least = Capacity(mode="empirical", requests_per_second=10.0, upper=None)
    assert _watched(10_000, 10**6).ask(at_least).verdict.allows_load
    soon = _watched(10_000, 10**6, seconds=9.0).ask(KNOWN)
    assert soon.unchecked == (
        "live load: user traffic is unknown: too little data yet, or several servers share the address",
    )
    assert _watched(10, 10).ask(KNOWN).unchecked == ()


def test_load_of_our_own_is_forgotten() -> None:
    scene = _watched(10_000, 10**6)
    scene.state.forget_user_rates()
    assert scene.ask(KNOWN).verdict.allows_load


def test_rates_are_those_of_the_last_minutes() -> None:
    scene = _watched(3000, 0, seconds=300.0)
    scene.reading(**scene.server)
    assert _refusal(scene, KNOWN)[0] == "live_load"
    for _ in range(11):
        scene.clock.now_s += 30.0
        scene.reading(**scene.server)
    assert scene.ask(KNOWN).verdict.allows_load


def test_a_server_that_restarted_has_no_rate_until_it_was_watched_again() -> None:
    scene = _watched(10_000, 0)
    scene.reading(**scene.server)
    scene.clock.now_s += 400.0
    scene.reading(generation_tokens=0.0)
    scene.clock.now_s += 301.0
    scene.canary()
    scene.server = {"generation_tokens": 5.0}
    assert scene.ask(KNOWN).verdict.allows_load


def test_one_kind_of_canary_that_fails_or_burns_its_budget_keeps_runs_from_starting() -> None:
    scene = Scene()
    scene.canary(kind=1, outcome=Outcome.NOT_FOUND)
    for _ in range(20):
        scene.canary()
    assert _refusal(scene) == ("canary_failed", "the last canary did not succeed (not_found)")
    scene.canary(kind=1)
    assert _refusal(scene)[0] is None
    for _ in range(100):
        scene.canary()
    for _ in range(4):  # all canaries together would have a burn rate below 1
        scene.canary(kind=1, ttft_s=0.8)
    assert _refusal(scene)[0] == "burn_rate"


def test_by_the_stream_alone_a_run_needs_no_metrics_and_says_what_it_did_not_check() -> None:
    admission = _calm(capacity={"guard": "stream"}, server={"waiting": None}).ask(KNOWN)
    assert admission.verdict.allows_load
    assert "live load" in admission.unchecked[-1]
    assert _refusal(_calm(capacity={"guard": "stream"}, server={"waiting": 3.0}))[0] == "busy"
    assert _refusal(Scene(capacity={"guard": "stream"}))[0] == "canary_failed"
