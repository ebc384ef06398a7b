"""How much more load a target can take: there is always an answer, and never a larger one than is certain."""

import pytest
from example_records import no_knee, result, snapshot, status, step

from probe.core.result import Capacity
from probe.core.snapshot import REPLICAS, CrossChecks, UserLatency, UserLoad, UserMinutes
from probe.core.target_status import TargetStatus
from probe.web.how_much import how_much

NOW_S = 1_790_000_000.0 + 31.5 + 7200
USERS = UserLoad(3.7, 230.0)
FORECAST = result(capacity=Capacity("forecast", 10.0, 9.0, 11.0, 640.0))
SMALL = result(capacity=Capacity("forecast", 4.0, 3.9, 4.1, 640.0))
FOUR = snapshot(flags={REPLICAS: "4"})
LATE = CrossChecks(user_minutes=UserMinutes(300.0, latencies={"ttft": UserLatency(90.0, 80.0, is_met=False)}))
HELD = CrossChecks(
    user_minutes=UserMinutes(300.0, latencies={name: UserLatency(90.0, 0.0, is_met=True) for name in ("ttft", "tpot")})
)
HALF = CrossChecks(user_minutes=UserMinutes(300.0, latencies={"ttft": UserLatency(90.0, 0.0, is_met=True)}))


def _run(*steps: tuple[float, tuple[str, ...]]) -> TargetStatus:
    made = [step(4, rps=rps, broken=broken) for rps, broken in steps]
    return status(capacity=result(steps=made, capacity=no_knee("the budget ended")))


@pytest.mark.fault(
    "NM45",
    "No capacity has been found: too few requests, a run that ended early, users who are late already",
    area="Truth",
    users_see="a bound by users or by the run's steps, or what is missing and when it is due",
    stays="series of the capacity, which have no value then",
)
@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (status(users=USERS, measured=result()), "63 % of 10 requests/s is left, measured 2 h ago"),
        (status(measured=result()), "10 requests/s, measured 2 h ago"),
        (status(users=UserLoad(12.0, 1.0), measured=result()), "none: users are 20 % above 10 requests/s, measured"),
        (status(users=USERS, measured=result(), checks=LATE), "none: over its limit at 3.7 requests/s of users"),
        (status(users=USERS, measured=result(), for_users=SMALL),
         "7.5 % of 4 requests/s is left, forecast 2 h ago"),
        (status(server=FOUR, capacity=result(), measured=result()),
         "not known: the capacity found is of another number of replicas"),
        (status(users=USERS, forecast=FORECAST), "63 % of 10 requests/s is left, forecast 2 h ago"),
        (_run((3.5, ()), (4.2, ("ttft",))), "at least 3.5 requests/s held, by the run of 2 h ago"),
        (_run((3.7, ("ttft",)), (4.2, ("ttft",))), "none: over its limit at 3.7 requests/s, by the run of 2 h ago"),
        (status(users=USERS, checks=HELD), "at least 3.7 requests/s of users are held; how much more is not known"),
        (status(users=USERS, checks=HALF, server=snapshot()), "not known: capacity.mode is off"),  # TPOT is unknown
        (status(server=snapshot(), next_forecast_s=NOW_S + 600), "not known: not measured yet; the next forecast is"),
        (status(server=snapshot(), next_run_s=NOW_S + 7200, capacity_state="busy"),
         "not known: the last capacity run was refused: busy; the next capacity run is due in 2 h"),
        (status(capacity_state="running"), "not known: a capacity run is in progress"),
        (status(asleep_since_s=NOW_S, measured=result()), "not known: the server sleeps"),
        (status(), "not known: the server's metrics are not read"),
    ],
)  # fmt: skip
def test_there_is_always_an_answer(shown: TargetStatus, words: str) -> None:
    assert how_much(shown, NOW_S).startswith(words)
