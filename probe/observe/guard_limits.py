"""The limits of the guard: the numbers by which guard.py decides."""

from dataclasses import dataclass, replace
from typing import Self

from probe.core.objectives import Objective, Objectives


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The limits at which load stops. Numbers of polls are consecutive unless noted otherwise."""

    preemptions: float = 3
    waiting: float = 4
    waiting_polls: int = 3
    kv_cache_usage: float = 0.95
    kv_polls: int = 2  # of the last kv_window
    kv_window: int = 5
    missed_polls: int = 2
    ttft: Objective | None = None  # the users' objectives; None: no latency is judged
    tpot: Objective | None = None
    over_objective: float = 2  # this multiple of an objective is harm, and no measurement any more
    latency_polls: int = 6  # three seconds: at one request/s the last poll alone would have no samples
    slow_first_tokens: float = 3
    itl_samples: float = 20
    unanswered: int = 3  # requests that wait too long for their first byte; a single one may have a long prompt
    hang_s: float = 2.0  # or twice the limit, if longer: a server that does not answer a single request does not answer
    worse_than_before: float = 2  # users with long prompts wait long without probe load too
    usual_samples: float = 200

    def promised(self, objectives: Objectives) -> Self:
        """Return the limits with the latency objectives. A mean gap is no longer than the longest one."""
        return replace(self, ttft=objectives.ttft, tpot=objectives.tpot or objectives.itl)

    def offered(self, rate_rps: float) -> Self:
        """Return the limits at an offered rate: requests that arrive within the TTFT objective may all wait."""
        within_s = self.ttft.within_s if self.ttft else 0.0
        return replace(self, waiting=max(self.waiting, rate_rps * within_s))
