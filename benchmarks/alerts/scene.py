"""The state of one target's month from which its series are generated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.alerts.nights import Run
from benchmarks.alerts.page import Page, Watch
from benchmarks.alerts.world import World
from probe.core.objectives import Objectives


@dataclass(frozen=True, slots=True)
class Scene:
    """A target, its runs, the restarts of its server (ticks), the page of its series, and the random generator."""

    page: Page
    rng: np.random.Generator
    world: World
    watch: Watch
    objectives: Objectives
    workload: str
    runs: Sequence[Run]
    restarts: Sequence[int]

    @property
    def target(self) -> dict[str, str]:
        """The label of all series of the target."""
        return {"target": self.world.profile.name}

    @property
    def knee(self) -> dict[str, str]:
        """The labels of series for a model and a workload."""
        return {**self.target, "model": self.world.profile.model, "workload": self.workload}
