"""The notifications that Alertmanager's routes, groups and inhibitions make of firing alerts. Pure.

In: when alerts fire (replay.py) and the text of an Alertmanager configuration. Out: the rings. A ring is a notification
with an alert that the group's last one did not have: a group that begins, or a new alert in it. Notices that an alert
has ended, and repetitions of the same alerts, do not ring.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import yaml

from benchmarks.alerts.inhibit import Inhibition, inhibitions, is_inhibited, match
from benchmarks.alerts.replay import Firing
from benchmarks.alerts.rules import seconds_of


@dataclass(frozen=True, slots=True)
class Route:
    """A branch of the tree of routes. The root matches everything."""

    receiver: str
    matchers: tuple[str, ...]
    group_by: tuple[str, ...]
    wait_s: float
    interval_s: float


@dataclass(frozen=True, slots=True)
class Ring:
    """A notification with new alerts. `begins`: the group had none before, so incident tools open an incident."""

    at_s: float
    receiver: str
    new: tuple[Firing, ...]
    begins: bool

    @property
    def alerts(self) -> frozenset[str]:
        """The names of the new alerts."""
        return frozenset(firing.labels["alertname"] for firing in self.new)


def routes(text: str) -> list[Route]:
    """Return the routes in the order in which they are tried; the root is the last. Nested routes are not read."""
    root = yaml.safe_load(text)["route"]

    def route(given: Mapping[str, object]) -> Route:
        whole = {**root, **given}
        return Route(
            receiver=whole["receiver"],
            matchers=tuple(given.get("matchers", ())),  # type: ignore[call-overload]
            group_by=tuple(whole["group_by"]),
            wait_s=seconds_of(whole["group_wait"]),
            interval_s=seconds_of(whole["group_interval"]),
        )

    return [*map(route, root.get("routes", ())), route({})]


def rings(firings: Sequence[Firing], text: str) -> list[Ring]:
    """Return the rings in order of time. `text`: the configuration of Alertmanager."""
    rules, tree = inhibitions(text), routes(text)
    groups: dict[tuple[object, ...], list[Firing]] = {}
    for firing in sorted(firings, key=lambda one: one.start_s):
        index = next(index for index, route in enumerate(tree) if match(route.matchers, firing.labels))
        key = index, *(firing.labels.get(name, "") for name in tree[index].group_by)
        groups.setdefault(key, []).append(firing)
    found: list[Ring] = []
    for (index, *_), members in groups.items():
        found += _of_group(tree[int(str(index))], members, firings, rules)
    return sorted(found, key=lambda ring: ring.at_s)


def _of_group(
    route: Route, members: Sequence[Firing], firings: Sequence[Firing], rules: Sequence[Inhibition]
) -> Iterable[Ring]:
    muted = {id(one): _muted(one, firings, rules) for one in members}
    known: set[tuple[tuple[str, str], ...]] = set()
    for at_s in _flushes(route, members):
        firing = {_key(one): one for one in members if one.start_s <= at_s < one.end_s}
        known &= firing.keys()
        audible = {key: one for key, one in firing.items() if not any(a <= at_s < b for a, b in muted[id(one)])}
        if new := audible.keys() - known:
            yield Ring(float(at_s), route.receiver, tuple(audible[key] for key in sorted(new)), begins=not known)
            known |= new


def _flushes(route: Route, members: Sequence[Firing]) -> Iterable[float]:
    """Yield when the group is looked at: after its wait, then at each interval until one after its last alert."""
    spans: list[list[float]] = []
    for one in members:
        if spans and one.start_s <= spans[-1][1] + route.interval_s:
            spans[-1][1] = max(spans[-1][1], one.end_s)
        else:
            spans.append([one.start_s, one.end_s])
    for start_s, end_s in spans:
        yield from np.arange(start_s + route.wait_s, end_s + 2 * route.interval_s, route.interval_s)


def _muted(one: Firing, firings: Sequence[Firing], rules: Sequence[Inhibition]) -> list[tuple[float, float]]:
    return [
        (by.start_s, by.end_s)
        for by in firings
        if by.start_s < one.end_s and one.start_s < by.end_s and any(is_inhibited(rule, by, one) for rule in rules)
    ]


def _key(one: Firing) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(one.labels.items()))
