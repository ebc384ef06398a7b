"""The times of a query as Grafana chooses them: the range, the step, and $__rate_interval. Pure.

Grafana asks for as many points as a panel has pixels; a page here is drawn once, with `MOST_POINTS`.
"""

import math
from dataclasses import dataclass

MOST_POINTS = 300
# Prometheus data source: "Scrape interval", where it is not set.
DEFAULT_SCRAPE_S = 15.0
# What Grafana rounds a step to, the nearest of them.
_STEPS_S = (
    0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200,
    10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """A range of time, in seconds since 1970."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def last(self, seconds: float) -> "Window":
        """Return the window of this length with the same end: a panel's own time range."""
        return Window(self.end_s - seconds, self.end_s)


@dataclass(frozen=True, slots=True)
class Grid:
    """The moments of a range query: `count` of them, `step_s` apart, on whole multiples of the step."""

    start_s: float
    step_s: float
    count: int

    @property
    def end_s(self) -> float:
        return self.start_s + (self.count - 1) * self.step_s


def step_of(window: Window, min_step_s: float, points: int = MOST_POINTS) -> float:
    """Return the step for about `points` points; at least `min_step_s`."""
    raw_s = window.seconds / points
    return max(min(_STEPS_S, key=lambda step_s: (abs(step_s - raw_s), -step_s)), min_step_s)


def grid_of(window: Window, step_s: float) -> Grid:
    """Return the grid, aligned to the step so that two queries a second apart use the same moments."""
    first, last = math.floor(window.start_s / step_s), math.floor(window.end_s / step_s)
    return Grid(first * step_s, step_s, last - first + 1)


def rate_interval(step_s: float, scrape_s: float) -> float:
    """Return $__rate_interval. `scrape_s` is the query's own "Min step" if it has one; a panel's does not count."""
    return max(step_s + scrape_s, 4 * scrape_s)
