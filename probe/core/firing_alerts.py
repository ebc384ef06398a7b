"""The alerts that fire, as the monitor's Prometheus reports them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FiringAlert:
    """One alert that fires. `since_s`: when its condition began to hold (wall time); None: unknown."""

    name: str
    severity: str
    target: str | None
    since_s: float | None


@dataclass(frozen=True, slots=True)
class FiringAlerts:
    """An answer of Prometheus. With an `error`, which alerts fire is unknown."""

    alerts: Sequence[FiringAlert]
    at_s: float
    error: str | None = None
