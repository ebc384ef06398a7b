"""Whether a target is up: what the newest canary of each of its kinds shows."""

from probe.core.clock import Clock
from probe.core.request import UNKNOWN_MODEL, RequestRecord
from probe.core.target_status import worst

_Kind = tuple[str, str]  # model and workload; the model is UNKNOWN_MODEL where the server reports it


class TargetUp:
    """The newest result of each kind of canary, each for as long as it is valid."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._valid_s: dict[_Kind, float] = {}
        self._newest: dict[_Kind, tuple[bool, int]] = {}  # whether it was up, and when that was known

    def expect(self, model: str, workload: str, valid_s: float) -> None:
        """Add a kind of canary. `valid_s`: for how long one of them shows whether the target is up."""
        self._valid_s[model, workload] = valid_s

    def is_expected(self, model: str, workload: str) -> bool:
        """Return whether a kind was announced with this model."""
        return (model, workload) in self._valid_s

    def add(self, record: RequestRecord, *, is_up: bool) -> None:
        """Take a canary."""
        kind = record.model, record.spec.workload
        if kind not in self._valid_s:
            kind = UNKNOWN_MODEL, record.spec.workload
        self._newest[kind] = is_up, self._clock.monotonic_ns()

    def forget(self) -> bool:
        """Forget all canaries. Return whether there were any."""
        were_known = bool(self._newest)
        self._newest.clear()
        return were_known

    @property
    def is_up(self) -> bool | None:
        """Whether the newest canary of each kind succeeded; None if all are too old."""
        now_ns = self._clock.monotonic_ns()
        return worst(
            is_up
            for kind, (is_up, at_ns) in self._newest.items()
            if (now_ns - at_ns) * 1e-9 <= self._valid_s.get(kind, float("inf"))
        )
