"""What a Prometheus has of one vLLM server in the last hours, in steps of five minutes. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from probe.core.snapshot import Histogram

Values = Mapping[float, float]  # by the end of the step (wall time, s)
Series = tuple[Mapping[str, str], Sequence[tuple[float, float]]]

# What names a server best, in this order; and what is added where several have the same.
_NAMES = ("pod", "exported_pod", "instance", "exported_instance", "host", "node")
_PLACES = ("cluster", "namespace", "exported_namespace", "model_name", "job")
# Labels in which two records of one server differ: of an HA pair's Prometheus, and of two jobs that scrape one page.
_RECORDS = frozenset(
    {"prometheus_replica", "replica", "receive_replica", "prometheus", "job", "endpoint", "service", "container"}
)
_SAME = 0.02


@dataclass(frozen=True, slots=True)
class GpuPast:
    """A GPU of a server over the whole time. None: unknown. Throttled: the share of time."""

    name: str
    busy: float | None = None
    throttled_for_heat: float | None = None
    throttled_for_power: float | None = None
    xid: float | None = None


@dataclass(frozen=True, slots=True)
class ServerPast:
    """One server. `without`: labels that other servers have and this one has not.

    `values`: by the keys of vllm_past.ROWS. `parts`: of those that have several, by part; histograms' growth in each
    step, by the upper bound. `totals`: growth of whole histograms over all of the time. `restarts`: None if unknown.
    `kv_cache`: its blocks and their size, in words that are the same for replicas that are alike.
    `records`: the labels of further records of the same server, which are not read.
    """

    name: str
    labels: Mapping[str, str]
    prefix: str
    steps: Sequence[float]
    step_s: float
    without: Sequence[str] = ()
    values: Mapping[str, Values] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    totals: Mapping[str, Histogram] = field(default_factory=dict)
    restarts: float | None = None
    kv_cache: str = ""
    gpus: Sequence[GpuPast] = ()
    records: Sequence[Mapping[str, str]] = ()

    @property
    def model(self) -> str:
        return self.labels.get("model_name", "")

    @property
    def seen(self) -> Sequence[float]:
        """Return the steps in which the server was scraped."""
        scrapes = self.values.get("scrapes", {})
        return [at for at in self.steps if scrapes.get(at, 0.0) > 0]

    @property
    def fleet(self) -> tuple[str, str, str]:
        """Return what replicas have in common: the cluster, the namespace and the model."""
        namespace = self.labels.get("namespace") or self.labels.get("exported_namespace", "")
        return self.labels.get("cluster", ""), namespace, self.model

    @property
    def is_gone(self) -> bool:
        """Return whether there is no scrape in the last two steps, and no failed one: its pod was replaced, say."""
        last = set(self.steps[-2:])
        return not last & set(self.seen) and not any(at in last for at in self.values.get("up", {}))

    @property
    def matchers(self) -> str:
        """Return PromQL's matchers of the server's series and of no other's; also of those without its model's name."""
        its = {**dict.fromkeys(self.without, ""), **self.labels}
        return ", ".join(f"{name}={_quoted(value)}" for name, value in sorted(its.items()) if name != "model_name")

    def sum(self, key: str, steps: Iterable[float] | None = None) -> float | None:
        """Return the sum of a value over steps, all by default; None where it is unknown in all of them."""
        known = self.known(key, steps)
        return sum(known) if known else None

    def known(self, key: str, steps: Iterable[float] | None = None) -> list[float]:
        """Return the known values in these steps."""
        values = self.values.get(key, {})
        return [values[at] for at in (self.steps if steps is None else steps) if at in values]

    def histogram(self, latency: str, at: float) -> Histogram | None:
        """Return a histogram's growth in a step, in the buckets that were asked for; None if it is unknown."""
        found = {bound: values[at] for bound, values in self.parts.get(latency, {}).items() if at in values}
        return histogram_of(found)


def histogram_of(counts: Mapping[str, float]) -> Histogram | None:
    """Return the histogram of counts by upper bound; None without the infinite one.

    Growth that Prometheus extrapolates differs a little from bucket to bucket: counts are made to rise.
    """
    try:
        bounds = sorted((float(bound), max(count, 0.0)) for bound, count in counts.items() if isfinite(count))
    except ValueError:
        return None
    if not bounds or bounds[-1][0] != inf:
        return None
    total = bounds[-1][1]
    rising, below = list[tuple[float, float]](), 0.0
    for bound, count in bounds:
        below = max(below, min(count, total))
        rising.append((bound, below))
    return Histogram(tuple(rising), 0.0)


def names_of(servers: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a name for each of these label sets: its pod or instance, with what else is needed to tell it apart."""
    words = [[next((one[name] for name in _NAMES if one.get(name)), "")] for one in servers]
    rest = sorted({name for one in servers for name in one} - set(_PLACES) - set(_NAMES))
    for place in (*_PLACES, *_NAMES, *rest):
        joined = ["/".join(filter(None, each)) for each in words]
        again = {name for name in joined if joined.count(name) > 1 or not name}
        if not again:
            return joined
        for i, name in enumerate(joined):
            its = servers[i].get(place, "")
            alike = {servers[k].get(place, "") for k, other in enumerate(joined) if other == name}
            if name in again and its not in ("", *words[i]) and (len(alike) > 1 or not name):
                words[i].insert(0, its)
    return ["/".join(filter(None, each)) or "vLLM" for each in words]


def once(servers: Sequence[ServerPast]) -> list[ServerPast]:
    """Return the servers, each once: of several records of one server, the one with most scrapes.

    Two are records of one server if they differ only in labels of who recorded, and counted the same.
    """
    kept: list[ServerPast] = []
    for one in sorted(servers, key=lambda each: -(each.sum("scrapes") or 0.0)):
        same = next((i for i, other in enumerate(kept) if _is_same(one, other)), None)
        if same is None:
            kept.append(one)
        else:
            kept[same] = replace(kept[same], records=(*kept[same].records, one.labels))
    return sorted(kept, key=lambda each: each.name)


def _is_same(one: ServerPast, other: ServerPast) -> bool:
    if not {"pod", "exported_pod", "instance", "exported_instance"} & one.labels.keys():
        return False
    differ = {name for name in {*one.labels, *other.labels} if one.labels.get(name) != other.labels.get(name)}
    if "pod" in one.labels and one.labels.get("pod") == other.labels.get("pod"):
        differ -= {"instance"}  # with and without the port, or by name and by address
    if not differ <= _RECORDS:
        return False
    shared = set(one.seen) & set(other.seen)
    counts = [each.sum("generation_tokens", shared) or 0.0 for each in (one, other)]
    return bool(shared) and abs(counts[0] - counts[1]) <= _SAME * max(counts)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
