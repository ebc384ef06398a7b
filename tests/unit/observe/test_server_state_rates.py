"""The rate of user requests that Prometheus shows: the true one, however slow the probe requests are."""

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from plain_records import failure, poll, record

from probe.core.request import Outcome, RequestRecord, Traffic
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.observe.probe_traffic import Tokens
from probe.observe.server_state import ServerState

S = 10**9
SCRAPE_S, PROMETHEUS_S = 5, 15
BOUNDS = (0.05, 0.2, 1.0, 10.0, float("inf"))
CANARY = Tokens(prompt=8, output=3)


class Server:
    """A server under a steady load: users each 0.2 s, and the canaries given."""

    def __init__(self, users_rps: float = 5.0, seconds: float = 240.0) -> None:
        self.ttft: list[tuple[float, float]] = []  # when it was, and how long it took
        self.finished: list[float] = []
        self.tokens: list[float] = []
        for i in range(round(users_rps * seconds)):
            self.serve(i / users_rps, 0.1, 2.0, 10)

    def serve(self, sent_s: float, ttft_s: float, e2e_s: float, tokens: int) -> None:
        insort(self.ttft, (sent_s + ttft_s, ttft_s))
        insort(self.finished, sent_s + e2e_s)
        for i in range(tokens):
            insort(self.tokens, sent_s + ttft_s + (e2e_s - ttft_s) * i / max(tokens - 1, 1))

    def read(self, at_s: float) -> ServerSnapshot:
        waited = sorted(ttft_s for when, ttft_s in self.ttft if when <= at_s)
        finished = float(bisect_right(self.finished, at_s))
        return poll(
            at_ns=round(at_s * S),
            generation_tokens=float(bisect_right(self.tokens, at_s)),
            finished={"length": finished},
            outcomes={"ok": finished, "failed": 0.0, "aborted": 0.0},
            histograms={"ttft": Histogram(tuple((le, float(bisect_right(waited, le))) for le in BOUNDS), sum(waited))},
        )


def canaries(every_s: float, seconds: float) -> Iterator[tuple[float, RequestRecord]]:
    """When each canary was sent, and its record: the first token after 9 s, the last after 12."""
    at_s = 1.0
    while at_s < seconds:
        sent = record(at_ms=1000 * at_s, ttft_ms=9000, gap_ms=1500, tokens=3)
        yield at_s, replace(sent, traffic=Traffic.CANARY)
        at_s += every_s


@dataclass(frozen=True)
class Shown:
    """What Kneewatch shows at a time. None: unknown."""

    at_s: float
    requests: float | None
    ok: float | None
    within: float | None
    tokens: float | None


def watched(server: Server, every_s: float, seconds: float) -> list[Shown]:
    """Lets the canaries run beside the users, and scrapes the server all the while."""
    state = ServerState()
    events: list[tuple[float, str, RequestRecord | None]] = []
    for at_s, sent in canaries(every_s, seconds):
        server.serve(at_s, 9.0, 12.0, 3)
        events += [(at_s, "sent", sent), (at_s + 12.0, "ended", sent)]
    events += [(float(at_s), "scrape", None) for at_s in range(0, round(seconds), SCRAPE_S)]
    shown = []
    for at_s, what, sent in sorted(events, key=lambda event: event[:2]):
        now_ns = round(at_s * S)
        if what == "sent":
            state.begin(now_ns, most=CANARY)
        elif what == "ended":
            assert sent is not None
            state.add_record(sent)
            state.end(sent.sent_ns, now_ns)
        else:
            state.add(server.read(at_s))
            totals = state.user_totals
            ttft = totals.histograms.get("ttft")
            good = dict(ttft.buckets)[0.2] if ttft is not None else None
            shown.append(Shown(at_s, totals.requests, totals.outcomes.get("ok"), good, totals.output_tokens))
    return shown


@pytest.mark.parametrize(
    "every_s", [15.0, 12.0, 10.0, 2.0], ids=["with gaps", "one after the other", "overlapping", "six at once"]
)
@pytest.mark.parametrize(("what", "rate"), [("requests", 5.0), ("ok", 5.0), ("within", 5.0), ("tokens", 50.0)])
def test_the_rate_between_two_scrapes_is_the_users_own_while_slow_canaries_are_in_flight(
    every_s: float, what: str, rate: float
) -> None:
    shown = {one.at_s: getattr(one, what) for one in watched(Server(), every_s, 240)}
    steps = [
        (shown[at_s + PROMETHEUS_S] - shown[at_s]) / PROMETHEUS_S for at_s in shown if 20 <= at_s < 240 - PROMETHEUS_S
    ]
    assert len(steps) > 30
    assert 0.8 * rate < min(steps)
    assert max(steps) < 1.2 * rate


@pytest.mark.parametrize(
    "every_s", [15.0, 12.0, 10.0, 2.0], ids=["with gaps", "one after the other", "overlapping", "six at once"]
)
def test_without_users_nothing_is_ever_shown_beside_slow_canaries(every_s: float) -> None:
    for one in watched(Server(users_rps=0.0), every_s, 200):
        assert (one.requests, one.ok, one.within, one.tokens) == (0, 0, 0, 0), one.at_s


def test_under_load_users_are_unknown_and_the_next_rate_has_no_step_of_it() -> None:
    server = Server(seconds=400)
    state = ServerState()
    shown: dict[int, float | None] = {}
    for at_s in range(0, 400, SCRAPE_S):
        if at_s == 100:
            state.begin(100 * S, is_load=True)
        if at_s == 200:
            state.end(100 * S, 200 * S, is_load=True)
        state.add(server.read(at_s))
        shown[at_s] = state.user_totals.requests
    assert [at_s for at_s, value in shown.items() if value is None] == list(range(100, 205, SCRAPE_S))
    last = shown[395]
    assert last == pytest.approx(5 * 395, abs=3), "what users did meanwhile is in the total"
    steps = [
        after - before
        for at_s, after in shown.items()
        if after is not None and (before := shown.get(at_s - SCRAPE_S)) is not None
    ]
    assert max(steps) <= 27


def test_a_canary_that_is_in_flight_when_the_server_restarts_hides_no_user_for_long() -> None:
    state = ServerState()
    server = Server(seconds=60)
    state.add(server.read(0))
    state.begin(1 * S, most=CANARY)
    for at_s in range(5, 60, SCRAPE_S):
        state.add(server.read(at_s))
    before = state.user_totals.requests
    assert before == pytest.approx(5 * 55, abs=3)
    young = Server(seconds=60)
    state.add(replace(young.read(5), at_ns=70 * S))
    state.add_record(replace(failure(Outcome.BROKEN_STREAM), traffic=Traffic.CANARY))
    state.end(1 * S, 71 * S)
    state.add(replace(young.read(15), at_ns=80 * S))
    assert state.user_totals.requests == pytest.approx(before + 50, abs=2)
