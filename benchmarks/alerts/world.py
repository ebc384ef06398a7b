"""A simulated month of one target, in ticks of 15 s: its users, its server and the effect of each fault. Seeded.

In: a target's profile, its faults and other events. Out: arrays with one value per tick for the true state of the
server and the requests of its users. The simulation knows nothing about rules, alert thresholds or windows.

An ordinary month has daily and weekly load patterns, autoregressive noise (over minutes, a quarter of an hour and a
day), bursts up to the capacity but never above it, latencies with a tail (one canary in 300 is 4 times slower or
worse), single failures, and a night without users.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter
from scipy.stats import norm

from alerts.rules import FaultKind
from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts.faults import Fault
from benchmarks.backfill import Bools, Floats

TICK_S = 15.0
OUTPUT_TOKENS, PROMPT_TOKENS = 220.0, 900.0  # mean tokens of a user's request
# A canary fails by itself, or in a rolling update, in which connections break: for how long, and which shares of them.
FAIL = 4e-5
RESTART_S, RESTART_FAILS = 60.0, (0.0, 0.2, 0.4)
_FULLEST = 0.97  # share of the capacity; an ordinary burst never overloads the server


@dataclass(frozen=True, slots=True)
class Profile:
    """A server: capacity (requests/s), share of it used in the busiest hour, latencies when idle, and kind of users."""

    name: str
    model: str
    rps: float
    busiest: float
    ttft_s: float
    tpot_s: float
    office: bool


PROFILES = (
    Profile("llama-8b", "meta-llama/Llama-3.1-8B-Instruct", 24.0, 0.55, 0.12, 0.022, office=True),
    Profile("qwen-32b", "Qwen/Qwen3-32B", 9.0, 0.45, 0.17, 0.027, office=False),
    Profile("mistral-24b", "mistralai/Mistral-Small-24B", 14.0, 0.6, 0.14, 0.025, office=True),
)


@dataclass(slots=True)
class World:
    """The true state at each tick. `bad_ttft` and `bad_tpot` are the shares of requests that miss the objective."""

    profile: Profile
    times: Floats
    users_rps: Floats
    capacity_rps: Floats
    ttft_s: Floats  # the mean of requests that begin now
    bad_ttft: Floats
    bad_tpot: Floats
    users_bad_ttft: Floats
    users_bad_tpot: Floats
    fails: Floats  # the share of canaries that fail at once
    users_fail: Floats  # the share of users' requests that fail
    down: Bools  # no server answers
    stalled_s: Floats
    running: Floats
    waiting: Floats
    kv: Floats
    preemptions: Floats  # in this tick
    throttled: Bools
    gpu_lost: Bools

    def share(self) -> Floats:
        """The users' load divided by the capacity."""
        return self.users_rps / self.capacity_rps


def make(
    rng: np.random.Generator,
    profile: Profile,
    times: Floats,
    faults: Iterable[Fault],
    *,
    limits: tuple[float, float],
    restarts: Sequence[float],
    runs: Sequence[tuple[float, float]],
    quiet: Sequence[tuple[float, float]],
) -> World:
    """Simulate a target's month.

    `limits` are the objectives' TTFT and TPOT, `restarts` the times at which the server restarts, `quiet` the times
    without users.
    """
    mine = [fault for fault in faults if fault.target == profile.name]
    capacity = np.full(len(times), profile.rps)
    for fault in mine:
        if fault.kind is FaultKind.KNEE:
            capacity[_within(times, fault.start_s, fault.end_s)] *= 1 - fault.size
    users = _load(rng, profile, times)
    for start_s, end_s in quiet:
        users[_within(times, start_s, end_s)] = 0.0
    world = _ordinary(rng, profile, times, users=users, capacity=capacity, limits=limits)
    for start_s, end_s in runs:
        _capacity_run(rng, world, _within(times, start_s, end_s))
    for at_s in restarts:
        _restart(rng, world, at_s)
    for fault in mine:
        _FAULTS[fault.kind](rng, world, fault, _within(times, fault.start_s, fault.end_s))
    return world


def _within(times: Floats, start_s: float, end_s: float) -> slice:
    first, after = np.searchsorted(times, [start_s, end_s])
    return slice(int(first), int(max(after, first + 1)))


def noise(rng: np.random.Generator, count: int, lasts_s: float, sd: float) -> Floats:
    """Return autoregressive noise with this standard deviation and a correlation time of `lasts_s`."""
    keep = float(np.exp(-TICK_S / lasts_s))
    shocks = rng.normal(0, sd * np.sqrt(1 - keep**2), count)
    shocks[0] = rng.normal(0, sd)
    return np.asarray(lfilter([1.0], [1.0, -keep], shocks), np.float64)


def _load(rng: np.random.Generator, profile: Profile, times: Floats) -> Floats:
    """Return users' requests per second: by hour and weekday in UTC, with noise and bursts."""
    hour = times % DAY_S / HOUR_S
    weekend = (times // DAY_S + 3) % 7 >= 5  # 1970 began on a Thursday
    if profile.office:
        shape = 0.06 + _bump(hour, 10.5, 2.2) + 0.92 * _bump(hour, 15, 2.2)
        shape = np.where(weekend, 0.3 * shape + 0.03, shape) / 1.15
    else:
        shape = 0.12 + 0.6 * _bump(hour, 12.5, 3.5) + _bump(hour, 20, 2.6)
        shape = np.where(weekend, 1.1 * shape, shape) / 1.2
    count = len(times)
    wobble = noise(rng, count, 240, 0.1) + noise(rng, count, 1800, 0.12) + noise(rng, count, DAY_S, 0.06)
    for at in rng.integers(0, count, rng.poisson(2 * count * TICK_S / DAY_S)):
        lasts = rng.exponential(180 / TICK_S)
        after = np.arange(min(count - at, int(8 * lasts) + 1))
        wobble[at : at + len(after)] += rng.uniform(0.2, 0.8) * np.exp(-after / max(lasts, 1.0))
    return np.minimum(profile.rps * profile.busiest * shape * np.exp(wobble), _FULLEST * profile.rps)


def _bump(hour: Floats, middle: float, width: float) -> Floats:
    away = np.abs((hour - middle + 12) % 24 - 12)
    return np.asarray(np.exp(-0.5 * (away / width) ** 2), np.float64)


def _ordinary(
    rng: np.random.Generator,
    profile: Profile,
    times: Floats,
    *,
    users: Floats,
    capacity: Floats,
    limits: tuple[float, float],
) -> World:
    count = len(times)
    # The knee is where one request in twenty is late, not where the queue grows without bound.
    share = np.minimum(users / capacity, 1.15)
    queueing_s = 0.02 * (0.85 * share) ** 4 / (1 - 0.85 * share)
    ttft = (profile.ttft_s * (1 + 0.6 * share) + queueing_s) * np.exp(noise(rng, count, 900, 0.1))
    tpot = profile.tpot_s * (1 + 0.6 * share) * np.exp(noise(rng, count, 900, 0.03))
    running = users * (ttft + OUTPUT_TOKENS * tpot)
    waiting = np.where(rng.random(count) < share**6, rng.poisson(np.minimum(4 * queueing_s / profile.ttft_s, 20)), 0)
    kv = np.clip((0.1 + 0.68 * share) * np.exp(noise(rng, count, 300, 0.05)), 0.0, 0.99)
    stalled = np.where(rng.random(count) < 0.0005, rng.uniform(1, 12, count), 0.0)  # one long prompt
    return World(
        profile=profile,
        times=times,
        users_rps=users,
        capacity_rps=capacity,
        ttft_s=ttft,
        bad_ttft=_beyond(limits[0], ttft, 0.28, tail=0.003),
        bad_tpot=_beyond(limits[1], tpot, 0.07, tail=0.001),
        users_bad_ttft=_beyond(limits[0], ttft, 0.4, tail=0.004),
        users_bad_tpot=_beyond(limits[1], tpot, 0.12, tail=0.002),
        fails=np.full(count, FAIL),
        users_fail=np.full(count, 1e-4),
        down=np.zeros(count, bool),
        stalled_s=stalled,
        running=np.round(running + rng.normal(0, np.sqrt(running + 0.1))).clip(0),
        waiting=waiting.astype(np.float64),
        kv=kv,
        preemptions=np.where(kv > 0.93, rng.poisson(0.02, count), 0).astype(np.float64),
        throttled=np.zeros(count, bool),
        gpu_lost=np.zeros(count, bool),
    )


def _beyond(limit_s: float, median_s: Floats, spread: float, *, tail: float) -> Floats:
    """Return the share of log-normal latencies over the limit, plus a few that are slow for other reasons."""
    return np.asarray(tail + (1 - tail) * norm.sf(np.log(limit_s / median_s) / spread), np.float64)


def _capacity_run(rng: np.random.Generator, world: World, at: slice) -> None:
    """Add Kneewatch's step-up load at night. The last step is at the knee, until the guard or the search ends it."""
    count = at.stop - at.start
    climb = np.linspace(0.2, 1.0, count)
    world.kv[at] = np.maximum(world.kv[at], 0.85 * climb)
    world.running[at] += np.round(climb * world.capacity_rps[at] * 4)
    world.waiting[at] += np.where(climb > 0.9, rng.poisson(2, count), 0)
    world.bad_ttft[at] = np.maximum(world.bad_ttft[at], np.where(climb > 0.9, 0.3, 0.02))
    if rng.random() < 0.2:
        world.preemptions[at.stop - 1] += rng.integers(1, 4)


def _restart(rng: np.random.Generator, world: World, at_s: float) -> None:
    """Apply a rolling update: another replica takes over, a few connections break, /metrics is briefly unavailable."""
    at = _within(world.times, at_s, at_s + RESTART_S)
    world.fails[at] = rng.choice(RESTART_FAILS)
    world.running[at] = 0
    after = _within(world.times, at_s, at_s + 120)
    world.bad_ttft[after] = np.maximum(world.bad_ttft[after], 0.2)  # cold caches


def _missed(world: World, at: slice, share: float, name: str) -> None:
    for field in (f"bad_{name}", f"users_bad_{name}"):
        array = getattr(world, field)
        array[at] = np.maximum(array[at], share)


def _slow(_: np.random.Generator, world: World, fault: Fault, at: slice) -> None:
    _missed(world, at, fault.size, "tpot")
    world.running[at] = np.round(world.running[at] * 1.8)
    world.kv[at] = np.minimum(world.kv[at] * 1.2, 0.88)
    world.throttled[at] = fault.how == "throttled GPU"


def _queue(rng: np.random.Generator, world: World, fault: Fault, at: slice) -> None:
    _missed(world, at, fault.size, "ttft")
    world.ttft_s[at] = np.maximum(world.ttft_s[at], 4 * fault.size)
    count = at.stop - at.start
    grown = np.minimum(np.arange(count) * TICK_S / 300, 1.0)
    world.waiting[at] += np.round(grown * (10 + 60 * fault.size) * np.exp(noise(rng, count, 300, 0.2)))
    if fault.how == "more users than it takes":
        world.users_rps[at] = world.capacity_rps[at] * (1.02 + 0.25 * fault.size)
        world.running[at] = np.maximum(world.running[at], world.capacity_rps[at] * 5)
        world.kv[at] = np.maximum(world.kv[at], 0.8)


def _kv(rng: np.random.Generator, world: World, fault: Fault, at: slice) -> None:
    count = at.stop - at.start
    _missed(world, at, 0.5, "ttft")
    _missed(world, at, 0.25, "tpot")
    world.kv[at] = np.clip(rng.normal(0.985, 0.006, count), 0.97, 1.0)
    world.waiting[at] += 3 + rng.poisson(2 + 4 * fault.size, count)
    world.preemptions[at] += rng.poisson(fault.size * TICK_S, count)


def _stall(_: np.random.Generator, world: World, fault: Fault, at: slice) -> None:
    """Stall the engine: requests stay in it and more arrive."""
    since = world.times[at] - fault.start_s
    world.stalled_s[at] = np.maximum(since, 0.0)
    world.running[at] = np.maximum(world.running[at.start], 1.0)
    world.waiting[at] += np.round(world.users_rps[at] * np.minimum(since, 120))
    _missed(world, slice(at.stop, at.stop + 4), 0.9, "ttft")


def _dead(_: np.random.Generator, world: World, fault: Fault, at: slice) -> None:
    world.down[at] = True
    world.fails[at] = 1.0
    if fault.how == "GPU lost":
        world.gpu_lost[at] = True


def _knee(_: np.random.Generator, world: World, fault: Fault, at: slice) -> None:
    """Shift the knee: set `capacity_rps`. Users notice only when their load comes near it."""


_FAULTS = {
    FaultKind.SLOW: _slow,
    FaultKind.QUEUE: _queue,
    FaultKind.KV: _kv,
    FaultKind.STALL: _stall,
    FaultKind.DEAD: _dead,
    FaultKind.KNEE: _knee,
}
