"""A server's metrics page: text to samples, samples to values. Pure; what names mean is in a file for each engine."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from probe.core.snapshot import EngineSnapshot, Histogram

Samples = Mapping[str, list[Sample]]

# Every bucket and every value of a label is one of Kneewatch's series. TGI's histograms of lengths have 101 buckets.
_MAX_BUCKETS = 110
MAX_VALUES = 20
MAX_VALUE = 64
MAX_ENGINES = 32
OTHER = "other"  # in place of values beyond the first MAX_VALUES
# Nearly all lines are of this form; prometheus_client's parser takes some 15 us for one, which is 8 ms for vLLM's page.
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)"')
_LABELS = re.compile(r'\{(?:[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*",?)*\}')
_NUMBER = re.compile(r"-?[0-9.]+(?:[eE][-+]?[0-9]+)?")
# No server has counted as much, and neither sums nor products of such values overflow. Nor is anything that is read
# below zero: exporters write -1 for what they do not know. But the sum of a histogram may be: vLLM adds a time up that
# a suspended machine made negative, and later differences are right.
_MAX_NUMBER = 1e100
_MARK = "\ufeff"  # of byte order, as some tools of Windows write it
_PART = 2**18  # characters, in which a usual page is one part
_MAX_LINE = 16_384  # the parser's time grows with the square of a line's labels; vLLM's longest line has 1 to 2 kB


def parts(histograms: Iterable[str]) -> list[str]:
    """Return the series of these histograms that are read."""
    return [name + part for name in histograms for part in ("_bucket", "_sum")]


def samples(page: str, wanted: Collection[str]) -> dict[str, list[Sample]]:
    """Return the wanted samples by name. Lines are chosen before they are parsed: a page has ten times as many. Raise
    ValueError for one that is no Prometheus text, or too long.

    Only a line feed ends a line: str.splitlines() would also cut at characters that a label may contain. Of lines with
    one name and the same labels the first counts, as for Prometheus: added up, they would be twice what there is.
    """
    found: dict[str, list[Sample]] = defaultdict(list)
    seen: set[str] = set()
    known: dict[str, dict[str, str]] = {"": {}}  # histograms share their labels: reading them is most of the work
    for line in _lines(page):
        start = line.find("{")
        name = line[:start] if start > 0 else line
        if " " in name:
            name = name.partition(" ")[0]
        if name not in wanted:
            continue
        if len(line) > _MAX_LINE:
            raise ValueError(f"a line of more than {_MAX_LINE} characters")
        series, _, value = line.rpartition(" ")
        if series in seen:
            continue
        seen.add(series)
        text = series[len(name) :]
        if (labels := known.get(text)) is None and _LABELS.fullmatch(text):
            labels = known[text] = dict(_LABEL.findall(text))
        if labels is not None and _NUMBER.fullmatch(value):
            parsed = [Sample(name, labels, float(value))]
        else:
            parsed = _by_library(line)
        for sample in parsed:
            if 0 <= sample.value <= _MAX_NUMBER or (-_MAX_NUMBER <= sample.value < 0 and name.endswith("_sum")):
                found[sample.name].append(sample)
    return found


def _lines(page: str) -> Iterator[str]:
    """Yield the lines, split part by part: all lines of 8 MiB at once would take twenty times as much memory."""
    start = 1 if page.startswith(_MARK) else 0
    while start < len(page):
        end = page.find("\n", start + _PART)
        end = end if end >= 0 else len(page)
        yield from page[start:end].split("\n")
        start = end + 1


def _by_library(line: str) -> list[Sample]:
    """Parse a line with escapes, a timestamp or an error."""
    return [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]


def first(found: Samples, names: Iterable[str]) -> list[Sample]:
    """Return the samples of the first of these names that has any."""
    return next((found[name] for name in names if found.get(name)), [])


def total(found: Samples, *names: str, **labels: str) -> float | None:
    """Return the sum of the samples with these labels, of the first of these names that has any; None without any."""
    values = _values(found, names, labels)
    return sum(values) if values else None


def largest(found: Samples, *names: str, **labels: str) -> float | None:
    """Return the largest sample with these labels, of the first of these names that has any; None without any."""
    return max(_values(found, names, labels), default=None)


def by_label(found: Samples, label: str, *names: str) -> dict[str, float]:
    """Return sums of the samples of the first of these names by the value of a label; excess values as "other"."""
    totals: dict[str, float] = defaultdict(float)
    for sample in first(found, names):
        value = sample.labels.get(label, "")[:MAX_VALUE]
        totals[value if value in totals or len(totals) < MAX_VALUES else OTHER] += sample.value
    return dict(totals)


def by_engine(label: str, **fields: Iterable[Sample]) -> dict[str, EngineSnapshot]:
    """Return the metrics of each data-parallel engine by its label: each field is the sum over its samples.

    Empty for a single engine, and for more than 32: each engine is several of Kneewatch's own series.
    """
    values: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for field, its in fields.items():
        for sample in its:
            if label in sample.labels:
                values[sample.labels[label][:MAX_VALUE]][field] += sample.value
    if not 1 < len(values) <= MAX_ENGINES:
        return {}
    in_order = sorted(values, key=lambda engine: (len(engine), engine))  # 2 before 10
    return {engine: EngineSnapshot(**values[engine]) for engine in in_order}


def values_of(label: str, its: Iterable[Sample]) -> tuple[str, ...]:
    """Return the values of a label, at most the first 20."""
    values = {sample.labels.get(label, "")[:MAX_VALUE] for sample in its}
    return tuple(sorted(values - {"", "None"}))[:MAX_VALUES]


def histogram(found: Samples, *names: str, **labels: str) -> Histogram | None:
    """Return the sum of all histograms with these labels, of the first of these names; None if it is not known.

    Raise ValueError if it has too many buckets.
    """
    for name in names:
        buckets: dict[float, list[float]] = defaultdict(list)
        for sample in found.get(f"{name}_bucket", ()):
            if not labels or _has_labels(sample, labels):
                buckets[float(sample.labels["le"])].append(sample.value)
        if len(buckets) > _MAX_BUCKETS:
            raise ValueError(f"{name} has more than {_MAX_BUCKETS} buckets")
        if any(math.isnan(le) for le in buckets):
            raise ValueError(f"{name} has a bound that is no number")
        if buckets:
            sums = [sample.value for sample in found.get(f"{name}_sum", ()) if _has_labels(sample, labels)]
            return _summed(buckets, sums)
    return None


def _summed(buckets: Mapping[float, list[float]], sums: list[float]) -> Histogram | None:
    """Return the sum of histograms in the buckets that all have. None if one lacks its total, or its counts fall."""
    each = len(buckets.get(math.inf, ()))
    if len(sums) < each or any(len(counts) > each for counts in buckets.values()):
        return None
    common = tuple((le, sum(counts)) for le, counts in sorted(buckets.items()) if len(counts) == each)
    if any(after < before for (_, before), (_, after) in pairwise(((0.0, 0.0), *common))):
        return None
    return Histogram(common, sum(sums))


def one_of_each(found: Samples, repeating: Collection[str]) -> Samples:
    """Keep the largest of samples that differ only in these labels: several processes report the same value."""
    kept: dict[str, list[Sample]] = {}
    for name, its in found.items():
        best: dict[tuple[tuple[str, str], ...], Sample] = {}
        for sample in its:
            key = tuple(sorted(item for item in sample.labels.items() if item[0] not in repeating))
            if key not in best or sample.value > best[key].value:
                best[key] = sample
        kept[name] = list(best.values())
    return kept


def is_server_error(status: str) -> bool:
    """Return whether a request with this HTTP status failed by the server's fault: it broke, or refused for load."""
    return status == "429" or status.startswith("5")


def known(**values: float | None) -> dict[str, float]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def added(*values: float | None) -> float | None:
    """Return the sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _values(found: Samples, names: Iterable[str], labels: Mapping[str, str]) -> list[float]:
    candidates = ([one.value for one in found.get(name, ()) if _has_labels(one, labels)] for name in names)
    return next((values for values in candidates if values), [])


def _has_labels(sample: Sample, labels: Mapping[str, str]) -> bool:
    return all(sample.labels.get(key) == value for key, value in labels.items())
