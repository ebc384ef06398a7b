"""Whose requests a server counts in a step, and when users bring its load to its bound."""

import math
from dataclasses import dataclass, field, replace

import pytest
from example_records import record, snapshot

from probe.capacity.run.step_users import StepUsers
from probe.core.request import RequestRecord
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.core.step import Arrivals, StepPlan

OWN_RPS, TTFT_S, E2E_S, WARM_UP_S, SECONDS = 10.0, 0.2, 2.0, 5.0, 20.0


def page(at_s: float, counted: float, **values: object) -> ServerSnapshot:
    ttft = Histogram(((math.inf, counted),), 0.0)
    return replace(snapshot(histograms={"ttft": ttft}), at_ns=round(at_s * 1e9), **values)


@dataclass
class Step:
    """A step of 10 requests a second, polled twice a second; `usual_rps`: the users' rate before it."""

    most_rps: float
    usual_rps: float = 0.0
    read_late_s: float = 0.0  # this machine was busy when the page had come
    is_held_back: bool = False  # a proxy passes an answer on when it has ended
    others: list[RequestRecord] = field(default_factory=list)

    def tripped_s(self, users: "dict[float, float] | float", until_s: float = WARM_UP_S + SECONDS) -> float | None:
        """Return when the guard ends it. `users`: their rate from each second on, or always."""
        rates = users if isinstance(users, dict) else {0.0: users}
        bound = {"most_users_rps": self.most_rps, "usual_users_rps": self.usual_rps}
        plan = StepPlan(99, SECONDS, "open", arrivals=Arrivals(rate_rps=OWN_RPS), **bound)
        counting = StepUsers(plan, page(0.0, 1000.0), round(WARM_UP_S * 1e9))
        reported = 0
        for poll in range(1, round(until_s * 2) + 1):
            at_s = poll / 2
            ended = [i for i in range(reported, round(at_s * OWN_RPS)) if i / OWN_RPS + E2E_S <= at_s]
            reported += len(ended)
            for i in ended:
                counting.ended(record(start_s=i / OWN_RPS, ttft_s=E2E_S if self.is_held_back else TTFT_S))
            flying = [
                replace(record(start_s=i / OWN_RPS), reads=int(not self.is_held_back and i / OWN_RPS + TTFT_S <= at_s))
                for i in range(reported, round(at_s * OWN_RPS))
            ]
            own = sum(
                i / OWN_RPS + TTFT_S <= at_s - self.read_late_s * (poll % 2) for i in range(round(at_s * OWN_RPS))
            )
            canaries = sum(one.events.at_ns[0] <= at_s * 1e9 for one in self.others)
            counting.poll(page(at_s, 1000.0 + own + _came(rates, at_s) + canaries), flying, self.others)
            if counting.are_too_many():
                return at_s
        return None


def _came(rates: dict[float, float], at_s: float) -> float:
    ends = [*list(rates)[1:], math.inf]
    return math.floor(
        sum(rps * max(min(at_s, end) - begin, 0.0) for (begin, rps), end in zip(rates.items(), ends, strict=True))
    )


@pytest.mark.parametrize(
    ("users", "within"),
    [
        pytest.param(20.0, (0.5, 2.0), id="a-surge-at-the-beginning"),
        pytest.param({0.0: 0.0, 15.0: 20.0}, (16.0, 16.5), id="and-late-in-a-quiet-step"),
        pytest.param(4.6, (5.0, 6.0), id="slowly-more-than-it-allows-for"),
        pytest.param({0.0: 0.0, WARM_UP_S: 4.6}, (10.0, 11.0), id="only-while-it-is-judged"),
    ],
)
def test_it_ends_a_step_whose_users_bring_it_to_its_bound(
    users: "dict[float, float] | float", within: tuple[float, float]
) -> None:
    tripped_s = Step(4.0).tripped_s(users)
    assert tripped_s is not None
    assert within[0] <= tripped_s <= within[1]


@pytest.mark.parametrize(
    ("step", "users"),
    [
        pytest.param(Step(4.0), 0.0, id="without-users"),
        pytest.param(Step(4.0), 3.8, id="with-as-many-as-it-allows-for"),
        pytest.param(Step(0.2), {0.0: 0.0, 7.0: 2.0, 8.0: 0.0}, id="of-somebody-who-tries-the-server"),
        pytest.param(Step(0.2, is_held_back=True), 0.0, id="behind-a-proxy-that-holds-answers-back"),
        pytest.param(Step(0.2, others=[record(start_s=8.0 + i) for i in range(9)]), 0.0, id="beside-canaries"),
        pytest.param(Step(4.0), {0.0: 9.0, 1.0: 0.0}, id="with-a-few-at-once"),
        pytest.param(Step(0.2, read_late_s=0.4), 0.0, id="on-a-busy-machine"),
        pytest.param(Step(4.0, usual_rps=3.0), {0.0: 3.0, 8.0: 5.0, 13.0: 1.0}, id="with-more-for-a-while-by-chance"),
    ],
)
def test_it_ends_no_other(step: Step, users: "dict[float, float] | float") -> None:
    assert step.tripped_s(users) is None


def test_on_a_page_that_counts_late_or_not_at_all_users_are_not_known() -> None:
    plan = StepPlan(9, 10.0, "open", arrivals=Arrivals(rate_rps=1.0), most_users_rps=0.0)
    late = StepUsers(plan, page(0.0, 0.0, delay_s=5.0), 0)
    late.poll(page(5.0, 500.0, delay_s=5.0), ())
    uncounted = StepUsers(plan, snapshot(), 0)
    uncounted.poll(replace(snapshot(), at_ns=10**10), ())
    assert not late.are_too_many()
    assert not uncounted.are_too_many()
