"""A simulated month of telemetry, generated from a seed. `Month` has the faults and generates the series.

One Kneewatch watches three targets. The simulation starts eight days before the month, so that windows of a week are
full when it begins, and adds forty nights of capacity runs before that, so that the knee has a baseline.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from alerts.rules import FaultKind
from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts import of_capacity, of_client, of_server, world
from benchmarks.alerts.faults import BUSY_S, BUSY_SHARE, Fault, plan
from benchmarks.alerts.nights import Run, runs, starts
from benchmarks.alerts.page import Page, Watch
from benchmarks.alerts.scene import Scene
from benchmarks.alerts.world import PROFILES, TICK_S, Profile, World
from benchmarks.backfill import Floats, Line
from probe.config.config import Config
from probe.config.config_file import config_from

DAYS = 30
START_S = datetime(2026, 10, 19, tzinfo=UTC).timestamp()
END_S = START_S + DAYS * DAY_S
BEGUN_S = START_S - 8 * DAY_S
_NIGHTS_BEFORE = 40
# Per month: restarts of each server, restarts of Kneewatch, and scrape failures that last one to four minutes.
SERVER_RESTARTS = 4
_KNEEWATCH_RESTARTS, _GAPS = 3, 5
_APART = 20  # ticks between interruptions of the monitor


def config() -> Config:
    """Return the targets, with the objectives and canaries of deploy/examples/kneewatch.yml."""
    return config_from(
        {
            "objectives": {
                "chat": {
                    "window": "30d",
                    "availability": 0.999,
                    "ttft": {"ratio": 0.95, "within": "500ms"},
                    "tpot": {"ratio": 0.95, "within": "50ms"},
                }
            },
            "workloads": {"short-chat": {"prompt_tokens": 256, "output_tokens": 128, "prefix": "unique"}},
            "targets": [
                {
                    "name": profile.name,
                    "base_url": f"http://{profile.name}:8000",
                    "objectives": "chat",
                    "canary": {"every": "15s", "workload": "short-chat"},
                    "capacity": {
                        "mode": "verify",
                        "workload": "short-chat",
                        "schedule": {"cron": f"{20 * index} 4 * * *", "timezone": "Europe/Berlin"},
                    },
                    "gpu": {"dcgm_urls": [f"http://node-{profile.name}:9400/metrics"]},
                }
                for index, profile in enumerate(PROFILES)
            ],
        },
        "benchmarks/alerts",
    )


@dataclass(frozen=True, slots=True)
class _Target:
    profile: Profile
    world: World
    runs: Sequence[Run]
    restarts: Sequence[int]


class Month:
    """The month of a seed. The same seed gives the same month."""

    def __init__(self, seed: int, config: Config, *, scrape_s: float, faults: bool = True) -> None:
        """Draw the month. `faults` False gives a month without faults."""
        self._rng = np.random.default_rng([seed, 0])
        self._config = config
        self._times: Floats = np.arange(BEGUN_S, END_S, TICK_S)
        nights = [
            (target.name, starts(target.capacity, START_S - _NIGHTS_BEFORE * DAY_S, END_S)) for target in config.targets
        ]
        every = [run for _, at in nights for run in at if run > START_S]
        names = [target.name for target in config.targets]
        self.faults: list[Fault] = plan(seed, names, START_S, END_S, every) if faults else []
        self._watch = self._watching(int(scrape_s / TICK_S))
        self._targets = [self._target(name, at) for name, at in nights]

    def lines(self, wanted: Collection[str]) -> list[Line]:
        """Return the series with these names."""
        return list(self._lines(Page(self._watch, wanted)))

    def runs(self, target: str) -> Sequence[Run]:
        """Return the capacity runs of a target, including those before the month."""
        return next(each.runs for each in self._targets if each.profile.name == target)

    def busy(self, target: str, at_s: float) -> bool:
        """Report whether users took most of the target's true capacity in the hour before `at_s`."""
        world = next(each.world for each in self._targets if each.profile.name == target)
        hour = slice(*np.searchsorted(self._times, [at_s - HOUR_S, at_s]))
        count = int(BUSY_S / TICK_S)
        return bool(np.convolve(world.share()[hour], np.ones(count) / count, "valid").max() > BUSY_SHARE)

    def _lines(self, page: Page) -> Iterator[Line]:
        for each in self._targets:
            target = next(target for target in self._config.targets if target.name == each.profile.name)
            scene = Scene(
                page=page,
                rng=self._rng,
                world=each.world,
                watch=self._watch,
                objectives=self._config.objectives_of(target),
                workload=target.canary.workload,
                runs=each.runs,
                restarts=each.restarts,
            )
            yield from of_client.canaries(scene)
            yield from of_server.server(scene)
            yield from of_server.gpus(scene)
            yield from of_capacity.capacity(scene)
        yield from of_client.monitor(page, self._rng, self._watch)
        yield from of_client.discovery(page, "steady", 2.0)

    def _target(self, name: str, at: Sequence[float]) -> _Target:
        rng = self._rng
        profile = next(profile for profile in PROFILES if profile.name == name)
        lower = [fault for fault in self.faults if fault.kind is FaultKind.KNEE and fault.target == name]

        def rps(time_s: float) -> float:
            lost = [fault.size for fault in lower if fault.start_s <= time_s < fault.end_s]
            return profile.rps * (1 - sum(lost))

        made = runs(rng, at, rps)
        restarts = self._calm(name, SERVER_RESTARTS)
        night = START_S + int(rng.integers(2, DAYS - 1)) * DAY_S
        ticks = [int(np.searchsorted(self._times, restart)) for restart in restarts]
        limits = self._config.objectives_of(self._config.targets[0]).latencies()
        return _Target(
            profile=profile,
            world=world.make(
                rng,
                profile,
                self._times,
                self.faults,
                limits=(limits["ttft"].within_s, limits["tpot"].within_s),
                restarts=restarts,
                runs=[
                    (run.start_s, run.end_s) for run in made if run.outcome != "refused" and run.end_s > self._times[0]
                ],
                quiet=[(night, night + 5 * HOUR_S)],
            ),
            runs=made,
            restarts=ticks,
        )

    def _calm(self, name: str | None, count: int) -> list[float]:
        """Draw times that are more than an hour from any fault of the target, or of all targets if it is None."""
        found: list[float] = []
        while len(found) < count:
            at_s = float(self._rng.uniform(START_S + HOUR_S, END_S - HOUR_S))
            near = [
                f
                for f in self.faults
                if name in {None, f.target}
                and f.kind is not FaultKind.KNEE
                and f.start_s - HOUR_S < at_s < f.end_s + HOUR_S
            ]
            if not near:
                found.append(at_s)
        return sorted(found)

    def _watching(self, every: int) -> Watch:
        times = self._times
        down, gaps = np.zeros(len(times), bool), np.zeros(len(times), bool)
        restarts = []
        for at_s in self._calm(None, _KNEEWATCH_RESTARTS):
            tick = int(np.searchsorted(times, at_s))
            lasts = int(self._rng.integers(2, 6))
            down[tick : tick + lasts] = True
            restarts.append(tick + lasts)
        for at_s in self._calm(None, _GAPS):
            tick, lasts = int(np.searchsorted(times, at_s)), int(self._rng.integers(4, 17))
            # Two that adjoin would be one of more than five minutes, which is a Kneewatch that is gone.
            if not (gaps | down)[max(tick - _APART, 0) : tick + lasts + _APART].any():
                gaps[tick : tick + lasts] = True
        return Watch(times, down, gaps, restarts, every)
