"""How a series is declared, and the meanings of sources and labels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from probe.core import objectives as slo
from probe.core.reasons import UNJUDGED
from probe.scrape import engines

PREFIX = "kneewatch_"
# The labels that many series have.
TARGET = ("target",)
LAG_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class Series:
    """One series. `name` is the name in queries: counters end in `_total`, histograms have no suffix."""

    name: str
    kind: str  # counter, gauge or histogram
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # empty for a histogram with the server's own bounds
    stability: str = "stable"
    source: str = ""  # a key of SOURCES

    @property
    def bucket(self) -> str:
        """Return the name of the histogram's bucket series."""
        return f"{self.name}_bucket"


# Origin of the series, with its description in docs/metrics.md.
SOURCES: Mapping[str, str] = {
    "client": "Kneewatch's own requests, timed by Kneewatch: what a user of the server would see",
    "server": "the server's own metrics, under names that do not change with its version",
    "users": "user traffic: the server's metrics minus Kneewatch's own requests",
    "joined": "comparisons of client, server and GPU; absent while they cannot be made",
    "gpu": "dcgm-exporter, or the driver of this machine (NVML), with dcgm-exporter's labels. The names are none of its"
    " own: a sum over one of those counts each GPU once",
    "capacity": "capacity runs and forecasts: the knee, by the last one that found it",
    "monitor": "Kneewatch itself",
}
OBJECTIVES = f"{', '.join((slo.AVAILABILITY, *slo.LATENCIES))} or {slo.ALL}"
_UNJUDGED = [row.verdict for row in UNJUDGED]
# Meanings of the labels. There are no others; each has few values.
LABELS: Mapping[str, str] = {
    "target": "the target's name in the configuration",
    "model": "the model's name in the request; \"other\" from a target's ninth name on",
    "workload": "the workload's name in the configuration, or users: what they send",
    "traffic": "why a request was sent: canary, capacity, ondemand or answer (to a question with a known answer)",
    "cause": "what made the event loop stand: held (by a call) or starved (of a processor)",
    "outcome": "the outcome of a request or a capacity run",
    "objective": OBJECTIVES,
    "slo": "the name of the target's objectives in the configuration",
    "verdict": f"valid, or why a step is not judged: {', '.join(_UNJUDGED[:-1])} or {_UNJUDGED[-1]}",
    "bottleneck": "max_num_seqs, kv_cache, front_end, prefill, memory_bandwidth, host or client",
    "kind": "kind of tokens: prompt or output",
    "reason": "the reason, a short word that does not change between versions",
    "source": "histogram: the server's own; counters: only sum and count are known",
    "engine": f"{', '.join(engines.NAMES[:-1])} or {engines.NAMES[-1]}",
    "version": "version of the server, or of Kneewatch",
    "simulator": "`compiled` or `interpreted`",
    "engine_index": "the server's number for a data-parallel engine",
    "adapter": "a LoRA adapter's name",
    "role": "prefill or decode",
    "method": "the method of the comparison or the detection",
    "origin": "local_compute, local_cache_hit or external_kv_transfer, in vLLM's words",
    "tier": "device, host, disk, p2p or external_unspecified, in vLLM's words",
    "stage": "waiting_to_start, in_progress or completed_waiting, in vLLM's words",
    "up_to_tokens": "the most tokens that the prompts have: 256, 1024, 4096, 16384, 65536 or inf",
    "sign": "usage, waiting, preemptions, rejections or late",
    "mode": "forecast (no probe load), empirical (steps only), verified (steps that agree with a model) or unverified"
    " (steps that did not verify the model)",
    "hash": "digest of the configuration without its secrets",
    "pages": "`web_external_url` of the configuration",
    "grafana": "`grafana_url` of the configuration",
    "discovery": "the name of the configuration's entry that discovers targets",
    "task": "canary, scrape, gpu, forecast, capacity or history",
    "gpu": "index of the GPU on its node",
    "UUID": "UUID of the GPU; for a MIG instance, of the GPU that contains it",
    "device": "device name, such as nvidia0",
    "modelName": "the GPU's model",
    "Hostname": "the node",
    "GPU_I_ID": "ID of a MIG instance",
    "GPU_I_PROFILE": "profile of the MIG instance, such as 1g.10gb",
    "pod": "pod that uses the GPU, by dcgm-exporter",
    "namespace": "namespace of that pod",
    "container": "container of that pod",
}


def declare(  # noqa: PLR0917 - a table reads best in columns
    source: str,
    kind: str,
    name: str,
    help_: str,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
    *,
    stability: str = "stable",
) -> Series:
    """Return one of Kneewatch's own series; `name` is without the prefix."""
    return Series(PREFIX + name, kind, help_, labels, buckets, stability, source)


def with_bounds(series: Series, thresholds: Iterable[float]) -> tuple[float, ...]:
    """Return the histogram's bounds with every threshold included, so that objectives are counted, not interpolated."""
    return tuple(sorted({*series.buckets, *thresholds}))
