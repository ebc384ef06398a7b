"""Every series that Kneewatch exports for a target, as label sets and values.

In: exporters/names.py and the rules. Out: the series of a target and their values over a range of time. Some rise with
a daily cycle, like counters and buckets; some wander, like gauges; some never change. The time of a query depends on
how many samples it reads and how they are packed, not on their meaning.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from prometheus_client.utils import floatToGoString

from alerts.build import FILE, render
from alerts.windows import DAY_S
from benchmarks.alerts.rules import rules_of
from benchmarks.backfill import Floats
from exporters import names
from exporters.capacity import OUTCOMES, VERDICTS
from exporters.names import Series
from probe.capacity.model.bottleneck import BOTTLENECKS
from probe.capacity.trend.change_detection import METHODS
from probe.core import reasons
from probe.core.objectives import LATENCIES
from probe.core.request import Outcome
from probe.scrape.page_scraper import REASONS
from probe.simulator import metrics_model as buckets

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GPUS = 4  # of a target
_ENGINES = 2
_LABELS: Mapping[str, Sequence[str]] = {
    "model": (MODEL,), "workload": ("chat",), "traffic": ("canary", "capacity"), "objective": LATENCIES,
    "outcome": tuple(Outcome), "verdict": VERDICTS,
    "bottleneck": BOTTLENECKS, "kind": ("prompt", "output"), "source": ("histogram",), "engine": ("vllm",),
    "version": ("0.32.0",), "engine_index": tuple(map(str, range(_ENGINES))), "adapter": ("sql", "chat"),
    "sign": ("usage", "waiting", "preemptions", "rejections"), "mode": ("verified", "forecast"),
    "hash": ("0011223344556677",), "task": ("canary", "scrape", "gpu", "forecast", "capacity"),
}  # fmt: skip
# Where a label's values depend on the series.
_OF: Mapping[tuple[Series, str], Sequence[str]] = {
    (names.GOOD_REQUESTS, "objective"): ("availability", *LATENCIES, "all"),
    (names.OBJECTIVE_RATIO, "objective"): ("availability", *LATENCIES),
    (names.CAPACITY_RUNS, "outcome"): OUTCOMES,
    (names.SERVER["waiting_by_reason"], "reason"): ("capacity", "deferred"),
    (names.SERVER_SCRAPE_ERRORS, "reason"): REASONS,
    (names.CAPACITY_REFUSALS, "reason"): tuple(row.word for row in reasons.REFUSALS),
    (names.GUARD_TRIPS, "reason"): tuple(row.word for row in reasons.TRIPS),
    (names.TTFT_GAP, "method"): ("matched", "mean"),
    (names.KNEE_SHIFTED, "method"): METHODS,
}
# A histogram without bounds of its own has the server's: vLLM's.
_BOUNDS: Mapping[Series, Sequence[float]] = {
    names.SERVER["ttft"]: buckets.TTFT_S, names.USERS_TTFT: buckets.TTFT_S, names.SERVER["itl"]: buckets.TOKEN_S,
    names.USERS_E2E: buckets.REQUEST_S,
    names.SERVER["tpot"]: buckets.TOKEN_S, names.USERS_TPOT: buckets.TOKEN_S,
    names.USERS_PROMPT_TOKENS: buckets.one_two_five(32_768), names.USERS_OUTPUT_TOKENS: buckets.one_two_five(32_768),
    names.SERVER["iteration_tokens"]: buckets.STEP_TOKENS, names.SERVER_PREEMPTIONS_PER_REQUEST: (0, 1, 2, 5, 10, 20),
}  # fmt: skip
_CONSTANT = frozenset(
    {
        names.OBJECTIVE_RATIO, names.OBJECTIVE_SECONDS, names.OBJECTIVE_WINDOW, names.USERS_OBJECTIVE_SECONDS,
        names.SERVER_INFO,
        names.SERVER_STARTED, names.BUILD_INFO, names.CONFIG_HASH, names.CONFIG_TAKEN, names.STARTED,
        names.TASK_INTERVAL, names.SERVER_UP, names.GPU_UP, names.GPU_COUNT, names.AMBIGUOUS, names.STALLED,
        names.KNEE_SHIFTED, names.BOTTLENECK, names.CAPACITY_FINGERPRINT, names.KNEE_BASELINE_SINCE, names.TARGET_UP,
        names.SERVER_ADAPTER, names.KV_PRESSURE,
    }
)  # fmt: skip
_NIGHTLY = frozenset({names.CAPACITY_RPS, names.CAPACITY_RPS_LOWER, names.CAPACITY_RPS_UPPER, names.CAPACITY_TOKENS})
_WHOLE = frozenset(
    {names.SERVER["running"], names.SERVER["waiting_by_reason"], names.ENGINE["running"], names.ENGINE["waiting"]}
)


@dataclass(frozen=True, slots=True)
class Row:
    """A series without its target. `way` is how it changes; `share` is the share of samples below a bucket's bound."""

    labels: Mapping[str, str]
    of_target: bool
    way: str  # constant, nightly, wander, whole, rise
    pace: float = 0.0  # a second, of what rises; the level, of what does not
    share: float = 1.0


def rows() -> list[Row]:
    """Return all series of a target, those of Kneewatch itself, and those that the rules record."""
    rng = np.random.default_rng(0)
    found = [row for series in names.ALL for row in _rows(series, rng)]
    recorded = dict.fromkeys(rule.record for rule in rules_of(render()[FILE]) if rule.record)
    for name in recorded:
        labels = {"__name__": name}
        if name.startswith("target_workload:"):
            labels["workload"] = "chat"
        if name.startswith("target_model_workload:"):
            labels |= {"workload": "chat", "model": MODEL}
        if name.startswith("target_model:"):
            labels |= {"model": MODEL, "kind": "prompts", "le": "+Inf"}  # of users' lengths
        found.append(Row(labels, of_target=True, way="wander", pace=0.8))
    return found


def labels_of(row: Row, target: str) -> dict[str, str]:
    """Return the labels of a target's series, as scraped from one Kneewatch that watches all targets."""
    mine = {"target": target} if row.of_target else {}
    gpu = {"UUID": f"GPU-{target}-{row.labels['gpu']}", "Hostname": f"node-{target}"} if "gpu" in row.labels else {}
    scraped = {} if ":" in row.labels["__name__"] else {"job": "kneewatch", "instance": "kneewatch:9876"}
    return {**row.labels, **mine, **gpu, **scraped}


def values(rows: Sequence[Row], times: Floats, rng: np.random.Generator, carry: Floats) -> Floats:
    """Return a row of values at `times` (s) per series. `carry` has the last values of counters and is updated."""
    step = times[1] - times[0]
    cycle = 0.55 + 0.45 * np.sin(2 * np.pi * times / DAY_S)
    found = np.empty((len(rows), len(times)))
    drawn: dict[tuple[str, ...], Floats] = {}
    for i, row in enumerate(rows):
        if row.way == "constant":
            found[i] = row.pace
        elif row.way == "nightly":
            found[i] = row.pace * (1 + 0.03 * np.sin(1 + times // DAY_S))
        elif row.way == "rise":
            # The buckets of one histogram are of the same requests.
            key = (row.labels["__name__"].removesuffix("_bucket"), str(row.pace), row.labels.get("traffic", ""))
            if key not in drawn:
                drawn[key] = rng.poisson(row.pace * step * cycle).astype(np.float64)
            grown = np.floor(drawn[key] * row.share + rng.random() * (0 < row.share < 1))
            found[i] = carry[i] + np.cumsum(grown)
            carry[i] = found[i, -1]
        else:
            wander = np.cumsum(rng.normal(0, 0.01, len(times)))
            level = row.pace * cycle * np.exp(wander - wander.mean())
            found[i] = np.round(level) if row.way == "whole" else level
    return found


def _rows(series: Series, rng: np.random.Generator) -> Iterator[Row]:
    kinds = [label for label in series.labels if label != "target" and label not in _GPU_LABELS]
    choices = [_OF.get((series, label), _LABELS.get(label, ("",))) for label in kinds]
    of_target = "target" in series.labels
    for chosen in product(*choices):
        labels = {"__name__": series.name, **dict(zip(kinds, chosen, strict=True))}
        if series.source == "gpu" and "gpu" in series.labels:
            for index in range(GPUS):
                gpu = {"gpu": str(index), "device": f"nvidia{index}", "modelName": "NVIDIA H100 80GB HBM3"}
                way = "rise" if series.kind == "unknown" else "wander"
                yield Row({**labels, **gpu}, of_target, way, float(rng.uniform(0.1, 2000)))
        elif series.kind == "histogram":
            yield from _histogram(series, labels, of_target, float(rng.choice([1 / 15, 4.0])))
        elif series.kind == "counter":
            busy = labels.get("outcome", "ok") == "ok" and "reason" not in labels
            yield Row(labels, of_target, "rise", float(rng.choice([1 / 15, 3.0, 900.0])) if busy else 2e-5)
        elif series in _CONSTANT:
            yield Row(labels, of_target, "constant", 1.0)
        elif series in _NIGHTLY and labels["mode"] != "forecast":
            yield Row(labels, of_target, "nightly", 20.0)
        else:
            yield Row(labels, of_target, "whole" if series in _WHOLE else "wander", float(rng.uniform(0.2, 60)))


_GPU_LABELS = frozenset({"gpu", "UUID", "device", "modelName", "Hostname", "GPU_I_ID", "GPU_I_PROFILE"}) | frozenset(
    {"pod", "namespace", "container"}
)


def _histogram(series: Series, labels: Mapping[str, str], of_target: bool, pace: float) -> Iterator[Row]:  # noqa: FBT001
    # Step-up load has no latencies: they are in its results.
    if labels.get("traffic") == "capacity":
        return
    bounds = (*(series.buckets or _BOUNDS.get(series, buckets.REQUEST_S)), np.inf)
    for i, bound in enumerate(bounds):
        share = min(1.0, (i / (0.6 * len(bounds))) ** 3)
        le = {"le": floatToGoString(bound)}  # type: ignore[no-untyped-call]
        yield Row({**labels, **le, "__name__": series.bucket}, of_target, "rise", pace, share)
    yield Row({**labels, "__name__": f"{series.name}_count"}, of_target, "rise", pace)
    yield Row({**labels, "__name__": f"{series.name}_sum"}, of_target, "rise", pace)
