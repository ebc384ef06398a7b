"""Range queries in PromQL over arrays. `Engine` stores Lines and answers as benchmarks.backfill.Prometheus does.

A part that can only narrow a result (the right side of `and`, `unless` or an operator) is evaluated only at the steps
where the left side has one. Raises ValueError for what the generated rules do not use.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import promql_parser

from benchmarks.backfill import Bools, Floats, Line
from benchmarks.promql import vectors
from benchmarks.promql.functions import called
from benchmarks.promql.ranges import PLAIN, predictions, quantiles
from benchmarks.promql.samples import Millis, Store, Stored, Times
from benchmarks.promql.vectors import Matching, Row, Vector, joined, without_name

_Node = Any  # promql-parser's nodes have no common interface
_Value = Floats | list[Row]  # a scalar at each step, or a vector
_ARITHMETIC: Mapping[str, Callable[..., Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
}
_COMPARISONS: Mapping[str, Callable[..., Bools]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
_SETS = {"and": vectors.both, "unless": vectors.unless, "or": vectors.either}
_SIDES = {"OneToOne": None, "ManyToMany": None, "ManyToOne": "left", "OneToMany": "right"}
_MATCHES = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}


class Engine:
    """Stored series, and queries of them."""

    def __init__(self) -> None:
        self._store = Store()
        self._parsed: dict[str, _Node] = {}
        self._steps: dict[bytes, Millis] = {}

    def write(self, lines: Iterable[Line]) -> int:
        """Store all lines and return the number of samples."""
        return sum(self._store.add(line) for line in lines)

    def series(self, query: str, start_s: float, end_s: float, step_s: float) -> list[Line]:
        """Run a range query. Return a Line for each label set, without the points in gaps."""
        steps = self._shared(np.arange(round(start_s * 1000), round(end_s * 1000) + 1, round(step_s * 1000)))
        if query not in self._parsed:
            self._parsed[query] = promql_parser.parse(query)
        found = self._evaluate(self._parsed[query], steps)
        rows = found if isinstance(found, list) else [Row({}, found, np.ones(len(steps), bool))]
        return [Line(dict(row.labels), steps[row.there] / 1000, row.values[row.there]) for row in joined(rows)]

    def _shared(self, steps: Millis) -> Millis:
        """Return an array that the look-ups of all series remember, for the same steps."""
        if len(self._steps) > _MOST_STEPS:
            self._steps.clear()
        return self._steps.setdefault(steps.tobytes(), steps)

    def _evaluate(self, node: _Node, steps: Millis) -> _Value:
        kind = type(node).__name__
        if kind == "ParenExpr":
            return self._evaluate(node.expr, steps)
        if kind == "NumberLiteral":
            return np.full(len(steps), node.val)
        if kind == "VectorSelector":
            return self._selected(node, steps)
        if kind == "BinaryExpr":
            return self._binary(node, steps)
        if kind == "AggregateExpr":
            return self._aggregate(node, steps)
        if kind == "Call":
            return self._call(node, steps)
        raise ValueError(f"not supported: {node.prettify()}")

    def _vector(self, node: _Node, steps: Millis) -> list[Row]:
        found = self._evaluate(node, steps)
        if not isinstance(found, list):
            raise ValueError(f"a scalar where a vector is due: {node.prettify()}")  # noqa: TRY004 - as the others
        return found

    def _stored(self, node: _Node) -> Iterable[Stored]:
        matchers = [(each.name, _MATCHES[str(each.op)], each.value) for each in node.matchers.matchers]
        return self._store.select(node.name, matchers)

    def _selected(self, node: _Node, steps: Millis) -> list[Row]:
        at = self._moved(steps, node)
        found = []
        for one in self._stored(node):
            there, values = one.newest(at)
            if there.any():
                found.append(Row(one.labels, values, there))
        return found

    def _moved(self, steps: Millis, node: _Node) -> Millis:
        return self._shared(steps - round(node.offset.total_seconds() * 1000)) if node.offset else self._shared(steps)

    def _binary(self, node: _Node, steps: Millis) -> _Value:
        left = self._evaluate(node.lhs, steps)
        operator = str(node.op)
        if not isinstance(left, list):
            return _with_scalar(node, left, self._evaluate(node.rhs, steps))
        # Only where the left side has a result can there be one, but for `or`.
        at = np.ones(len(steps), bool) if operator == "or" else vectors.anywhere(left, len(steps))
        if not at.any():
            return []
        if at.all():
            return _operated(node, left, self._evaluate(node.rhs, steps))
        right = self._evaluate(node.rhs, self._shared(steps[at]))
        found = _operated(node, vectors.restricted(left, at), right)
        assert isinstance(found, list)
        return vectors.spread(found, at)

    def _aggregate(self, node: _Node, steps: Millis) -> list[Row]:
        operator = str(node.op)
        is_by = node.modifier is None or str(node.modifier.type).endswith("By")
        labels = frozenset(node.modifier.labels if node.modifier else ())
        groups = vectors.grouped(self._vector(node.expr, steps), labels, is_by=is_by)
        if operator == "topk" and node.param.val == 1:
            return joined(row for rows in groups.values() for row in vectors.first_of(rows))
        if operator == "count_values":
            return joined(
                row for key, rows in groups.items() for row in vectors.count_values(key, rows, node.param.val)
            )
        return joined(Row(dict(key), *vectors.aggregated(rows, operator)) for key, rows in groups.items())

    def _call(self, node: _Node, steps: Millis) -> _Value:
        name, arguments = node.func.name, node.args
        if name == "time":
            return steps / 1000
        if name == "vector":
            return [
                Row({}, np.broadcast_to(self._evaluate(arguments[0], steps), len(steps)), np.ones(len(steps), bool))
            ]
        if name == "absent":
            return self._absent(arguments[0], steps)
        if _over_time(node) is not None:
            return self._over(node, steps)
        # The vector comes first but for histogram_quantile, and no function has two.
        of = 1 if name == "histogram_quantile" else 0
        others = [each for index, each in enumerate(arguments) if index != of]
        scalars = [each.val if hasattr(each, "val") else self._evaluate(each, steps) for each in others]
        return called(name, self._vector(arguments[of], steps), scalars)

    def _over(self, call: _Node, steps: Millis) -> list[Row]:
        """Return a function of the windows of a range selector or a subquery."""
        function, node = _over_time(call)
        range_ms = round(node.range.total_seconds() * 1000)
        if type(node).__name__ == "SubqueryExpr":
            at = self._moved(steps, node)
            series: Iterable[Stored] = self._subquery(node, at, range_ms)
        else:
            at = self._moved(steps, node.vector_selector)
            series = self._stored(node.vector_selector)
        keeps_name = call.func.name == "last_over_time"
        found = []
        for one in series:
            values, there = function(one, at, range_ms)
            found.append(Row(one.labels if keeps_name else without_name(one.labels), values, there))
        return joined(found)

    def _subquery(self, node: _Node, steps: Millis, range_ms: int) -> Iterable[Stored]:
        """Return the results at multiples of the subquery's step, as series."""
        every_ms = round(node.step.total_seconds() * 1000)
        first = -(-(int(steps[0]) - range_ms) // every_ms) * every_ms
        inner = self._shared(np.arange(first, int(steps[-1]) + 1, every_ms))
        for row in self._vector(node.expr, inner) if len(inner) else ():
            forever = np.full(int(row.there.sum()), np.iinfo(np.int64).max)
            yield Stored(row.labels, Times(inner[row.there]), row.values[row.there], forever)

    def _absent(self, node: _Node, steps: Millis) -> list[Row]:
        there = vectors.anywhere(self._vector(node, steps), len(steps))
        selector = getattr(node, "vector_selector", node)
        equal = [
            each for each in getattr(getattr(selector, "matchers", None), "matchers", ()) if str(each.op) == _EQUAL
        ]
        return joined([Row({each.name: each.value for each in equal}, np.ones(len(steps)), ~there)])


_MOST_STEPS = 200
_EQUAL = "MatchOp.Equal"


def _over_time(call: _Node) -> Any:  # noqa: ANN401 - a function of windows, and what they are of
    """Return the function of windows that a call is, and its argument with a range; None for another call."""
    name, arguments = call.func.name, call.args
    if name == "quantile_over_time":
        return partial(quantiles, share=arguments[0].val), arguments[1]
    if name == "predict_linear":
        return partial(predictions, ahead_s=arguments[1].val), arguments[0]
    return (PLAIN[name], arguments[0]) if name in PLAIN else None


def _matching(node: _Node) -> tuple[Matching, str | None]:
    modifier = node.modifier
    matching = modifier.matching if modifier else None
    labels = frozenset(matching.labels) if matching else frozenset()
    is_on = matching is not None and str(matching.type).endswith("Include")
    many = _SIDES[str(modifier.card).rpartition(".")[2]] if modifier else None
    group = tuple(modifier.group_labels or ()) if many else ()
    return Matching(labels, is_on, group), many


def _operated(node: _Node, left: list[Row], right: _Value) -> _Value:
    if not isinstance(right, list):
        return _with_scalar(node, left, right)
    operator, (matching, many) = str(node.op), _matching(node)
    if operator in _SETS:
        return _SETS[operator](left, right, matching)
    if operator in _ARITHMETIC:
        return vectors.arithmetic(left, right, matching, _ARITHMETIC[operator], many=many)
    is_bool = bool(node.modifier and node.modifier.return_bool)
    return vectors.comparison(left, right, matching, _COMPARISONS[operator], many=many, is_bool=is_bool)


def _with_scalar(node: _Node, left: _Value, right: _Value) -> _Value:
    """Return the result of an operator of which at least one side is a scalar."""
    operator = str(node.op)
    is_bool = bool(node.modifier and node.modifier.return_bool)
    operate = _ARITHMETIC.get(operator) or _COMPARISONS[operator]
    if not isinstance(left, list) and not isinstance(right, list):
        return np.asarray(operate(left, right), np.float64)
    found = []
    vector: Vector = left if isinstance(left, list) else right  # type: ignore[assignment]
    for row in vector:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = operate(row.values, right) if isinstance(left, list) else operate(left, row.values)
        if operator in _ARITHMETIC or is_bool:
            found.append(Row(without_name(row.labels), np.asarray(values, np.float64), row.there))
        else:
            found.append(Row(row.labels, row.values, row.there & np.asarray(values, bool)))
    return joined(found)
