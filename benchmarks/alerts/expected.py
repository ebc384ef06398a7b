"""The notifications that should come on each named day, written before the rules were changed to meet them. Pure.

A ring is a notification with a new alert: the first of its group, or a later one (notify.py). Each expectation is that
of an engineer on call who knows the cause. days.py has the days.
"""

from dataclasses import dataclass, field

MINUTE_S, HOUR_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The least and the most rings of pages and of tickets, and the longest delay of certain alerts.

    `what`: the cause. `within_s`: the longest delay from the cause's beginning to the first ring of each alert,
    Alertmanager's wait included; several alerts in one key, separated by "|", are alternatives.
    """

    what: str
    pages: tuple[int, int]
    tickets: tuple[int, int]
    within_s: dict[str, float] = field(default_factory=dict)


_BURN = "AvailabilityBurn"
EXPECTED = {
    # The rules miss this one: six hours have 7.2 failures, by chance 2.7 more or fewer, and a page is due from 8.6. So
    # two days page about twice (rings.py). A rule that never took the one for the other would need more than six hours
    # for 1 %.
    "half-percent": Expected("0.5 % of canaries fail for 36 h: 5 times the budget's pace", (0, 0), (1, 2)),
    "one-percent": Expected(
        "1 % of canaries fail for 36 h: 10 times the budget's pace", (1, 1), (0, 1), {_BURN: 6 * HOUR_S}
    ),
    "echo": Expected(
        "an outage of 20 minutes, and two stray failures 3 h later", (1, 1), (0, 1), {_BURN: 5 * MINUTE_S}
    ),
    "twice": Expected(
        "an outage of 20 minutes, and another of 30 minutes 55 minutes later",
        (2, 2),
        (0, 1),
        {"TargetDown|" + _BURN: 7 * MINUTE_S},
    ),
    "burning": Expected(
        "2 % of canaries fail all day, and from 20:30 the server is down for 30 minutes",
        (2, 2),
        (0, 1),
        {"TargetDown|" + _BURN: 7 * MINUTE_S},
    ),
    "young": Expected("a target that is an hour old restarts in 12 s", (0, 0), (0, 0)),
    "service": Expected("eight pods of one service die together", (1, 1), (0, 1), {_BURN: 5 * MINUTE_S}),
    "masked": Expected(
        "2 % of canaries fail all day, and from 20:30 every first token takes 2 s",
        (2, 2),
        (0, 3),
        {"TTFTBurn": 50 * MINUTE_S},
    ),
    "full-cache": Expected("the KV cache is 93 to 97 % full, and no request is late", (0, 0), (0, 0)),
    "batch": Expected("a batch server without latency objectives has a full queue each night", (0, 0), (0, 0)),
    "short-queue": Expected("3 to 5 requests wait for 12 minutes each day, within the objective", (0, 0), (0, 0)),
    "burst": Expected("two minutes of preemptions at each day's peak", (0, 0), (0, 0)),
    "to-zero": Expected("a service scales to zero every night", (0, 0), (0, 0)),
    "clock": Expected("the clock of Kneewatch's host is 4 minutes behind", (0, 0), (0, 0)),
    "pair": Expected("one of a target's two Kneewatches is dead for 2 h", (0, 0), (1, 1), {"InstanceGone": HOUR_S}),
    "removed": Expected("a target is taken out, and the rules are not written again", (0, 0), (0, 1)),
    # The tickets: little headroom, and the budget that it cost.
    "overload": Expected("every request waits 20 s for 2 h", (1, 1), (0, 2), {"TTFTCollapse|TTFTBurn": 15 * MINUTE_S}),
    "knee": Expected(
        "the knee is 25 % lower for 13 nights but above the peak, and the server is down for 30 minutes on one day",
        (1, 1),
        (1, 3),
        {_BURN: 5 * MINUTE_S},
    ),
    # Users really are late on some of the days, and each may have a ticket for that.
    "knee-below": Expected(
        "the knee is 25 % lower for 13 nights, below the users' peak", (1, 1), (0, 13), {"KneeDropped": 26 * HOUR_S}
    ),
    "users-fail": Expected(
        "10 % of users' requests fail for 2 h, and every canary succeeds",
        (1, 1),
        (0, 1),
        {_BURN: 20 * MINUTE_S},
    ),
    "stall": Expected("an engine stalls for 30 minutes", (1, 1), (0, 1), {"EngineStalled|" + _BURN: 5 * MINUTE_S}),
    "xid": Expected(
        "a GPU falls off the bus and the server dies for 40 minutes", (1, 1), (0, 1), {"GPUXid": 3 * MINUTE_S}
    ),
}
