"""A month of Kneewatch's series about a server: its metrics, user traffic, cross-checks and GPUs."""

from collections.abc import Iterator

import numpy as np

from benchmarks.alerts.scene import Scene
from benchmarks.alerts.world import OUTPUT_TOKENS, PROMPT_TOKENS, TICK_S, noise
from benchmarks.backfill import Bools, Floats, Line, Values
from exporters import names
from exporters.capacity import REFUSED
from exporters.names import Series
from probe.gpu.fields import FIELDS
from probe.observe.engine_balance import IMBALANCES
from probe.observe.kv_pressure import FULL

_GPUS = 2
_FACTORS = {field.name: field.factor for field in FIELDS}  # from dcgm-exporter's units
# NVML's bits: idle, the power cap (common under load), slowed by software for heat, by hardware for heat.
_IDLE, _POWER, _SW_HEAT, _HW_HEAT = 0x1, 0x4, 0x20, 0x40
# The example's objectives allow 5 % of a latency; the monitor judges the last five minutes.
_LATE_SHARE, _LATE_TICKS = 0.05, int(300 / TICK_S)
_XID_LOST = 79.0  # "GPU has fallen off the bus"


def server(scene: Scene) -> Iterator[Line]:
    """Yield the series of the server's metrics and of user traffic."""
    page, rng, world = scene.page, scene.rng, scene.world
    labels, count = scene.target, len(world.times)
    away = np.zeros(count, bool)
    for tick in scene.restarts:
        away[tick : tick + 3] = True
    readable = ~(world.down | away)
    # After an outage the counters start again from zero.
    returned = np.flatnonzero(~world.down & np.concatenate(([False], world.down[:-1])))
    resets = sorted({*scene.restarts, *returned.tolist()})
    served = rng.poisson(np.where(world.down | (world.stalled_s > TICK_S), 0.0, world.users_rps * TICK_S)).astype(float)
    ends = np.flatnonzero((world.stalled_s[:-1] > TICK_S) & (world.stalled_s[1:] <= TICK_S)) + 1
    for end in ends:  # requests that waited and were not abandoned
        served[end] += np.round(0.5 * world.users_rps[end] * min(world.stalled_s[end - 1], 240.0))
    yield from page.gauge(names.SERVER_UP, labels, readable.astype(float))
    for reason in ("timeout", "unreachable", "malformed"):
        errors = ~readable if reason == "unreachable" else np.zeros(count, bool)
        yield from page.counter(names.SERVER_SCRAPE_ERRORS, {**labels, "reason": reason}, errors)
    info = {**labels, "engine": "vllm", "version": "0.32.0"}
    yield from page.gauge(names.SERVER_INFO, info, 1.0, readable)
    begun = np.concatenate(([0], resets)).astype(int)
    since = world.times[begun[np.searchsorted(begun, np.arange(count), "right") - 1]]
    yield from page.gauge(names.SERVER_STARTED, labels, since, readable)
    yield from page.gauge(names.SERVER["running"], labels, world.running, readable)
    yield from page.gauge(names.SERVER["waiting_by_reason"], {**labels, "reason": "capacity"}, world.waiting, readable)
    yield from page.gauge(names.SERVER["waiting_by_reason"], {**labels, "reason": "deferred"}, 0.0, readable)
    yield from page.gauge(names.SERVER["kv_cache_usage"], labels, world.kv, readable)
    prompt = served * PROMPT_TOKENS * np.exp(noise(rng, count, 1800, 0.15))
    output = served * OUTPUT_TOKENS * np.exp(noise(rng, count, 1800, 0.1))
    hits = prompt * np.clip(0.4 + noise(rng, count, 3600, 0.05), 0.05, 0.9)
    counted = (
        (names.SERVER["preemptions"], world.preemptions),
        (names.SERVER["prompt_tokens"], prompt + 256),
        (names.SERVER["generation_tokens"], np.where(world.stalled_s > TICK_S, 0.0, output + 128)),
        (names.SERVER["prefix_cache_queries"], prompt + 256),
        (names.SERVER["prefix_cache_hits"], hits),
        (names.SERVER["corrupted"], np.zeros(count)),
    )
    for series, increments in counted:
        yield from page.counter(series, labels, increments, readable, resets)
    refused = {**labels, "reason": "unknown"}
    yield from page.counter(names.SERVER["rejections_by_reason"], refused, np.zeros(count), readable, resets)
    spent = world.running * TICK_S
    sums: tuple[tuple[Series, dict[str, str], Values], ...] = (
        (names.SERVER["queue"], {}, world.waiting * TICK_S),  # Little's law: seconds waited per tick
        (names.SERVER["ttft"], {}, world.waiting * TICK_S + 0.2 * served),
        (names.SERVER["prefill"], {}, 0.15 * served),
        (names.SERVER["decode"], {}, spent),
        (names.SERVER["e2e"], {}, spent + world.waiting * TICK_S),
        (names.SERVER_PREEMPTIONS_PER_REQUEST, {"source": "histogram"}, world.preemptions),
    )
    for histogram, more, increments in sums:
        yield from page.counter(f"{histogram.name}_count", {**labels, **more}, served + 1, readable, resets)
        yield from page.counter(f"{histogram.name}_sum", {**labels, **more}, increments, readable, resets)
    yield from _joined(scene, readable)
    yield from _users(scene, served, prompt, output)


def _joined(scene: Scene, readable: Bools) -> Iterator[Line]:
    page, rng, world = scene.page, scene.rng, scene.world
    labels, count = scene.target, len(world.times)
    yield from page.gauge(names.STALLED, labels, world.stalled_s, readable)
    yield from page.gauge(names.AMBIGUOUS, labels, 0.0, readable)
    for reason in IMBALANCES:  # two engines, which share the load evenly
        yield from page.gauge(names.IMBALANCE, {**labels, "reason": reason}, 1.0, readable)
    share = np.clip(world.waiting / (world.waiting + 3), 0, 1)
    yield from page.gauge(names.QUEUE_SHARE, labels, share, readable)
    gap = 0.004 * np.exp(noise(rng, count, 3600, 0.2))
    yield from page.gauge(names.TTFT_GAP, {**labels, "method": "matched"}, gap, readable)
    minute = int(60 / TICK_S)

    def lately(sign: Bools) -> Floats:
        return (np.convolve(sign, np.ones(minute), "full")[:count] > 0).astype(float)

    full = world.kv >= FULL
    missed = np.maximum(world.users_bad_ttft, world.users_bad_tpot)
    recent = np.convolve(missed, np.full(_LATE_TICKS, 1 / _LATE_TICKS), "full")[:count]
    # Its batch is not full while the cache is: the KV cache is what limits it.
    signs = {
        "usage": lately(full),
        "waiting": lately(full & (world.waiting > 0)),
        "preemptions": lately(world.preemptions > 0),
        "rejections": np.zeros(count),
        "late": (recent > _LATE_SHARE).astype(float),
    }
    for sign, shows in signs.items():
        yield from page.gauge(names.KV_PRESSURE, {**labels, "sign": sign}, shows, readable)
    too_small = np.maximum(signs["waiting"], signs["preemptions"]) * signs["late"]
    yield from page.gauge(names.KV_TOO_SMALL, labels, too_small, readable)


def _users(scene: Scene, served: Floats, prompt: Floats, output: Floats) -> Iterator[Line]:
    """Yield user traffic, which is unknown while probe traffic runs: the next sample has what came meanwhile."""
    page, rng, world, labels = scene.page, scene.rng, scene.world, scene.target
    failed = rng.binomial(served.astype(int), world.users_fail)
    good = {
        "availability": served - failed,
        "ttft": served - rng.binomial(served.astype(int), np.clip(world.users_bad_ttft, 0, 1)),
        "tpot": served - rng.binomial(served.astype(int), np.clip(world.users_bad_tpot, 0, 1)),
    }
    is_known = np.ones(len(served), bool)
    for run in scene.runs:
        if run.outcome != REFUSED:
            first, after = np.searchsorted(world.times, [run.start_s, run.end_s])
            is_known[first:after] = False
    counted: list[tuple[Series | str, dict[str, str], Floats]] = [
        (names.USERS_REQUESTS, {"outcome": "ok"}, good["availability"]),
        (names.USERS_REQUESTS, {"outcome": "failed"}, failed),
        (names.USERS_TOKENS, {"kind": "prompt"}, prompt),
        (names.USERS_TOKENS, {"kind": "output"}, output),
        *((names.USERS_GOOD, {"objective": objective}, within) for objective, within in good.items()),
    ]
    for series in (names.USERS_TTFT, names.USERS_TPOT):
        counted += [(f"{series.name}_count", {}, served), (f"{series.name}_bucket", {"le": "+Inf"}, served)]
    for series, tokens in ((names.USERS_PROMPT_TOKENS, prompt), (names.USERS_OUTPUT_TOKENS, output)):
        counted += [(f"{series.name}_sum", {}, tokens), (f"{series.name}_bucket", {"le": "+Inf"}, served)]
    for series, more, increments in counted:
        yield from page.counter(series, {**labels, **more}, increments, is_known)


def gpus(scene: Scene) -> Iterator[Line]:
    """Yield two GPUs read from dcgm-exporter. A lost GPU disappears; the other's last XID stays until the repair."""
    page, rng, world = scene.page, scene.rng, scene.world
    target, count = world.profile.name, len(world.times)
    yield from page.gauge(names.GPU_UP, {"target": target}, 1.0)
    yield from page.gauge(names.GPU_COUNT, {"target": target}, _GPUS - world.gpu_lost.astype(float))
    yield from page.counter(names.GPU_SCRAPE_ERRORS, {"target": target}, rng.random(count) < 2e-6)
    share = np.clip(world.share(), 0, 1)
    busy = np.clip(0.1 + share * 1.1, 0, 1) * (world.users_rps > 0)
    reasons = np.where(busy < 0.02, _IDLE, np.where(rng.random(count) < 0.5 * busy, _POWER, 0))
    reasons = np.where(world.throttled, _SW_HEAT | _HW_HEAT, reasons)
    for index in range(_GPUS):
        lost = world.gpu_lost if index == 1 else np.zeros(count, bool)
        labels = {
            "target": target, "gpu": str(index), "UUID": f"GPU-{target}-{index}", "device": f"nvidia{index}",
            "modelName": "NVIDIA H100 80GB HBM3", "Hostname": f"node-{target}",
        }  # fmt: skip
        values: dict[str, Values] = {
            "DCGM_FI_DEV_XID_ERRORS": np.where(world.gpu_lost, _XID_LOST, 0.0),
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": reasons,
            "DCGM_FI_DEV_GPU_UTIL": np.round(100 * busy),
            "DCGM_FI_DEV_GPU_TEMP": np.round(np.where(world.throttled, 88, 35 + 35 * busy)),
            "DCGM_FI_DEV_POWER_USAGE": 90 + 600 * busy,
            "DCGM_FI_DEV_SM_CLOCK": np.where(world.throttled, 900.0, 1980.0),
            "DCGM_FI_DEV_ROW_REMAP_FAILURE": np.zeros(count),
            "DCGM_FI_DEV_FB_USED": np.full(count, 72_000.0),
            "DCGM_FI_DEV_FB_FREE": np.full(count, 8_000.0),
        }
        # One corrected single-bit error every other week.
        flips = rng.random(count) < 1 / (14 * 86400 / TICK_S)
        counted: dict[str, Values] = {
            "DCGM_FI_DEV_THERMAL_VIOLATION": np.where(world.throttled, 0.4 * TICK_S * 1e9, 0.0),
            "DCGM_FI_DEV_POWER_VIOLATION": np.where(reasons == _POWER, 0.02 * TICK_S * 1e9, 0.0),
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": flips,
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": np.zeros(count),
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": np.zeros(count),
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": np.zeros(count),
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": np.zeros(count),
        }
        for name, value in values.items():
            yield from page.gauge(names.gpu(name), labels, np.asarray(value, float) * _FACTORS[name], ~lost)
        for name, value in counted.items():
            yield from page.counter(
                names.gpu(name), labels, np.asarray(value, float) * _FACTORS[name], ~lost, resets=()
            )
