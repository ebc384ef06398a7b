"""What a run has cost so far: requests, tokens, seconds, and seconds in which probe requests were over an objective."""

from probe.capacity.run.request import RunRequest
from probe.core.clock import Clock
from probe.core.request import RequestRecord
from probe.core.request_cost import tokens_spent
from probe.core.result import Cost
from probe.load.over_objective import covered_seconds, over_objective
from probe.load.protocol import Load


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
