"""What a Prometheus has stored of a vLLM server's page, to ServerSnapshots. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from prometheus_client.samples import Sample

from probe.core.server_values import BY_KEY, ValueKind
from probe.core.snapshot import ServerSnapshot
from probe.scrape import vllm
from probe.scrape.metrics_parser import first
from probe.scrape.reads import names

# What a forecast needs of the past: gauges, counters, and of histograms their sums and counts.
_FORECAST_HISTOGRAMS = ("ttft", "itl", "prefill", "prompt_length", "iteration_tokens")
_FORECAST_VALUES = (
    "running", "waiting", "kv_cache_usage", "preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_hits",
    "kv_cache_tokens", "estimated_flops", "estimated_read_bytes", "estimated_write_bytes",
)  # fmt: skip
_HISTOGRAMS = {name for key in vllm.READS if BY_KEY[key].kind is ValueKind.HISTOGRAM for name in names(vllm.READS, key)}
HISTORY = (
    *(name for key in _FORECAST_VALUES for name in names(vllm.READS, key)), *vllm.STEP_SERIES,
    *(name + part for key in _FORECAST_HISTOGRAMS for name in names(vllm.READS, key) for part in ("_sum", "_count")),
)  # fmt: skip
_OF, _SCRAPED = "kneewatch_of", "kneewatch_scraped"
_Series = tuple[Mapping[str, str], Sequence[tuple[float, float]]]


# The length of one question, in an address whose line may have 8 kB at nginx.
_LONGEST = 3000


def history_queries(matchers: str, prefix: str = "vllm:") -> list[str]:
    """Return PromQL for HISTORY and the times of the scrapes, in several questions. `prefix`: how vLLM's names begin.

    A range query returns the last scrape before each of its steps, but not its time: with scrapes every 20 s, the
    tokens of 20 s would appear in one step of 15 s, and none in another.
    """
    # `or` compares labels without the name, so each needs a label that no other has. Exact names, because Google's
    # Managed Prometheus takes no expression for them.
    own = [_marked(f"{name.replace('vllm:', prefix, 1)}{{{matchers}}}", _OF, i) for i, name in enumerate(HISTORY)]
    own.append(_marked(f"timestamp({vllm.RUNNING[0].replace('vllm:', prefix, 1)}{{{matchers}}})", _SCRAPED, 0))
    questions = [own[0]]
    for one in own[1:]:
        joined = f"{questions[-1]} or {one}"
        if len(joined) <= _LONGEST:
            questions[-1] = joined
        else:
            questions.append(one)
    return questions


def _marked(expression: str, label: str, value: int) -> str:
    return f'label_replace({expression}, "{label}", "{value}", "", "")'


def from_history(series: Iterable[_Series], prefix: str = "vllm:") -> list[ServerSnapshot]:
    """Return a snapshot for each scrape in the answers to `history_queries`, oldest first.

    `series`: labels (with the name as `__name__`) and values by wall time (s). A scrape without gauges is left out.
    """
    read: dict[float, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    scraped: dict[float, float] = {}
    for labels, values in series:
        own = {key: value for key, value in labels.items() if key not in ("__name__", _OF)}
        name = _own_name(labels, prefix)
        base = name.removesuffix("_count")
        if base != name and base in _HISTOGRAMS:
            name, own = f"{base}_bucket", {**own, "le": "+Inf"}  # all of its samples lie below infinity
        if _SCRAPED in labels:
            scraped.update(values)
            continue
        for at_s, value in values:
            if math.isfinite(value):
                read[at_s][name].append(Sample(name, own, value))
    moments = sorted(at_s for at_s, samples in read.items() if first(samples, vllm.RUNNING))
    found: dict[float, ServerSnapshot] = {}
    for at_s in moments:
        scraped_s = scraped.get(at_s, at_s)
        if scraped_s not in found:
            found[scraped_s] = replace(vllm.ENGINE.snapshot(read[at_s]), at_ns=round(scraped_s * 1e9), wall_s=scraped_s)
    return list(found.values())


def _own_name(labels: Mapping[str, str], prefix: str) -> str:
    name = labels.get("__name__", "")
    return f"vllm:{name.removeprefix(prefix)}" if name.startswith(prefix) else name


def differing_labels(series: Iterable[_Series], prefix: str = "vllm:") -> dict[str, list[str]]:
    """Return the labels in which series of one moment differ, with their values; but for `engine` and `pid`.

    Series that differ are of several servers, which must not be added up.
    """
    at: dict[float, list[Mapping[str, str]]] = defaultdict(list)
    for labels, values in series:
        if _own_name(labels, prefix) in vllm.RUNNING:
            for at_s, _ in values:
                at[at_s].append(labels)
    for together in at.values():
        names = {name for labels in together for name in labels} - {"engine", "pid"}
        found = {name: sorted({labels.get(name, "") for labels in together}) for name in sorted(names)}
        if differ := {name: values for name, values in found.items() if len(values) > 1}:
            return differ
    return {}
