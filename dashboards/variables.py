"""The variables of dashboards, and the filters by cluster, namespace and group in every selector of every query.

`cluster` and `namespace` are labels that a Prometheus may add to scraped series. Without the filter, targets of the
same name in two clusters would be summed. "All" matches series without these labels, too.
"""

import re
from typing import Any

from grafanalib import core

from dashboards.pieces import DATASOURCE
from dashboards.queries import MODEL, TARGET
from exporters import names

PLACE = 'cluster=~"$cluster",namespace=~"$namespace"'
# The group of a discovered server is its discovery: `pods` for `pods/a`. Another target is its own group.
IN_GROUP = f'{PLACE},target=~"($group)(/.*)?"'
GROUP_REGEX = "/^([^/]+)/"
_SERIES = r"\b(?:\w+:)?kneewatch_\w+(?::\w+)?"
# A quoted string, which stays as written; else a selector up to its opening brace, or a series without one.
_SELECTOR = re.compile(rf'"[^"]*"|(?P<open>(?:{_SERIES})?\{{)|(?P<bare>{_SERIES})')

_TARGETS = names.TASK_INTERVAL.name
# Canaries have workloads, and a capacity may have another one, as `users` is.
_WITH_WORKLOADS = f'__name__=~"{names.REQUESTS.name}|{names.CAPACITY_RPS.name}"'


def scoped(expr: str, matchers: str = PLACE) -> str:
    """Return the query with `matchers` added to each of its selectors."""

    def add(found: re.Match[str]) -> str:
        if found["open"]:
            return f"{found[0]}{matchers},"
        return f"{found[0]}{{{matchers}}}" if found["bare"] else found[0]

    return _SELECTOR.sub(add, expr)


def datasource() -> core.Template:
    """Return the variable that chooses the Prometheus, Grafana's default one at first.

    It works alike in a file that is provisioned, where Grafana fills in no `__inputs`, and in one imported by hand.
    """
    return core.Template(name="datasource", label="Prometheus", query="prometheus", type="datasource")


def places() -> list[Any]:
    """Return the variables that narrow down the targets: cluster, namespace and group."""
    of_cluster = f'{_TARGETS}{{cluster=~"$cluster"}}'
    return [
        _variable("cluster", "Cluster", f"label_values({_TARGETS}, cluster)", every=True),
        _variable("namespace", "Namespace", f"label_values({of_cluster}, namespace)", every=True),
        _variable("group", "Group", f"label_values({scoped(_TARGETS, PLACE)}, target)", every=True, regex=GROUP_REGEX),
    ]


def target() -> Any:  # noqa: ANN401 - grafanalib has no types
    """Return the variable of the target, which has one value at a time."""
    return _variable("target", "Target", f"label_values({scoped(_TARGETS, IN_GROUP)}, target)")


def chosen() -> list[Any]:
    """Return the variables of one target, its model and its workload, after those that narrow down the targets."""
    of_target, of_model = (scoped(f"{{{_WITH_WORKLOADS},{one}}}") for one in (TARGET, MODEL))
    return [
        *places(),
        target(),
        _variable("model", "Model", f"label_values({of_target}, model)", every=True),
        _variable("workload", "Workload", f"label_values({of_model}, workload)", every=True),
    ]


def _variable(name: str, label: str, query: str, *, every: bool = False, regex: str | None = None) -> core.Template:
    """Return a variable filled by `query`; `every` adds "All", which matches anything.

    `regex`: its first group is the part of each value that is used.
    """
    return core.Template(
        name=name,
        label=label,
        query=query,
        regex=regex,
        dataSource=DATASOURCE,
        includeAll=every,
        allValue=".*" if every else None,
        default="$__all" if every else None,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )
