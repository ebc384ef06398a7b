"""The generated rules that alerts depend on, and the series that each rule queries. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import promql_parser
import yaml

from exporters import names

_UNSET = ("e2e", "itl")  # objectives that no target of a month has
_OF_ONE_ROLE = frozenset(  # nor does one prefill for others
    series.name
    for series in (
        names.SERVER_ROLE,
        names.SERVER["kv_transfers"],
        names.SERVER["kv_transfer_failures"],
        names.SERVER["kv_transfers_expired"],
    )
)


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric in an expression and its matchers. `past` is true if it queries more than the newest value.

    `range_s`: how long it reads at once; `back_s`: how far back, with offsets and subqueries.
    """

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    past: bool
    range_s: float = 0.0
    back_s: float = 0.0

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Report whether a series with these labels is selected."""
        return labels["__name__"] == self.name and all(
            matches(operator, value, labels.get(name, "")) for name, operator, value in self.matchers
        )


@dataclass(frozen=True)
class Rule:
    """A recording rule (`record`) or an alert (`alert`)."""

    group: str
    interval_s: float
    expr: str
    record: str = ""
    alert: str = ""
    for_s: float = 0.0
    keep_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def selectors(self) -> tuple[Selector, ...]:
        return tuple(selectors(self.expr))

    @cached_property
    def needs(self) -> frozenset[str]:
        """The names of the metrics in the expression."""
        return frozenset(each.name for each in self.selectors)


def rules_of(text: str) -> list[Rule]:
    """Return every rule of a rules file, in order."""
    return [
        Rule(
            group=group["name"],
            interval_s=seconds_of(group["interval"]),
            expr=rule["expr"],
            record=rule.get("record", ""),
            alert=rule.get("alert", ""),
            for_s=seconds_of(rule.get("for")),
            keep_s=seconds_of(rule.get("keep_firing_for")),
            labels=rule.get("labels", {}),
        )
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    ]


def paging(rules: Iterable[Rule]) -> list[Rule]:
    """Return the recording rules and the alerts of severity page."""
    return [rule for rule in rules if not rule.alert or rule.labels["severity"] == "page"]


def needed(rules: Sequence[Rule]) -> list[Rule]:
    """Return the recording rules that alerts depend on, in order of dependency, then the alerts.

    What only dashboards show is left out.
    """
    wanted = {name for rule in rules if rule.alert for name in rule.needs}
    recordings = [rule for rule in rules if rule.record]
    while more := {name for rule in recordings if rule.record in wanted for name in rule.needs} - wanted:
        wanted |= more
    return [*ordered(rule for rule in recordings if rule.record in wanted), *(rule for rule in rules if rule.alert)]


def ordered(recordings: Iterable[Rule]) -> list[Rule]:
    """Return recording rules, each after the others that it needs; those that need each other, one after the other."""
    return [rule for group in in_groups(recordings) for rule in group]


def in_groups(recordings: Iterable[Rule]) -> list[list[Rule]]:
    """Return the same rules, those that need each other, or themselves, in one list."""
    waiting = list(recordings)
    found: list[list[Rule]] = []
    while waiting:
        needs = {name: _reachable(name, waiting) for name in dict.fromkeys(rule.record for rule in waiting)}
        for name, reached in needs.items():
            if all(name in needs[other] for other in reached):
                found.append([rule for rule in waiting if rule.record in reached | {name}])
        done = {rule.record for group in found for rule in group}
        waiting = [rule for rule in waiting if rule.record not in done]
    unique = {tuple(rule.record for rule in group): group for group in found}
    return list(unique.values())


def is_recursive(group: Sequence[Rule]) -> bool:
    """Report whether rules read what they record themselves, or each other."""
    records = {rule.record for rule in group}
    return any(rule.needs & records for rule in group)


def _reachable(record: str, rules: Sequence[Rule]) -> set[str]:
    """Return what a record is made of, among what these rules record."""
    made = {rule.record for rule in rules}
    found: set[str] = set()
    new = {record}
    while new:
        new = {name for rule in rules if rule.record in new for name in rule.needs & made} - found
        found |= new
    return found


def asked(rules: Sequence[Rule]) -> list[Selector]:
    """Return the selectors whose series must exist before the first rule is evaluated."""
    recorded = {rule.record for rule in rules}
    return [each for rule in rules for each in rule.selectors if each.name not in recorded and not _is_unset(each)]


def _is_unset(selector: Selector) -> bool:
    """Return whether this is about what no target has, so that it matches nothing, as it should."""
    unset = any(("objective", "=", name) in selector.matchers for name in _UNSET)
    return unset or selector.name.startswith(names.USERS_E2E.name) or selector.name in _OF_ONE_ROLE


def unmet(wanted: Iterable[Selector], series: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the selectors that match no series, as PromQL."""
    by_name: dict[str, list[Mapping[str, str]]] = {}
    for labels in series:
        by_name.setdefault(labels["__name__"], []).append(labels)
    missing = {each for each in wanted if not any(each.takes(labels) for labels in by_name.get(each.name, ()))}
    return sorted(f"{m.name}{{{','.join(f'{n}{o}{v!r}' for n, o, v in m.matchers)}}}" for m in missing)


def filled_in(expr: str, recordings: Mapping[str, Rule]) -> str:
    """Replace each recording's name in `expr` by the recording's expression, for all label sets."""
    for name, rule in recordings.items():
        text = f"({rule.expr})".replace("\\", r"\\")
        expr = re.sub(re.escape(name) + r"(\{[^}]*\})?(?![\w:])", text, expr)
    return expr


def selectors(expr: str) -> list[Selector]:
    """Return every metric of an expression. Raises ValueError for one without a name."""
    parsed = promql_parser.parse(expr)
    found: list[Selector] = []
    subqueries: list[tuple[float, float]] = []

    def before(node: Any) -> None:  # noqa: ANN401
        kind = type(node).__name__
        if kind == "SubqueryExpr":
            subqueries.append((node.range.total_seconds(), _offset_s(node)))
        if kind in {"VectorSelector", "MatrixSelector"}:
            selector = node.vector_selector if kind == "MatrixSelector" else node
            if not selector.name:
                raise ValueError(f"a selector without a metric's name: {parsed.prettify()}")
            own_s = node.range.total_seconds() if kind == "MatrixSelector" else 0.0
            range_s = max([own_s, *(each_s for each_s, _ in subqueries)])
            back_s = own_s + _offset_s(selector) + sum(each_s + ago_s for each_s, ago_s in subqueries)
            matchers = tuple((m.name, _OPERATORS[str(m.op)], m.value) for m in selector.matchers.matchers)
            found.append(Selector(selector.name, matchers, bool(range_s or selector.offset), range_s, back_s))

    def after(node: Any) -> None:  # noqa: ANN401
        if type(node).__name__ == "SubqueryExpr":
            subqueries.pop()

    promql_parser.walk(parsed, before, after)
    return found


def _offset_s(node: Any) -> float:  # noqa: ANN401
    return node.offset.total_seconds() if node.offset else 0.0


_OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}


def matches(operator: str, value: str, text: str) -> bool:
    """Match a label's value as Prometheus and Alertmanager do."""
    same = re.fullmatch(value, text) is not None if "~" in operator else text == value
    return same != operator.startswith("!")


def seconds_of(text: str | None) -> float:
    """Parse a duration as written in rules, such as 2h; return 0 for none."""
    if text in {None, "", "0s"}:
        return 0.0
    return float(promql_parser.parse_duration(text).total_seconds())
