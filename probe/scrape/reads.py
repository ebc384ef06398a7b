"""How values are read of a page: an engine's table of them, and the row of an engine. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from prometheus_client.samples import Sample

from probe.core.server_values import BY_KEY, Merge, ValueKind
from probe.core.snapshot import ServerSnapshot, as_fields
from probe.scrape.metrics_parser import (
    MAX_ENGINES,
    MAX_VALUE,
    Samples,
    by_label,
    first,
    histogram,
    largest,
    parts,
    total,
)


@dataclass(frozen=True, slots=True)
class Read:
    """A value that is more than the sum of its samples: the series that it needs, and a function of them."""

    names: tuple[str, ...]
    value: Callable[[Samples], Any]


# By the key of the value in server_values.VALUES: the names of its series, today's first and then earlier versions'
# names (the first one on the page counts); or a `Read`.
Reads = Mapping[str, tuple[str, ...] | Read]


class Proof(StrEnum):
    """How it is known that an engine's page is read rightly."""

    RECORDED = "run, and its page recorded"
    RUN = "run"
    SOURCES = "not run"


class Counted(StrEnum):
    """When an engine counts the tokens of a request."""

    EACH_STEP = "each step"
    AT_THE_END = "when a request ends"


@dataclass(frozen=True, slots=True)
class Facts:
    """What people should know about an engine. Documentation tables are made from this and the names it reads.

    `outcomes`: what counts as ok, failed and aborted; "" is not counted. `streamed_only`: it measures the TTFT of
    streamed requests only. `cells`: a table's words where yes or no do not do, by the row's name.
    """

    title: str
    versions: str
    proof: Proof
    tokens: Counted
    outcomes: tuple[str, str, str] = ("", "", "")
    streamed_only: bool = False
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    """A kind of server: how some lines of its page begin and no others', the values of the page by name, what else a
    snapshot needs and from which series (`more`, `also`), and where the page is.
    """

    name: str
    signs: tuple[str, ...]
    reads: Reads
    facts: Facts
    more: Callable[[Samples], Mapping[str, Any]] = lambda _: {}
    also: tuple[str, ...] = ()
    path: str = "/metrics"
    unique: Callable[[Samples], Samples] = lambda found: found  # without samples that say the same twice
    apart: str = ""  # the label that tells engines on one page apart

    @property
    def wanted(self) -> frozenset[str]:
        """Return the names of all series that are read."""
        found = {*self.also}
        for key, source in self.reads.items():
            is_histogram = BY_KEY[key].kind is ValueKind.HISTOGRAM and not isinstance(source, Read)
            found.update(parts(names(self.reads, key)) if is_histogram else names(self.reads, key))
        return frozenset(found)

    def snapshot(self, found: Samples) -> ServerSnapshot:
        """Return what a page with these samples says: all but when, and which version."""
        once = self.unique(found)
        values = {key: _value(once, key, source) for key, source in self.reads.items()}
        return ServerSnapshot(
            at_ns=0,
            wall_s=0.0,
            engine=self.name,
            counted_apart=self._counted_apart(once),
            **as_fields(values),
            **self.more(once),
        )

    def _counted_apart(self, found: Samples) -> dict[str, ServerSnapshot]:
        """Return the counters of each engine. Empty for one engine, and for too many."""
        running = first(found, names(self.reads, "running")) if self.apart and "running" in self.reads else ()
        if len({sample.labels.get(self.apart) for sample in running}) <= 1:
            return {}
        each: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        for name, its in found.items():
            for sample in its:
                each[sample.labels.get(self.apart, "")[:MAX_VALUE]][name].append(sample)
        if len(each) > MAX_ENGINES + 1:
            return {}
        counted = {key: source for key, source in self.reads.items() if BY_KEY[key].kind is not ValueKind.GAUGE}
        return {
            engine: ServerSnapshot(0, 0.0, **as_fields({key: _value(its, key, one) for key, one in counted.items()}))
            for engine, its in each.items()
        }


def names(reads: Reads, key: str) -> tuple[str, ...]:
    """Return the names by which a value is read."""
    source = reads[key]
    return source.names if isinstance(source, Read) else source


def labelled(label: str, *its: str) -> Read:
    """Read a value by the values of a label."""
    return Read(its, lambda found: by_label(found, label, *its))


def positive(*its: str) -> Read:
    """Read a value that is unknown at zero: the page has it whether or not the server uses the feature."""
    return Read(its, lambda found: total(found, *its) or None)


def beside(other: tuple[str, ...] | Read, *its: str) -> Read:
    """Read a value that is unknown where another one is."""
    source = other if isinstance(other, Read) else Read(other, lambda found: total(found, *other))
    return Read((*its, *source.names), lambda found: None if source.value(found) is None else total(found, *its))


def _value(found: Samples, key: str, source: tuple[str, ...] | Read) -> Any:  # noqa: ANN401 - a value of any kind
    if isinstance(source, Read):
        return source.value(found)
    row = BY_KEY[key]
    if row.kind is ValueKind.HISTOGRAM:
        return histogram(found, *source)
    return (largest if row.merge is Merge.LARGEST else total)(found, *source)
