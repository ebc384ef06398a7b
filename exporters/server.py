"""The server's own metrics under names that do not change with its version, and the part of user traffic."""

from collections.abc import Mapping

from exporters import names
from exporters.names import Series
from exporters.rendered_samples import RenderedSamples, SampleLines
from probe.core import server_values
from probe.core.objectives import LATENCIES, Objectives
from probe.core.server_values import VALUES, Value, ValueKind
from probe.core.snapshot import Histogram, ServerSnapshot, UserTotals
from probe.observe.counted_totals import CountedTotals, by_engine
from probe.observe.histogram_arithmetic import count_within

_PLAIN = [value.key for value in server_values.plain() if value.series]
_LABELLED = [value for value in VALUES if value.label and value.series]
_HISTOGRAMS = [value.key for value in VALUES if value.kind is ValueKind.HISTOGRAM and value.series]
_USERS_HISTOGRAMS: tuple[tuple[Series, str], ...] = (
    *((series, name) for name, series in names.USERS_LATENCIES.items()),
    (names.USERS_PROMPT_TOKENS, "prompt_length"),
    (names.USERS_OUTPUT_TOKENS, "output_length"),
)
_STATE = (names.SERVER_UP, names.SERVER_SCRAPE_ERRORS, names.SERVER_SCRAPE_SECONDS, names.SERVER_SCRAPE_BYTES)
_UNKNOWN_PART = "unknown"


class ServerExporter:
    """The last snapshot of each target's server. Without one there are no values, only `scrape_up` 0."""

    def __init__(self, targets: tuple[str, ...], reasons: tuple[str, ...]) -> None:
        """Start with `targets`; `reasons` are the causes of failed scrapes."""
        self.relay = RenderedSamples(
            (
                *_STATE,
                names.SERVER_ROLE,
                names.SERVER_INFO,
                names.SERVER_STARTED,
                names.SERVER_ASLEEP,
                names.SERVER_ADAPTER,
                names.SERVER_PREEMPTIONS_PER_REQUEST,
                *(names.SERVER[key] for key in (*_PLAIN, *(value.key for value in _LABELLED), *_HISTOGRAMS)),
                *names.ENGINE.values(),
                *names.ENGINE_LATENCIES.values(),
            )
        )
        self._reasons = reasons
        self._errors: dict[str, dict[str, int]] = {}
        self._roles: dict[str, str | None] = {}
        self._totals: dict[str, CountedTotals] = {}
        for target in targets:
            self.add(target)

    def add(self, target: str, role: str | None = None) -> None:
        """Start the counters of a target at zero. `role`: prefill or decode, None for a server that does both."""
        self._errors[target] = dict.fromkeys(self._reasons, 0)
        self._roles[target] = role
        self._totals[target] = CountedTotals()
        self.relay.put(target, self._state(target))

    def forget(self, target: str) -> None:
        """Remove the series of a target that is no longer watched."""
        self._errors.pop(target, None)
        self._roles.pop(target, None)
        self._totals.pop(target, None)
        self.relay.forget(target)

    def observe(self, target: str, snapshot: ServerSnapshot, seconds: float, page_bytes: int) -> None:
        """Publish a snapshot, and how long (s) the scrape took. Counters of several processes are published as totals
        that do not fall.
        """
        snapshot = self._totals[target].add(snapshot)
        lines = self._state(target)
        lines.value(names.SERVER_UP, [target], 1.0)
        lines.value(names.SERVER_SCRAPE_SECONDS, [target], seconds)
        lines.value(names.SERVER_SCRAPE_BYTES, [target], page_bytes)
        lines.value(names.SERVER_INFO, [target, snapshot.engine, snapshot.version], 1.0)
        lines.value(names.SERVER_STARTED, [target], snapshot.started_s)
        if snapshot.is_asleep is not None:
            lines.value(names.SERVER_ASLEEP, [target], float(snapshot.is_asleep))
        for key in _PLAIN:
            lines.value(names.SERVER[key], [target], snapshot.value(key))
        for value in _LABELLED:
            for part, count in _parts(snapshot, value).items():
                lines.value(names.SERVER[value.key], [target, part], count)
        for adapter in snapshot.adapters:
            lines.value(names.SERVER_ADAPTER, [target, adapter], 1.0)
        _write_engines(lines, target, snapshot)
        for key in _HISTOGRAMS:
            lines.histogram(names.SERVER[key], [target], snapshot.histograms.get(key))
        source, preemptions = _preemptions_per_request(snapshot)
        lines.histogram(names.SERVER_PREEMPTIONS_PER_REQUEST, [target, source], preemptions)
        self.relay.put(target, lines)

    def count_failure(self, target: str, reason: str) -> None:
        """Count a failed scrape, and remove the previous snapshot: stale values would look current."""
        self._errors[target][reason] += 1
        lines = self._state(target)
        lines.value(names.SERVER_UP, [target], 0.0)
        self.relay.put(target, lines)

    def _state(self, target: str) -> SampleLines:
        lines = SampleLines()
        if (role := self._roles[target]) is not None:
            lines.value(names.SERVER_ROLE, [target, role], 1.0)
        for reason, count in self._errors[target].items():
            lines.value(names.SERVER_SCRAPE_ERRORS, [target, reason], count)
        return lines


def _write_engines(lines: SampleLines, target: str, snapshot: ServerSnapshot) -> None:
    for index, engine in snapshot.by_engine.items():
        for key, series in names.ENGINE.items():
            lines.value(series, [target, index], getattr(engine, key))
    for index, counted in by_engine(snapshot):
        for key, series in names.ENGINE_LATENCIES.items():
            if index in snapshot.by_engine:
                lines.histogram(series, [target, index], _sum_and_count(counted.histograms.get(key)))


class UserTrafficExporter:
    """User traffic of each target. Its counters keep their values while a server cannot be scraped."""

    def __init__(self, objectives: Mapping[str, Objectives]) -> None:
        """Judge user requests by the `objectives` of each target."""
        self._objectives = dict(objectives)
        plain = (names.USERS_REQUESTS, names.USERS_TOKENS, names.USERS_GOOD, names.USERS_OBJECTIVE_SECONDS)
        self.relay = RenderedSamples((*plain, *(series for series, _ in _USERS_HISTOGRAMS)))

    def add(self, target: str, objectives: Objectives) -> None:
        """Add a target."""
        self._objectives[target] = objectives

    def forget(self, target: str) -> None:
        """Remove the series of a target that is no longer watched."""
        self._objectives.pop(target, None)
        self.relay.forget(target)

    def observe(self, target: str, totals: UserTotals) -> None:
        lines = SampleLines()
        for outcome, count in totals.outcomes.items():
            lines.value(names.USERS_REQUESTS, [target, outcome], count)
        lines.value(names.USERS_TOKENS, [target, "prompt"], totals.prompt_tokens)
        lines.value(names.USERS_TOKENS, [target, "output"], totals.output_tokens)
        objectives = self._objectives[target]
        limits = objectives.latencies()
        for series, key in _USERS_HISTOGRAMS:
            # Of an unusual latency, twenty series that only its objective needs.
            if key not in LATENCIES or LATENCIES[key].usual or key in limits:
                lines.histogram(series, [target], totals.histograms.get(key))
        if objectives.availability is not None and "failed" in totals.outcomes:
            lines.value(names.USERS_GOOD, [target, "availability"], totals.outcomes.get("ok", 0.0))
        for name, objective in limits.items():
            if name not in names.USERS_LATENCIES:
                continue
            bound_s, good = count_within(totals.histograms.get(name), objective.within_s)
            lines.value(names.USERS_OBJECTIVE_SECONDS, [target, name], bound_s)
            lines.value(names.USERS_GOOD, [target, name], good)
        self.relay.put(target, lines)


def _parts(snapshot: ServerSnapshot, value: Value) -> Mapping[str, float]:
    """Return the value's parts, or the whole as the one unknown part where the page has no parts."""
    parts = snapshot.parts(value.key)
    whole = snapshot.value(value.whole) if value.whole else None
    return parts or ({} if whole is None else {_UNKNOWN_PART: whole})


def _sum_and_count(histogram: Histogram | None) -> Histogram | None:
    return Histogram(((float("inf"), histogram.count),), histogram.sum) if histogram is not None else None


def _preemptions_per_request(snapshot: ServerSnapshot) -> tuple[str, Histogram | None]:
    """Return the server's own histogram, or one of only sum and count from its counters."""
    if "preemptions_per_request" in snapshot.histograms:
        return "histogram", snapshot.histograms["preemptions_per_request"]
    if snapshot.preemptions is not None and snapshot.finished:
        requests = sum(snapshot.finished.values())
        return "counters", Histogram(((float("inf"), requests),), snapshot.preemptions)
    return "counters", None
