"""Filters by cluster, namespace and group in every selector of every query. Pure.

`cluster` and `namespace` are labels that a Prometheus may add to what it scrapes. Without the filter, targets of the
same name in two clusters would be summed. "All" matches series without these labels, too.
"""

import re

PLACE = 'cluster=~"$cluster",namespace=~"$namespace"'
# The group of a discovered server is its discovery: `pods` for `pods/a`. Another target is its own group.
IN_GROUP = f'{PLACE},target=~"($group)(/.*)?"'
GROUP_REGEX = "/^([^/]+)/"
_SERIES = r"\b(?:\w+:)?(?:kneewatch_|DCGM_FI_)\w+(?::\w+)?"
# A quoted string, which stays as written; else a selector up to its opening brace, or a series without one.
_SELECTOR = re.compile(rf'"[^"]*"|(?P<open>(?:{_SERIES})?\{{)|(?P<bare>{_SERIES})')


def scoped(expr: str, matchers: str = PLACE) -> str:
    """Return the query with `matchers` added to each of its selectors."""

    def add(found: re.Match[str]) -> str:
        if found["open"]:
            return f"{found[0]}{matchers},"
        return f"{found[0]}{{{matchers}}}" if found["bare"] else found[0]

    return _SELECTOR.sub(add, expr)
