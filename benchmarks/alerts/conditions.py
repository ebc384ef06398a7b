"""Conditions without which an expression has no result: where one does not hold, it need not be evaluated. Pure."""

from itertools import product
from typing import Any

import promql_parser

from benchmarks.alerts.rules import selectors

_ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "^"})
_COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
# Functions with a result for each series of their first argument.
_EACH = frozenset({"abs", "ceil", "clamp", "clamp_max", "clamp_min", "floor", "label_replace", "round"})
_Node = Any  # promql-parser's nodes have no common interface


def necessary(expr: str) -> list[list[str]]:
    """Return lists of conditions. Wherever `expr` has a result, each condition of at least one list has one.

    The cheapest of a list come first, and the list ends before the expression itself.
    """
    whole = promql_parser.parse(expr)
    found = {frozenset(each.prettify() for each in nodes) - {whole.prettify()} for nodes in _alternatives(whole)}
    # Where one list is empty, the expression may have a result everywhere.
    return sorted(sorted(texts, key=_cost_s) for texts in found) if all(found) else [[]]


def _alternatives(node: _Node) -> list[list[_Node]]:
    """Return lists of nodes, of at least one of which each has a result where `node` has one."""
    kind = type(node).__name__
    if kind in {"ParenExpr", "AggregateExpr"}:
        return _alternatives(node.expr)
    if kind == "Call" and node.func.name in _EACH:
        return _alternatives(node.args[0])
    if kind != "BinaryExpr":
        return [[]]
    operator = str(node.op)
    if operator == "or":
        return [*_alternatives(node.lhs), *_alternatives(node.rhs)]
    if operator == "unless":
        return [[*each, node] for each in _alternatives(node.lhs)]
    own = [node] if operator in _COMPARISONS and not getattr(node.modifier, "return_bool", False) else []
    return [[*left, *right, *own] for left, right in product(_alternatives(node.lhs), _alternatives(node.rhs))]


def _cost_s(expr: str) -> tuple[float, str]:
    """Return the seconds of samples that the expression reads, and the text, for a certain order."""
    return sum(60 + each.range_s for each in selectors(expr)), expr
