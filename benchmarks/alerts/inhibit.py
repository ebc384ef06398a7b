"""The notifications that remain after Alertmanager's `inhibit_rules`. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from benchmarks.alerts.replay import Firing
from benchmarks.alerts.rules import matches

_MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"?(.*?)"?\s*')


@dataclass(frozen=True, slots=True)
class Inhibition:
    """An inhibit rule: an alert matching `source` silences those matching `target` with the same `equal` labels."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...]


def inhibitions(text: str) -> list[Inhibition]:
    """Return the inhibit rules of an Alertmanager configuration."""
    return [
        Inhibition(tuple(rule["source_matchers"]), tuple(rule["target_matchers"]), tuple(rule.get("equal", ())))
        for rule in yaml.safe_load(text).get("inhibit_rules", ())
    ]


def sent(firings: Sequence[Firing], rules: Sequence[Inhibition], *, group_wait_s: float = 10.0) -> list[Firing]:
    """Return the alerts that are sent, each from the time it is sent: not before its inhibition ends.

    An alert silenced within `group_wait_s` is not sent; one silenced later has been.
    """
    found: list[Firing] = []
    for firing in firings:
        silent = [(by.start_s, by.end_s) for by in firings if any(is_inhibited(rule, by, firing) for rule in rules)]
        found += [Firing(firing.labels, a, b) for a, b in _left(firing, sorted(silent), group_wait_s)]
    return found


def _left(firing: Firing, silent: Iterable[tuple[float, float]], wait_s: float) -> Iterator[tuple[float, float]]:
    start_s = firing.start_s
    for since, until in silent:
        if until <= start_s or since >= firing.end_s:
            continue
        if since - start_s > wait_s:
            break
        start_s = until
    if start_s < firing.end_s:
        yield start_s, firing.end_s


def is_inhibited(rule: Inhibition, source: Firing, target: Firing) -> bool:
    """Report whether `source` inhibits `target` while it fires.

    As in Alertmanager, an alert that matches both sides of a rule is not inhibited by another one that does.
    """
    if not match(rule.target, target.labels) or not match(rule.source, source.labels):
        return False
    if match(rule.target, source.labels) and match(rule.source, target.labels):
        return False
    return all(source.labels.get(name, "") == target.labels.get(name, "") for name in rule.equal)


def match(matchers: Iterable[str], labels: Mapping[str, str]) -> bool:
    """Report whether labels match all of Alertmanager's matchers. Raises ValueError for text that is no matcher."""
    for matcher in matchers:
        found = _MATCHER.fullmatch(matcher)
        if found is None:
            raise ValueError(f"no matcher: {matcher}")
        name, operator, value = found.groups()
        if not matches(operator, value, labels.get(name, "")):
            return False
    return True
