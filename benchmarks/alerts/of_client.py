"""A month of Kneewatch's series about its canaries and about itself."""

from collections.abc import Iterator

import numpy as np
from prometheus_client.utils import floatToGoString
from scipy.stats import norm

from benchmarks.alerts.page import Page, Watch
from benchmarks.alerts.scene import Scene
from benchmarks.alerts.world import TICK_S
from benchmarks.backfill import Line, Values
from exporters import names
from probe.core.objectives import Objectives
from probe.core.request import Outcome

_TIMEOUT_TICKS = 2  # a canary times out after 30 s; meanwhile the next ones are sent


def canaries(scene: Scene) -> Iterator[Line]:
    """Yield the series of canaries, one per tick. During a stall they time out."""
    page, rng, world, watch = scene.page, scene.rng, scene.world, scene.watch
    target, count = world.profile.name, len(world.times)
    # If the stall ends within the timeout, the canary completes but misses its TTFT objective.
    stalled = (world.stalled_s > 0) & (np.roll(world.stalled_s, -_TIMEOUT_TICKS) > _TIMEOUT_TICKS * TICK_S)
    sent = ~watch.kneewatch_down
    timeout = sent & stalled & ~world.down
    failed = sent & ~timeout & (rng.random(count) < world.fails)
    ours = sent & ~timeout & ~failed & (rng.random(count) < 2e-5)  # the probe itself was late
    ok = sent & ~timeout & ~failed & ~ours
    late = np.concatenate((np.zeros(_TIMEOUT_TICKS, bool), timeout[:-_TIMEOUT_TICKS]))
    good_ttft = ok & (rng.random(count) >= world.bad_ttft) & (world.stalled_s < 1)
    good_tpot = ok & (rng.random(count) >= world.bad_tpot)
    labels = {**scene.knee, "traffic": "canary"}
    ended = {
        Outcome.OK: ok,
        Outcome.TIMEOUT: late,
        Outcome.UNREACHABLE: failed & world.down,
        Outcome.BROKEN_STREAM: failed & ~world.down,
        Outcome.CLIENT_BOUND: ours,
        Outcome.REJECTED: np.zeros(count, bool),
    }
    # Kneewatch also exports a zero for every other outcome. Omitted, since rules only sum over them.
    for outcome, happened in ended.items():
        yield from page.counter(names.REQUESTS, {**labels, "outcome": outcome}, happened)
    # Same as Kneewatch's rule: a request that Kneewatch itself delayed counts as answered and has no latency.
    met = {"availability": ok | ours, "ttft": good_ttft, "tpot": good_tpot, "all": good_ttft & good_tpot}
    for objective, is_met in met.items():
        yield from page.counter(names.GOOD_REQUESTS, {**labels, "objective": objective}, is_met)
    yield from page.counter(f"{names.TTFT.name}_sum", labels, np.where(ok, world.ttft_s, 0.0))
    yield from page.counter(f"{names.TTFT.name}_count", labels, ok)
    for kind, tokens in (("prompt", 256.0), ("output", 128.0)):
        spent = {"target": target, "model": world.profile.model, "traffic": "canary", "kind": kind}
        yield from page.counter(names.TOKENS, spent, tokens * (ok | ours))
    judged = np.flatnonzero(ok | ours | failed | late)
    last = judged[np.maximum(np.searchsorted(judged, np.arange(count), "right") - 1, 0)]
    up = (ok | ours)[last]
    yield from page.gauge(names.TARGET_UP, {"target": target}, up.astype(float))
    successes = np.flatnonzero(ok | ours)
    success = successes[np.maximum(np.searchsorted(successes, np.arange(count), "right") - 1, 0)]
    yield from page.gauge(names.LAST_SUCCESS, labels, world.times[success])
    yield from page.gauge(names.TASK_LAST_SUCCESS, {"task": "canary", "target": target}, world.times[last])
    yield from page.gauge(names.TASK_INTERVAL, {"task": "canary", "target": target}, TICK_S)
    yield from page.gauge(names.CANARY_TIMEOUT, {"target": target}, 30.0)
    yield from page.gauge(names.HELD_BACK, {"target": target}, 0.0)
    yield from _tasks(scene)
    yield from _promised(page, target, scene.objectives)


def _tasks(scene: Scene) -> Iterator[Line]:
    """Yield the task series. One in 50,000 tasks fails or is late on its own."""
    page, rng, world = scene.page, scene.rng, scene.world
    count = len(world.times)
    for task, seconds in (
        ("canary", TICK_S),
        ("scrape", TICK_S),
        ("gpu", TICK_S),
        ("forecast", 1800.0),
        ("capacity", 0.0),
    ):
        labels = {"task": task, "target": world.profile.name}
        fails = rng.random(count) < 2e-5 * (TICK_S / seconds if seconds else 0.0)
        yield from page.counter(names.TASK_FAILURES, labels, fails)
        if seconds and task != "canary":
            yield from page.gauge(names.TASK_INTERVAL, labels, seconds)
            yield from page.gauge(names.TASK_LAST_SUCCESS, labels, np.floor(world.times / seconds) * seconds)


def _promised(page: Page, target: str, objectives: Objectives) -> Iterator[Line]:
    window = {"target": target, "slo": objectives.name}
    yield from page.gauge(names.OBJECTIVE_WINDOW, window, objectives.window_s)
    if objectives.availability is not None:
        labels = {"target": target, "objective": "availability"}
        yield from page.gauge(names.OBJECTIVE_RATIO, labels, objectives.availability)
    for name, promised in objectives.latencies().items():
        labels = {"target": target, "objective": name}
        yield from page.gauge(names.OBJECTIVE_RATIO, labels, promised.ratio)
        yield from page.gauge(names.OBJECTIVE_SECONDS, labels, promised.within_s)
        # vLLM's histograms have a bound at each threshold of the example.
        yield from page.gauge(names.USERS_OBJECTIVE_SECONDS, labels, promised.within_s)


def discovery(page: Page, name: str, servers: Values | float, least: float = 1.0) -> Iterator[Line]:
    """Yield the series of a discovery that finds so many servers; `least`: its `min_targets`."""
    yield from page.gauge(names.DISCOVERED, {"discovery": name}, servers)
    yield from page.gauge(names.DISCOVERY_LEAST, {"discovery": name}, least)
    yield from page.gauge(names.DISCOVERY_FAILING, {"discovery": name}, 0.0)


def monitor(page: Page, rng: np.random.Generator, watch: Watch) -> Iterator[Line]:
    """Yield Kneewatch's own series: a valid configuration that does not change, and a loop lateness of about 0.3 ms."""
    ticks = np.full(len(watch.times), TICK_S)
    below = np.zeros(len(ticks))
    for bound in (*names.LOOP_LAG.buckets, np.inf):
        share = norm.cdf(np.log(bound / 0.0003)) if bound < np.inf else 1.0
        below = np.maximum(below, rng.binomial(int(TICK_S), share, len(ticks)))  # a sample a second
        labels = {"le": floatToGoString(bound)}  # type: ignore[no-untyped-call]
        yield from page.counter(f"{names.LOOP_LAG.name}_bucket", labels, below)
    yield from page.counter(f"{names.LOOP_LAG.name}_count", {}, ticks)
    yield from page.gauge(names.CONFIG_TAKEN, {}, 1.0)
    yield from page.gauge(names.SHARD, {}, 0.0)
    yield from page.gauge(names.SHARDS, {}, 1.0)
    yield from page.gauge(names.CONFIG_HASH, {"hash": "0011223344556677"}, 1.0)
    yield from page.gauge(names.BUILD_INFO, {"version": "0.1.0", "simulator": "compiled"}, 1.0)
    begun = np.concatenate(([0], watch.restarts)).astype(int)
    since = watch.times[begun[np.searchsorted(begun, np.arange(len(watch.times)), "right") - 1]]
    yield from page.gauge(names.STARTED, {}, since)
    yield from page.gauge("up", {}, (~watch.kneewatch_down).astype(float))
