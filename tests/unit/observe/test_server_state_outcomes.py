"""What became of users' requests: the server's counts less the probe requests, each counted once."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_records import failure, poll, record
from property_examples import examples

from probe.core.request import Outcome, Traffic
from probe.core.snapshot import ServerSnapshot
from probe.observe.server_state import ServerState

S = 10**9


@dataclass
class Server:
    """Counts what became of its requests, as vLLM does."""

    outcomes: dict[str, float] = field(default_factory=lambda: {"ok": 0.0, "failed": 0.0, "aborted": 0.0})
    http_errors: float | None = 0.0

    def read(self, at_s: float) -> ServerSnapshot:
        finished = {"length": self.outcomes.get("ok", 0.0)}
        return poll(
            at_ns=round(at_s * S), finished=finished, outcomes=dict(self.outcomes), http_errors=self.http_errors
        )


def send(state: ServerState, at_s: float, outcome: Outcome = Outcome.OK, traffic: Traffic = Traffic.CANARY) -> None:
    state.begin(round(at_s * S))
    done = record() if outcome is Outcome.OK else failure(outcome)
    state.add_record(replace(done, traffic=traffic))
    state.end(round(at_s * S), round((at_s + 0.2) * S))


def test_users_outcomes_are_counted_apart() -> None:
    state, server = ServerState(), Server({"ok": 900.0, "failed": 7.0, "aborted": 5.0}, http_errors=8.0)
    state.add(server.read(0))
    assert state.user_totals.outcomes == {"ok": 0, "failed": 0, "aborted": 0}
    server.outcomes = {"ok": 910.0, "failed": 9.0, "aborted": 6.0}
    server.http_errors = 10.0
    state.add(server.read(5))
    assert state.user_totals.outcomes == {"ok": 10, "failed": 2, "aborted": 1}


@pytest.mark.parametrize("traffic", list(Traffic))
@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Outcome.OK, "ok"),
        (Outcome.WRONG_ANSWER, "ok"),
        (Outcome.SERVER_ERROR, "failed"),
        (Outcome.REJECTED, "failed"),
        (Outcome.TIMEOUT, "aborted"),
        (Outcome.ABORTED, "aborted"),
    ],
)
def test_probe_requests_are_no_users_whatever_becomes_of_them(outcome: Outcome, counted: str, traffic: Traffic) -> None:
    state, server = ServerState(), Server()
    state.add(server.read(0))
    for i in range(4):
        send(state, 10 * i + 1, outcome, traffic)
        server.outcomes[counted] += 1
        server.http_errors = server.outcomes["failed"]
        state.add(server.read(10 * i + 5))
        assert state.user_totals.outcomes == {"ok": 0, "failed": 0, "aborted": 0}


@pytest.mark.parametrize("outcome", [Outcome.NOT_FOUND, Outcome.BAD_REQUEST, Outcome.UNAUTHORIZED, Outcome.UNREACHABLE])
def test_a_probe_request_that_the_server_does_not_count_hides_no_user(outcome: Outcome) -> None:
    state, server = ServerState(), Server()
    state.add(server.read(0))
    for i in range(4):
        send(state, 10 * i + 1, outcome)
        for name in server.outcomes:
            server.outcomes[name] += 1
        state.add(server.read(10 * i + 5))
    assert state.user_totals.outcomes == {"ok": 4, "failed": 4, "aborted": 4}


def test_probe_requests_that_a_version_does_not_count_as_aborted_hide_few_of_users() -> None:
    """vLLM 0.32 counts no client that leaves: the monitor's own time-outs must not eat what others abort."""
    state, server = ServerState(), Server()
    state.add(server.read(0))
    for i in range(50):
        send(state, 10 * i + 1, Outcome.TIMEOUT)
        state.add(server.read(10 * i + 5))
        assert state.user_totals.outcomes["aborted"] == 0
    server.outcomes["aborted"] += 20
    state.add(server.read(600))
    assert 19 <= state.user_totals.outcomes["aborted"] <= 20


def test_a_request_that_ended_with_an_error_and_was_answered_with_500_has_failed_once() -> None:
    state, server = ServerState(), Server()
    state.add(server.read(0))
    for i in range(10):
        server.outcomes["failed"] += 1
        server.http_errors = server.outcomes["failed"]
        state.add(server.read(5 * i + 5))
    assert state.user_totals.outcomes["failed"] == 10


def test_streams_that_break_and_answers_of_a_dead_engine_have_failed_both() -> None:
    """A stream that fails after its first token is a 200; a dead engine ends no request, and all answers are 500."""
    state, server = ServerState(), Server()
    state.add(server.read(0))
    server.outcomes["failed"] += 3
    state.add(server.read(5))
    server.http_errors = 4.0
    state.add(server.read(10))
    assert state.user_totals.outcomes["failed"] == 7


def test_two_targets_of_one_server_are_taken_off_once_each() -> None:
    state, server = ServerState(), Server()
    state.add(server.read(0))
    for i in range(10):
        state.begin((10 * i + 1) * S)  # the one target's
        send(state, 10 * i + 1.5, Outcome.SERVER_ERROR)  # the other's
        state.add_record(replace(record(), traffic=Traffic.CANARY))
        state.end((10 * i + 1) * S, (10 * i + 2) * S)
        server.outcomes["ok"] += 1 + 3  # and three users
        server.outcomes["failed"] += 1 + 2
        for second in (5, 6):  # each target's scrape
            state.add(server.read(10 * i + second))
    assert state.user_totals.outcomes == {"ok": 30, "failed": 20, "aborted": 0}


def test_a_restart_keeps_what_was_counted() -> None:
    state, server = ServerState(), Server({"ok": 50.0, "failed": 5.0, "aborted": 0.0})
    state.add(server.read(0))
    server.outcomes = {"ok": 60.0, "failed": 7.0, "aborted": 0.0}
    state.add(server.read(5))
    young = Server({"ok": 1.0, "failed": 1.0, "aborted": 0.0})
    state.add(young.read(10))
    young.outcomes = {"ok": 3.0, "failed": 2.0, "aborted": 0.0}
    state.add(young.read(15))
    assert state.user_totals.outcomes == {"ok": 12, "failed": 3, "aborted": 0}


def test_outcomes_that_a_version_does_not_count_are_unknown() -> None:
    state, server = ServerState(), Server({"ok": 5.0}, http_errors=None)
    for second in (0, 5):
        state.add(server.read(second))
    assert state.user_totals.outcomes == {"ok": 0}


def test_a_counter_that_appears_with_its_first_request_begins_at_zero() -> None:
    state, server = ServerState(), Server({"ok": 5.0}, http_errors=None)
    state.add(server.read(0))
    server.http_errors = 2.0
    state.add(server.read(5))
    server.outcomes["aborted"] = 1.0
    state.add(server.read(10))
    assert state.user_totals.outcomes == {"ok": 0, "failed": 2, "aborted": 1}


steps = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([None, Outcome.OK, Outcome.SERVER_ERROR, Outcome.TIMEOUT, Outcome.UNREACHABLE]),
        st.booleans(),
    ),
    max_size=12,
)


@given(steps)
@examples(60)
@pytest.mark.fault("TR3")
def test_counts_never_fall_and_never_exceed_what_users_sent(
    given_steps: list[tuple[int, int, int, Outcome | None, bool]],
) -> None:
    state, server = ServerState(), Server()
    state.add(server.read(0))
    truth = {"ok": 0, "failed": 0, "aborted": 0}
    counted_as = {Outcome.OK: "ok", Outcome.SERVER_ERROR: "failed", Outcome.TIMEOUT: "aborted"}
    shown = state.user_totals.outcomes
    for i, (ok, failed, aborted, own, is_slow) in enumerate(given_steps):
        at_s = 10 * i + 1
        for name, count in zip(truth, (ok, failed, aborted), strict=True):
            truth[name] += count
            server.outcomes[name] += count
        if own is not None:
            state.begin(at_s * S)
            if own in counted_as:
                server.outcomes[counted_as[own]] += 1
            if is_slow:
                state.add(server.read(at_s + 2))  # counted, and still in flight here
            state.add_record(record() if own is Outcome.OK else failure(own))
            state.end(at_s * S, (at_s + 3) * S)
        server.http_errors = server.outcomes["failed"]
        state.add(server.read(at_s + 6))
        now = state.user_totals.outcomes
        assert all(shown[name] <= now[name] for name in truth)
        shown = now
    assert shown == truth
