"""What a server or its users do on each named day: changes to an ordinary World, by day. Pure and seeded."""

from collections.abc import Callable, Mapping

import numpy as np

from alerts.rules import FaultKind
from benchmarks.alerts.world import TICK_S, World

At = Callable[[float, float], slice]  # the ticks between two hours of the batch
Change = Callable[[np.random.Generator, World, At], None]


def _failing(share: float) -> Change:
    def change(_: np.random.Generator, world: World, at: At) -> None:
        world.fails[at(0, 36)] = share

    return change


def outage(from_h: float, to_h: float) -> Change:
    """Return a change that lets every connection fail between two hours."""

    def change(_: np.random.Generator, world: World, at: At) -> None:
        world.down[at(from_h, to_h)] = True
        world.fails[at(from_h, to_h)] = 1.0

    return change


def _echo(rng: np.random.Generator, world: World, at: At) -> None:
    outage(10, 10 + 1 / 3)(rng, world, at)
    for hour in (13.4, 13.45):
        world.fails[at(hour, hour)] = 1.0


def _twice(rng: np.random.Generator, world: World, at: At) -> None:
    outage(10, 10 + 1 / 3)(rng, world, at)
    outage(11.25, 11.75)(rng, world, at)


def _burning(rng: np.random.Generator, world: World, at: At) -> None:
    world.fails[at(0, 24)] = 0.02
    outage(20.5, 21)(rng, world, at)


def restart(_: np.random.Generator, world: World, at: At) -> None:
    """Restart for twelve seconds: two canaries fail, and the first answers after it are late."""
    first = at(10, 10).start
    world.fails[first : first + 2] = 1.0
    world.bad_ttft[first + 2 : first + 6] = 0.5


def _masked(_: np.random.Generator, world: World, at: At) -> None:
    world.fails[at(0, 24)] = 0.02
    world.users_rps[at(20.5, 24)] = 0.0
    world.ttft_s[at(20.5, 23.5)] = 2.0
    world.bad_ttft[at(20.5, 23.5)] = 1.0


def _full_cache(rng: np.random.Generator, world: World, at: At) -> None:
    ticks = at(0, 60)
    count = ticks.stop - ticks.start
    world.kv[ticks] = rng.uniform(0.93, 0.97, count)
    world.preemptions[ticks] = rng.random(count) < TICK_S / 5400
    world.waiting[ticks] = rng.random(count) < 0.1


def _batch(rng: np.random.Generator, world: World, at: At) -> None:
    for night in (22, 46):
        ticks = at(night, night + 6)
        world.waiting[ticks] = rng.integers(150, 250, ticks.stop - ticks.start)
        world.running[ticks] = 256.0
        world.kv[ticks] = rng.uniform(0.9, 0.99, ticks.stop - ticks.start)


def _short_queue(rng: np.random.Generator, world: World, at: At) -> None:
    for hour in (11, 35, 59):
        ticks = at(hour, hour + 0.2)
        world.waiting[ticks] = rng.integers(3, 6, ticks.stop - ticks.start)


def _burst(rng: np.random.Generator, world: World, at: At) -> None:
    for hour in (15, 39):
        ticks = at(hour, hour + 1 / 30)
        world.preemptions[ticks] = rng.poisson(10, ticks.stop - ticks.start)
        world.kv[ticks] = 0.99


def _overload(rng: np.random.Generator, world: World, at: At) -> None:
    """Load the server with more users than it serves. A canary in flight delays the next one: every second is sent."""
    ticks = at(14, 16)
    count = ticks.stop - ticks.start
    world.users_rps[ticks] = 1.3 * world.capacity_rps[ticks]
    world.running[ticks] = 256.0
    world.waiting[ticks] = 20 * world.capacity_rps[ticks] + rng.integers(0, 20, count)
    world.ttft_s[ticks] = 20.0
    for missed in (world.bad_ttft, world.users_bad_ttft):
        missed[ticks] = 1.0


def _users_fail(_: np.random.Generator, world: World, at: At) -> None:
    world.users_fail[at(10, 12)] = 0.1


def ordinary(_: np.random.Generator, __: World, ___: At) -> None:
    """Leave an ordinary day as it is."""


# Days of one target that differ in what its server does.
CHANGES: Mapping[str, Change] = {
    "half-percent": _failing(0.005),
    "one-percent": _failing(0.01),
    "echo": _echo,
    "twice": _twice,
    "burning": _burning,
    "masked": _masked,
    "full-cache": _full_cache,
    "batch": _batch,
    "short-queue": _short_queue,
    "burst": _burst,
    "overload": _overload,
    "users-fail": _users_fail,
    "clock": ordinary,
    "stall": ordinary,
    "xid": ordinary,
}
# Days of a fault that months have, too (world.py): its kind, its hours and its variant.
FAULTS: Mapping[str, tuple[FaultKind, float, str]] = {
    "stall": (FaultKind.STALL, 0.5, ""),
    "xid": (FaultKind.DEAD, 2 / 3, "GPU lost"),
}
