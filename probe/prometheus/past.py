"""The past of every vLLM server in a Prometheus, asked for in questions that each have all servers. No load.

In: a Prometheus, and how far back. Out: a ServerPast for each server. prometheus-api-client's MetricRangeDataFrame is
not used: it needs pandas, and a frame of 50 servers is looked up by label set as a dict is.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from probe.core.errors import TargetError
from probe.core.foreign_json import JsonLimits
from probe.core.objectives import Objectives
from probe.core.request import Outcome
from probe.core.snapshot import Histogram
from probe.observe.server_past import GpuPast, ServerPast, histogram_of, names_of, once
from probe.prometheus.gpu_past import gpus_of
from probe.prometheus.loop_adapter import AnswerLimits
from probe.prometheus.queries import Prometheus, Ranges
from probe.scrape import vllm_past
from probe.scrape.vllm_past import MODEL, PREFIXES, ROWS, STEP_S, WITHIN, Scope

MAX_SERVERS = 500
# Half a million samples: 500 servers by the steps of a day and a part, or 50 by those of a week and three bounds.
_LIMITS = AnswerLimits(60.0, JsonLimits(64 * 2**20, 4_000_000))
_AT_ONCE = 3  # questions, so that others' dashboards still get answers
_LEAST_SCRAPES = 4  # in a window, so that one lost scrape leaves a growth
_LATENESS_S = 30.0  # of a Prometheus that receives by remote write

Key = tuple[str, ...]


class PastReader:
    """Asks one Prometheus about the `seconds` before `now_s`."""

    def __init__(self, prometheus: Prometheus, url: str, now_s: float, seconds: float, matchers: str = "") -> None:
        self._prometheus, self._url = prometheus, url
        end_s = (now_s - _LATENESS_S) // 60 * 60
        count = max(round(seconds / STEP_S), 1)
        self._steps = [end_s - (count - 1 - i) * STEP_S for i in range(count)]
        self._seconds = count * STEP_S
        self._scope = Scope(matchers)
        self._window_s = float(STEP_S)
        self.gpu_error: str | None = None
        self._turn = asyncio.Semaphore(_AT_ONCE)

    @property
    def end_s(self) -> float:
        return self._steps[-1]

    async def read(self, objectives: Objectives, on_found: Callable[[int], None] = lambda _: None) -> list[ServerPast]:
        """Return all servers, sorted by name. Raises TargetError without an answer, and where there are none."""
        found = await self._find()
        if not found:
            matching = f" that match {self._scope.matchers}" if self._scope.matchers else ""
            raise TargetError(
                f"{self._url}: no series of vLLM{matching} in that time ({PREFIXES[0]}num_requests_running); does this"
                " Prometheus scrape them, and keep them for so long?",
                Outcome.NOT_FOUND,
            )
        on_found(len(found))
        interval_s = await self._interval_s()
        self._window_s = max(float(STEP_S), _LEAST_SCRAPES * interval_s)
        servers = {self._key(one.labels): one for one in found}
        try:
            await self._fill(servers, objectives)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        kept = once(list(servers.values()))
        names = names_of([one.labels for one in kept])
        named = [replace(one, name=name) for one, name in zip(kept, names, strict=True)]
        gpus: Mapping[str, Sequence[GpuPast]] = {}
        try:
            gpus = await gpus_of(self._prometheus, named, self.end_s, self._seconds, _LIMITS)
        except TargetError as error:
            self.gpu_error = str(error)
        return sorted((replace(one, gpus=gpus.get(one.name, ())) for one in named), key=lambda one: one.name)

    async def _find(self) -> list[ServerPast]:
        """Find the servers, and the names that their series have."""
        answer = await self._prometheus.vector(vllm_past.found_query(self._scope, self._seconds), self.end_s, _LIMITS)
        found: dict[tuple[tuple[str, str], ...], str] = {}
        for labels, _ in answer:
            own = {name: value for name, value in labels.items() if name not in WITHIN and name != "__name__"}
            prefix = next((one for one in PREFIXES if labels.get("__name__", "").startswith(one)), PREFIXES[0])
            key = tuple(sorted(own.items()))
            if key not in found or PREFIXES.index(prefix) < PREFIXES.index(found[key]):
                found[key] = prefix
        if len(found) > MAX_SERVERS:
            raise TargetError(
                f"{self._url}: {len(found)} servers of vLLM, at most {MAX_SERVERS}; choose some with --match, such as"
                " --match 'namespace=\"chat\"'",
                Outcome.BAD_REQUEST,
            )
        prefixes = [one for one in PREFIXES if one in found.values()]
        names = {name for key in found for name, _ in key}
        self._scope = Scope(self._scope.matchers, prefixes, sorted(names))
        return [
            ServerPast("", own, prefix, self._steps, STEP_S, sorted(names - own.keys()))
            for own, prefix in ((dict(key), prefix) for key, prefix in found.items())
        ]

    async def _interval_s(self) -> float:
        """Return the time between two scrapes of the server that is scraped most rarely, by its best minutes."""
        row = next(row for row in ROWS if row.key == "scrapes")
        rows = await self._ranges(vllm_past.row_query(row, self._scope, STEP_S))
        most = [max(value for _, value in values) for _, values in rows if values]
        return STEP_S / max(min(most, default=1.0), 1.0)

    async def _fill(self, servers: dict[Key, ServerPast], objectives: Objectives) -> None:
        """Ask all questions about the servers."""
        found = _Answers(_Finder(servers, self._scope.labels))
        jobs = {one.labels.get("job", "") for one in servers.values()}
        jobs = set() if "" in jobs else jobs
        limits = {name: one.within_s for name, one in objectives.latencies().items() if name in vllm_past.LATENCIES}
        async with asyncio.TaskGroup() as group:
            for row in ROWS:
                query = vllm_past.row_query(row, self._scope, self._window_s)
                group.create_task(self._ask(found, row.key, query, row.part))
            errors = vllm_past.http_errors_query(self._scope, jobs, self._window_s)
            group.create_task(self._ask(found, "http_errors", errors))
            if jobs:
                group.create_task(self._ask(found, "up", vllm_past.up_query(self._scope, jobs, STEP_S)))
            for key in (*limits, *vllm_past.LENGTHS):
                group.create_task(self._ask_histogram(found, key, limits.get(key)))
            restarts = vllm_past.restarts_query(self._scope, self._seconds)
            found.restarts |= {
                server: value for labels, value in await self._vector(restarts) for server in found.servers(labels)
            }
            for labels, _ in await self._vector(vllm_past.kv_query(self._scope, self._seconds)):
                words = " x ".join(labels.get(name, "") for name in vllm_past.KV_LABELS)
                for server in found.servers(labels):
                    found.kv_caches[server].add(words)
        scale = STEP_S / self._window_s
        for server, one in servers.items():
            servers[server] = found.given_to(server, one, scale)

    async def _ask(self, found: "_Answers", name: str, query: str, part: str = "") -> None:
        for labels, its in await self._ranges(query):
            found.add(labels, name, dict(its), labels.get(part, "") if part else None)

    async def _ask_histogram(self, found: "_Answers", name: str, within_s: float | None) -> None:
        """Ask for a histogram over all of the time, and in each step for its buckets next to an objective."""
        counts: dict[Key, dict[str, float]] = defaultdict(dict)
        for labels, value in await self._vector(vllm_past.buckets_query(self._scope, name, (), self._seconds)):
            for server in found.servers(labels):
                counts[server][labels.get("le", "")] = value
        for labels, value in await self._vector(vllm_past.sum_query(self._scope, name, self._seconds)):
            for server in found.servers(labels):
                if (one := histogram_of(counts[server])) is not None:
                    found.totals[server][name] = Histogram(one.buckets, max(value, 0.0))
        if within_s is not None and (bounds := _bounds(counts.values(), within_s)):
            await self._ask(found, name, vllm_past.buckets_query(self._scope, name, bounds, self._window_s), "le")

    async def _ranges(self, query: str) -> list[Ranges]:
        async with self._turn:
            return await self._prometheus.ranges(query, self._steps[0], self.end_s, STEP_S, _LIMITS)

    async def _vector(self, query: str) -> list[tuple[Mapping[str, str], float]]:
        async with self._turn:
            return await self._prometheus.vector(query, self.end_s, _LIMITS)

    def _key(self, labels: Mapping[str, str]) -> Key:
        return tuple(labels.get(name, "") for name in self._scope.labels)


def _bounds(counted: Iterable[Mapping[str, float]], within_s: float) -> list[str]:
    """Return the bounds next to an objective, of each server as its own are, as Prometheus writes them."""
    chosen: set[str] = set()
    for counts in counted:
        bounds = {float(bound): bound for bound in counts if bound}
        below = [bound for bound in bounds if bound <= within_s]
        above = [bound for bound in bounds if within_s <= bound < inf]
        chosen |= {bounds[one] for one in (inf, max(below, default=-1.0), min(above, default=-1.0)) if one in bounds}
    return sorted(chosen)


_COUNTED = {row.key for row in ROWS if row.function in ("increase", "count_over_time")} | {
    "http_errors",
    *vllm_past.LATENCIES,
}


def _scaled(key: str, values: Mapping[float, float], scale: float) -> dict[float, float]:
    """Return what was counted in a step, where windows are longer than a step."""
    return {at: value * scale for at, value in values.items()} if key in _COUNTED and scale < 1 else dict(values)


class _Answers:
    """What Prometheus has answered so far, by server."""

    def __init__(self, find: "_Finder") -> None:
        self.servers = find
        self._values: dict[Key, dict[str, dict[float, float]]] = defaultdict(dict)
        self._parts: dict[Key, dict[str, dict[str, dict[float, float]]]] = defaultdict(lambda: defaultdict(dict))
        self.totals: dict[Key, dict[str, Histogram]] = defaultdict(dict)
        self.restarts: dict[Key, float] = {}
        self.kv_caches: dict[Key, set[str]] = defaultdict(set)

    def add(self, labels: Mapping[str, str], name: str, values: dict[float, float], part: str | None) -> None:
        for server in self.servers(labels):
            if part is None:
                self._values[server][name] = values
            else:
                self._parts[server][name][part] = values

    def given_to(self, key: Key, one: ServerPast, scale: float) -> ServerPast:
        """Return the server with its answers. `scale`: a step by the window in which values were counted."""
        parts = self._parts[key]
        return replace(
            one,
            values={name: _scaled(name, its, scale) for name, its in self._values[key].items()},
            parts={name: {part: _scaled(name, its, scale) for part, its in parts[name].items()} for name in parts},
            totals=self.totals[key],
            restarts=self.restarts.get(key),
            kv_cache=" + ".join(sorted(self.kv_caches[key])),
        )


class _Finder:
    """Finds the servers of a series by its labels: exactly, or without the model's name, which some series lack."""

    def __init__(self, servers: Iterable[Key], labels: Sequence[str]) -> None:
        self._labels = labels
        self._exact = set(servers)
        self._without: dict[Key, list[Key]] = defaultdict(list)
        self._at = labels.index(MODEL) if MODEL in labels else -1
        for key in self._exact:
            self._without[self._short(key)].append(key)

    def __call__(self, labels: Mapping[str, str]) -> Sequence[Key]:
        key = tuple(labels.get(name, "") for name in self._labels)
        if key in self._exact:
            return (key,)
        return self._without.get(key, ()) if self._at >= 0 and not key[self._at] else ()

    def _short(self, key: Key) -> Key:
        return tuple("" if i == self._at else value for i, value in enumerate(key))
