"""The lists of an Alertmanager configuration that follow from the alerts: routes and inhibitions, with reasons. Pure.

In: the alerts, and the rows of alerts/inhibitions.py that they name. Out: YAML, which `make generate` writes into the
examples in deploy/examples.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from alerts.inhibitions import INHIBITIONS, ROUTES
from alerts.rules import Alert

_WIDTH = 120


def inhibit_rules(alerts: Iterable[Alert]) -> str:
    """Return the items of `inhibit_rules`."""
    every = list(alerts)
    items = []
    for one in INHIBITIONS:
        silenced = _named(alert.name for alert in every if one in alert.silenced_by)
        matchers = {"source_matchers": one.source, "target_matchers": (*silenced, *one.target)}
        items.append(_item(one.why, {**matchers, "equal": one.equal}))
    return "\n".join(items)


def routes(alerts: Iterable[Alert]) -> str:
    """Return the items of the root route's `routes`, in the order in which Alertmanager tries them."""
    every = list(alerts)
    items = []
    for one in ROUTES:
        named = _named(alert.name for alert in every if alert.route == one)
        fields = {
            "matchers": (*named, *one.matchers),
            "receiver": one.receiver,
            "group_by": one.group_by,
            "group_wait": one.group_wait,
            "group_interval": one.group_interval,
            "repeat_interval": one.repeat_interval,
        }
        items.append(_item(one.why, fields))
    return "".join(items)


def _named(names: Iterable[str]) -> list[str]:
    """Return a matcher for alerts of these names; none for none."""
    each = list(dict.fromkeys(names))
    return [f'alertname{"=~" if len(each) > 1 else "="}"{"|".join(each)}"'] if each else []


def _item(why: str, fields: Mapping[str, str | Sequence[str]]) -> str:
    """Return an item of a YAML list, below a comment; fields without a value are left out."""
    comment = textwrap.fill(why, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    lines = [line for key, value in fields.items() if value for line in _field(key, value)]
    return f"{comment}\n- {lines[0]}\n" + "".join(f"  {line}\n" for line in lines[1:])


def _field(key: str, value: str | Sequence[str]) -> list[str]:
    if isinstance(value, str):
        return [f"{key}: {value}"]
    flow = f"{key}: [{', '.join(_scalar(one) for one in value)}]"
    return [flow] if len(flow) <= _WIDTH else [f"{key}:", *(f"  - {_scalar(one)}" for one in value)]


def _scalar(text: str) -> str:
    return text if text.isidentifier() else f"'{text}'"
