"""The series of a batch of named days, target by target."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alerts.windows import HOUR_S
from benchmarks.alerts import of_capacity, of_client, of_server, world
from benchmarks.alerts.day_changes import Change, ordinary
from benchmarks.alerts.faults import Fault
from benchmarks.alerts.nights import Run
from benchmarks.alerts.page import Page, Watch
from benchmarks.alerts.scene import Scene
from benchmarks.alerts.world import Profile, World
from benchmarks.backfill import STALE, Line
from probe.config.config import Config
from probe.config.targets import WatchConfig


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The series of a batch's targets. `start_s`: midnight of the first day; `wanted`: the names to generate."""

    config: Config
    start_s: float
    rng: np.random.Generator
    watch: Watch
    wanted: Collection[str]

    def page(self, instance: str = "kneewatch:9876", clock_s: float = 0.0, watch: Watch | None = None) -> Page:
        """Return the metrics page of a Kneewatch. `watch` replaces the interruptions of the others."""
        return Page(watch or self.watch, self.wanted, instance=instance, clock_s=clock_s)

    def ticks(self, from_h: float, to_h: float) -> slice:
        """Return the ticks between two hours after the start, and at least one."""
        first, after = np.searchsorted(self.watch.times, [self.start_s + hour * HOUR_S for hour in (from_h, to_h)])
        return slice(int(first), max(int(after), int(first) + 1))

    def target(self, name: str) -> WatchConfig:
        """Return the configuration of a target; `service/a` is one of `service`."""
        entry = name.partition("/")[0]
        return next(target for target in self.config.targets if target.name == entry)

    def world(
        self,
        name: str,
        change: Change = ordinary,
        done: Sequence[Run] = (),
        faults: Sequence[Fault] = (),
        busy: float = 0.5,
    ) -> World:
        """Return the state of a target's server, with its faults and this change. `busy`: its load at the peak."""
        profile = Profile(name, "meta-llama/Llama-3.1-8B-Instruct", 14.0, busy, 0.14, 0.025, office=True)
        found = world.make(
            self.rng,
            profile,
            self.watch.times,
            faults,
            limits=(0.5, 0.05),
            restarts=[],
            runs=[
                (run.start_s, run.end_s) for run in done if run.outcome != "refused" and run.end_s > self.watch.times[0]
            ],
            quiet=[],
        )
        change(self.rng, found, self.ticks)
        return found

    def lines(self, page: Page, server: World, done: Sequence[Run] = ()) -> Iterator[Line]:
        """Yield a target's series as they are on a page."""
        target = self.target(server.profile.name)
        scene = Scene(
            page=page,
            rng=self.rng,
            world=server,
            watch=page.watch,
            objectives=self.config.objectives_of(target),
            workload=target.canary.workload,
            runs=done,
            restarts=[],
        )
        yield from of_client.canaries(scene)
        yield from of_server.server(scene)
        yield from of_server.gpus(scene)
        yield from of_capacity.capacity(scene)

    def while_there(self, page: Page, server: World, from_h: float, to_h: float) -> Iterator[Line]:
        """Yield the series of a target that is on a page only between two hours after the start."""
        for line in self.lines(page, server):
            yield _within(line, self.start_s + from_h * HOUR_S, self.start_s + to_h * HOUR_S)


def _within(line: Line, from_s: float, to_s: float) -> Line:
    """Return a series that begins and ends at these times, with a stale marker at its end."""
    kept = (line.times >= from_s) & (line.times < to_s)
    after = line.times[line.times >= to_s][:1]
    values = line.values[kept]
    if line.labels["__name__"].endswith(("_total", "_count", "_sum", "_bucket")) and len(values):
        values = np.where(np.isnan(values), values, values - values[0])  # arithmetic would change a stale marker
    return replace(
        line,
        times=np.concatenate((line.times[kept], after)),
        values=np.concatenate((values, np.full(len(after), STALE))),
    )
