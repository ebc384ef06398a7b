"""The steps of a replay: a recorded trace at one speed after another. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from probe.core.reasons import MIN_REQUESTS
from probe.core.step import Arrivals, Pattern, StepPlan
from probe.core.trace import Trace

# The first sixth of a replay is sent and not judged: the server is still empty then.
_WARM_UP_SHARE = 1 / 6
_EXTENDED = 3  # times the length of a step with too few requests, at most (load/step_executor.py)


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace, and how many times as fast as recorded it is sent, rising. `seconds`: of each step; None: all of it."""

    trace: Trace
    speeds: tuple[float, ...] = (1.0,)
    seconds: float | None = None

    def step_s(self, speed: float) -> float:
        """Return how long the step at this speed lasts. Raises ValueError for a trace without times."""
        if self.trace.seconds is None:
            raise ValueError("the trace has no times")
        return self.seconds or self.trace.seconds / speed

    @property
    def requests(self) -> int:
        """About how many requests are sent, over all steps."""
        rate_rps = len(self.trace.requests) / (self.trace.seconds or 1.0)
        return sum(round(rate_rps * speed * self.step_s(speed)) for speed in self.speeds)

    @property
    def tokens(self) -> int:
        """The prompt and output tokens of all steps."""
        sent = (len(self.trace.due_s(speed, self.step_s(speed))) for speed in self.speeds)
        return sum(map(self.trace.tokens, sent))


def replay_steps(replay: Replay, streams: int, *, holds: bool) -> Iterator[StepPlan]:
    """Yield a step for each speed, with at most `streams` in flight."""
    for speed in replay.speeds:
        seconds = replay.step_s(speed)
        due_s = replay.trace.due_s(speed, seconds)
        rate_rps = len(due_s) / seconds
        if len(due_s) < 2 * MIN_REQUESTS:
            due_s = replay.trace.due_s(speed, _EXTENDED * seconds)
        yield StepPlan(
            streams,
            seconds * (1 - _WARM_UP_SHARE),
            loop="open",
            warm_up_s=seconds * _WARM_UP_SHARE,
            arrivals=Arrivals(Pattern.REPLAY, rate_rps, times_s=due_s, speed=speed),
            holds=holds,
        )
