"""What a run has cost so far: requests, tokens, seconds, and seconds in which probe requests were over an objective."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from probe.capacity.run.request import RunRequest
from probe.capacity.run.seams import Load
from probe.core import latency
from probe.core import objectives as slo
from probe.core.clock import Clock
from probe.core.objectives import Objectives
from probe.core.request import Outcome, RequestRecord
from probe.core.request_cost import tokens_spent
from probe.core.result import Cost


class CostMeter:
    """Counts finished requests as they are added, and those in flight when it is asked."""

    def __init__(self, request: RunRequest, load: Load, clock: Clock) -> None:
        self._request = request
        self._load = load
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._load_ended_ns = self._started_ns
        self._requests, self._tokens = 0, 0
        self._over: list[tuple[int, int]] = []
        self.is_warm = False  # a cold server's first request is not held against it

    def start(self) -> None:
        """Begin to count seconds."""
        self._started_ns = self._clock.monotonic_ns()

    def step_ended(self) -> None:
        """Note that the last request of a step has ended."""
        self._load_ended_ns = self._clock.monotonic_ns()

    def add(self, record: RequestRecord) -> None:
        """Count a finished request."""
        self._requests += 1
        self._tokens += sum(tokens_spent(record))
        self._over += self._over_objective(record)

    def cost(self, *, is_over: bool) -> Cost:
        """Return the cost until now, or until the last step ended where the run is over."""
        in_flight = self._load.in_flight()
        until_ns = self._load_ended_ns if is_over else self._clock.monotonic_ns()
        late = [span for record in in_flight for span in self._over_objective(record)]
        return Cost(
            requests=self._requests + len(in_flight),
            tokens=self._tokens + sum(sum(tokens_spent(record)) for record in in_flight),
            seconds=(until_ns - self._started_ns) * 1e-9,
            over_objective_seconds=covered_seconds([*self._over, *late]),
        )

    def exceeded(self, *, is_over: bool) -> str | None:
        """Return the name of the budget that is spent, if one is."""
        return self._request.budget.exceeded(self.cost(is_over=is_over))

    def _over_objective(self, record: RequestRecord) -> list[tuple[int, int]]:
        return over_objective(record, self._request.objectives) if self.is_warm else []


def covered_seconds(spans: Iterable[tuple[int, int]]) -> float:
    """Return the seconds covered by at least one of the spans (begin, end; nanoseconds)."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total * 1e-9


def over_objective(record: RequestRecord, objectives: Objectives) -> list[tuple[int, int]]:
    """Return the spans (begin, end; nanoseconds) in which a request was over a latency objective, or failing.

    A cancelled request is only known not to have ended: it was over its objectives from the time when its E2E at the
    limit, or TTFT and TPOT at theirs, would have ended it.
    """
    due_ns, done_ns = record.scheduled_ns, record.done_ns
    if record.outcome is Outcome.ABORTED:
        allowed_s = _longest_allowed_s(record, objectives)
        over = [(due_ns + int(allowed_s * 1e9), done_ns)] if allowed_s is not None else []
    elif record.outcome is Outcome.CLIENT_BOUND:
        over = []
    elif record.outcome is not Outcome.OK:
        over = [(due_ns, done_ns)]
    else:
        over = list(_late_spans(record, objectives))
    return [(begin, end) for begin, end in over if begin < end]


def _longest_allowed_s(record: RequestRecord, objectives: Objectives) -> float | None:
    """Return how long the request may take by its objectives; None if they do not say."""
    ttft, tpot, e2e = objectives.ttft, objectives.tpot, objectives.e2e
    allowed_s = [e2e.within_s] if e2e is not None else []
    if ttft is not None and tpot is not None:
        allowed_s.append(ttft.within_s + tpot.within_s * (record.spec.output_tokens - 1))
    return min(allowed_s, default=None)


def _late_spans(record: RequestRecord, objectives: Objectives) -> Iterator[tuple[int, int]]:
    """Yield the spans (ns) in which an answered request was over each objective that it missed."""
    good, due_ns = slo.met(record, objectives), record.scheduled_ns
    missed = {name: one.within_s for name, one in objectives.latencies().items() if not good.get(name, True)}
    first_ns = due_ns + int((latency.ttft_s(record) or 0.0) * 1e9)
    if "ttft" in missed:
        yield due_ns + int(missed["ttft"] * 1e9), first_ns
    if "tpot" in missed:
        yield first_ns, record.done_ns
    if "e2e" in missed:
        yield due_ns + int(missed["e2e"] * 1e9), record.done_ns
    if "itl" in missed:
        yield from ((before + int(missed["itl"] * 1e9), after) for before, after in pairwise(record.events.at_ns))
