"""The canary: one request a round, and what it remembers."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import cast

import httpx
import pytest
from fake_request import FakeRequest
from plain_records import MS, PROMISED, failure, record, spec
from virtual_time import VirtualClock, virtually

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.loop_lateness import LoopLateness
from probe.core import objectives as slo
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.core.objectives import Objectives
from probe.core.request import UNKNOWN_MODEL, Outcome, RequestRecord, RequestSpec, TraceContext, Traffic
from probe.monitor.canary import Canary


class Answers:
    """A Client's two calls, with scripted ends: a model's name or an error; a record's outcome."""

    def __init__(self, models: Sequence[str | Outcome], outcomes: Sequence[Outcome]) -> None:
        self._models = iter(models)
        self._outcomes = iter(outcomes)
        self.sent: list[tuple[str, Traffic, int]] = []
        self.asked = 0
        self.listed: list[str] = []
        self.answers_as: str | None = None
        self.traces: list[TraceContext | None] = []

    async def resolve_model(self, wanted: str) -> str:
        assert wanted == "auto"
        self.asked += 1
        answer = next(self._models)
        if isinstance(answer, Outcome):
            raise TargetError(f"http://llama/v1/models: {answer}", answer)
        return answer

    async def aliases(self, model: str) -> frozenset[str]:
        self.listed.append(model)
        return frozenset({model, "alias"})

    @property
    def lateness(self) -> LoopLateness:
        return LoopLateness()

    def prepare(
        self, what: RequestSpec, model: str, traffic: Traffic, *, trace: TraceContext | None = None
    ) -> FakeRequest:
        self.traces.append(trace)
        return FakeRequest(what, lambda spec, due: self.send(spec, model, traffic, due))

    async def send(self, what: RequestSpec, model: str, traffic: Traffic, scheduled_ns: int) -> RequestRecord:
        self.sent.append((model, traffic, scheduled_ns))
        outcome = next(self._outcomes)
        known = {"outcome": outcome, "model": model, "traffic": traffic, "spec": what, "scheduled_ns": scheduled_ns}
        known["answered_as"] = self.answers_as
        return record(**known) if outcome is Outcome.OK else failure(**known, done_ns=scheduled_ns + 5 * 10**9)


class Ticks:
    """A clock on which every look takes a millisecond."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic_ns(self) -> int:
        self.now += 1_000_000
        return self.now

    def wall_s(self) -> float:
        return 1.7e9 + self.now * 1e-9

    def waited_ns(self) -> int:
        return 0


def canary(answers: Answers, model: str = "auto") -> Canary:
    return Canary("llama", model, cast(Client, answers), repeat(spec()), objectives=Objectives("none"), clock=Ticks())


def rounds(of: Canary, count: int) -> list[RequestRecord]:
    async def main() -> list[RequestRecord]:
        return [await of.run_once() for _ in range(count)]

    return asyncio.run(main())


def test_a_configured_model_is_not_asked_for() -> None:
    answers = Answers([], [Outcome.OK] * 2)
    of = canary(answers, "tiny")
    assert of.model == "tiny"
    rounds(of, 2)
    assert answers.asked == 0
    assert [(model, traffic) for model, traffic, _ in answers.sent] == [("tiny", Traffic.CANARY)] * 2


def test_auto_learns_the_model_once() -> None:
    answers = Answers(["tiny"], [Outcome.OK] * 3)
    of = canary(answers)
    assert of.model == UNKNOWN_MODEL
    assert [r.model for r in rounds(of, 3)] == ["tiny"] * 3
    assert answers.asked == 1


def test_asking_for_the_model_is_no_part_of_the_latency() -> None:
    answers = Answers(["tiny"], [Outcome.OK])
    of = canary(answers)
    started = Ticks().monotonic_ns()
    rounds(of, 1)
    assert answers.sent[0][2] > started


def test_after_a_failure_the_model_is_asked_again() -> None:
    """A server may come back with another model."""
    answers = Answers(["tiny", "huge"], [Outcome.OK, Outcome.UNREACHABLE, Outcome.OK, Outcome.OK])
    of = canary(answers)
    assert [r.model for r in rounds(of, 4)] == ["tiny", "tiny", "huge", "huge"]


@pytest.mark.parametrize("outcome", [Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.NOT_FOUND, Outcome.TIMEOUT])
def test_a_server_that_does_not_say_its_model_is_a_failed_canary(outcome: Outcome) -> None:
    answers = Answers([outcome, "tiny"], [Outcome.OK])
    of = canary(answers)
    failed, ok = rounds(of, 2)
    assert (failed.outcome, failed.model, failed.target, failed.traffic) == (
        outcome,
        UNKNOWN_MODEL,
        "llama",
        Traffic.CANARY,
    )
    assert failed.detail == f"http://llama/v1/models: {outcome}"
    assert failed.scheduled_ns <= failed.sent_ns <= failed.done_ns
    assert (len(failed.events), failed.output_tokens) == (0, 0)
    assert (ok.outcome, ok.model) == (Outcome.OK, "tiny")


def test_a_model_once_known_labels_the_failures_that_follow() -> None:
    answers = Answers(["tiny", Outcome.UNREACHABLE, Outcome.UNREACHABLE], [Outcome.OK, Outcome.UNREACHABLE])
    assert [r.model for r in rounds(canary(answers), 4)] == ["tiny"] * 4


def test_remembers_newest_first_and_failures_longer() -> None:
    outcomes = [Outcome.TIMEOUT, *[Outcome.OK] * 70, Outcome.REJECTED, Outcome.OK]
    of = canary(Answers([], outcomes), "tiny")
    rounds(of, len(outcomes))
    assert [r.outcome for r in of.recent[:3]] == [Outcome.OK, Outcome.REJECTED, Outcome.OK]
    assert [r.outcome for r in of.failures] == [Outcome.REJECTED, Outcome.TIMEOUT]
    assert len(of.recent) < len(outcomes)


@pytest.mark.slow
@pytest.mark.fault(
    "ME6",
    "Hundreds of canaries and failures",
    area="Memory",
    users_see="the newest are shown",
    stays="the number that is kept is bounded",
)
def test_memory_is_bounded() -> None:
    of = canary(Answers([], [Outcome.TIMEOUT] * 500), "tiny")
    rounds(of, 500)
    assert len(of.recent) <= 100
    assert len(of.failures) <= 100


def test_a_returned_list_of_canaries_does_not_change_afterwards() -> None:
    of = canary(Answers([], [Outcome.OK, Outcome.TIMEOUT]), "tiny")
    rounds(of, 1)
    recent, failures = of.recent, of.failures
    rounds(of, 1)
    assert (len(recent), len(failures)) == (1, 0)


def test_cancelling_is_passed_on_and_leaves_no_record() -> None:
    class Waiting(Answers):
        async def send(self, what: RequestSpec, model: str, traffic: Traffic, scheduled_ns: int) -> RequestRecord:
            await asyncio.sleep(30)
            return await super().send(what, model, traffic, scheduled_ns)

    of = canary(Waiting([], []), "tiny")

    async def main() -> None:
        task = asyncio.create_task(of.run_once())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert of.recent == ()


@pytest.mark.parametrize(
    "base_url", ["http://127.0.0.1:1", "http://127.0.0.1:99999", "http://127.0.0.1:port", "http://[::1"]
)
@pytest.mark.parametrize("model", ["auto", "tiny"])
def test_no_address_breaks_a_round(base_url: str, model: str) -> None:
    async def main() -> RequestRecord:
        async with Client(Endpoint("llama", base_url, verify=False), SystemClock(), 1.0) as client:
            return await Canary(
                "llama", model, client, repeat(spec()), objectives=Objectives("none"), clock=SystemClock()
            ).run_once()

    result = asyncio.run(main())
    assert result.outcome is Outcome.UNREACHABLE
    assert result.detail


def test_a_server_that_says_nonsense_does_not_break_a_round() -> None:
    def nonsense(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(rb'{"data": [{"id": "\ud800"}]}'))

    async def main() -> RequestRecord:
        where = Endpoint("llama", "http://127.0.0.1:1", verify=False)
        async with Client(where, SystemClock(), 1.0, httpx.MockTransport(nonsense)) as client:
            return await Canary(
                "llama", "auto", client, repeat(spec()), objectives=Objectives("none"), clock=SystemClock()
            ).run_once()

    result = asyncio.run(main())
    assert result.outcome is not Outcome.OK
    assert result.model == UNKNOWN_MODEL


# Our own lateness.


class Late(Answers):
    """Answers of 600 ms, where 500 are promised; `late_ms` of them may be our own."""

    def __init__(self, late_ms: float, lag_ms: float) -> None:
        super().__init__([], [Outcome.OK])
        self._late_ms, self._lag_ms = late_ms, lag_ms

    async def send(self, what: RequestSpec, model: str, traffic: Traffic, scheduled_ns: int) -> RequestRecord:  # noqa: ARG002
        made = record(ttft_ms=600, lag_ms=self._lag_ms)
        late = array("q", [round(self._late_ms * MS)] * len(made.events))
        return replace(made, events=replace(made.events, late_ns=late))


@pytest.mark.parametrize(
    ("late_ms", "lag_ms", "outcome"),
    [
        (0, 0, Outcome.OK),
        (99, 0, Outcome.OK),
        (101, 0, Outcome.CLIENT_BOUND),
        (0, 101, Outcome.CLIENT_BOUND),
        (60, 60, Outcome.CLIENT_BOUND),
    ],
)
@pytest.mark.fault(
    "ST1",
    "Kneewatch's event loop is held up for part of a canary",
    area="Starvation",
    users_see="the canary is `client_bound` where its lateness may explain the miss",
    stays="the server is not blamed",
)
def test_a_miss_that_may_be_our_own_lateness_judges_no_latency(late_ms: float, lag_ms: float, outcome: Outcome) -> None:
    of = Canary(
        "llama", "tiny", cast(Client, Late(late_ms, lag_ms)), repeat(spec()), objectives=PROMISED, clock=Still()
    )
    (one,) = rounds(of, 1)
    assert one.outcome is outcome
    verdict = slo.met(one, PROMISED)
    assert verdict["availability"] is True
    assert verdict.get("ttft") is (False if outcome is Outcome.OK else None)
    if outcome is Outcome.CLIENT_BOUND:
        assert "Kneewatch itself" in str(one.detail)


class Still(Ticks):
    """A clock that stands still: the process is never late to wake."""

    def monotonic_ns(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("outcome", "stopped_s", "becomes"),
    [
        (Outcome.TIMEOUT, 10.0, Outcome.CLIENT_BOUND),
        (Outcome.TIMEOUT, 0.6, Outcome.CLIENT_BOUND),
        (Outcome.TIMEOUT, 0.4, Outcome.TIMEOUT),  # of 5 s: the server had the rest
        (Outcome.UNREACHABLE, 10.0, Outcome.CLIENT_BOUND),
        (Outcome.UNREACHABLE, 0.9, Outcome.UNREACHABLE),
        (Outcome.BROKEN_STREAM, 10.0, Outcome.CLIENT_BOUND),
        (Outcome.SERVER_ERROR, 10.0, Outcome.SERVER_ERROR),
        (Outcome.WRONG_ANSWER, 10.0, Outcome.WRONG_ANSWER),
    ],
)
@pytest.mark.fault("D08")
def test_a_failure_that_a_stop_may_explain_shows_nothing_of_the_server(
    outcome: Outcome, stopped_s: float, becomes: Outcome
) -> None:
    """A stop is a leap of the clock, in the middle of the request and while the server is asked for its model."""

    def leap() -> None:
        asyncio.get_running_loop()._leaping.now_s += stopped_s  # type: ignore[attr-defined]

    class Stopped(Answers):
        async def send(self, what: RequestSpec, model: str, traffic: Traffic, scheduled_ns: int) -> RequestRecord:
            leap()
            return await super().send(what, model, traffic, scheduled_ns)

        async def resolve_model(self, wanted: str) -> str:
            await asyncio.sleep(5.0 - stopped_s if stopped_s < 5.0 else 0.0)
            leap()
            return await super().resolve_model(wanted)

    async def both() -> list[RequestRecord]:
        of = partial(Canary, "llama", specs=repeat(spec()), objectives=PROMISED, clock=VirtualClock())
        of_send = of("tiny", cast(Client, Stopped([], [outcome])))
        of_model = of("auto", cast(Client, Stopped([outcome], [])))
        return [await of_send.run_once(), await of_model.run_once()]

    for one in virtually(both()):
        assert one.outcome is becomes
        assert one.is_up is (None if becomes is Outcome.CLIENT_BOUND else False)
        assert slo.met(one, PROMISED)[slo.AVAILABILITY] is (becomes is Outcome.CLIENT_BOUND)
        assert (f"Kneewatch itself did not run for {stopped_s:.1f} s" in str(one.detail)) is (becomes is not outcome)


@pytest.mark.parametrize(
    ("answers_as", "outcome", "lists"), [("stranger", Outcome.WRONG_ANSWER, 3), ("alias", Outcome.OK, 1)]
)
@pytest.mark.fault("A26")
def test_an_answer_of_another_model_is_wrong_unless_both_names_are_of_one(
    answers_as: str, outcome: Outcome, lists: int
) -> None:
    answers = Answers([], [Outcome.OK] * 3)
    answers.answers_as = answers_as

    records = rounds(canary(answers, "llama"), 3)

    assert [record.outcome for record in records] == [outcome] * 3
    assert answers.listed == ["llama"] * lists
    if outcome is not Outcome.OK:
        assert records[0].detail == "the model 'stranger' answered, 'llama' was asked for; fix model, or the routing"


@pytest.mark.fault("D08")
def test_a_stop_long_before_a_timeout_is_no_excuse_for_the_server() -> None:
    """What arrived meanwhile was read when the process ran again."""

    class StoppedEarly(Answers):
        async def send(self, what: RequestSpec, model: str, traffic: Traffic, scheduled_ns: int) -> RequestRecord:
            asyncio.get_running_loop()._leaping.now_s += 3.0  # type: ignore[attr-defined]
            await asyncio.sleep(2.0)
            return await super().send(what, model, traffic, scheduled_ns)

    async def ask() -> RequestRecord:
        answers = cast(Client, StoppedEarly([], [Outcome.TIMEOUT]))
        of = Canary("llama", "tiny", answers, repeat(spec()), objectives=PROMISED, clock=VirtualClock())
        return await of.run_once()

    assert virtually(ask()).outcome is Outcome.TIMEOUT
