"""The parts of a rules file, and its YAML text, as a file or as PrometheusRules. Pure.

In: groups of recording rules and alerts. Out: the YAML that Prometheus 2.42 and later read, or the objects that the
Prometheus Operator reads.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any

import yaml

from alerts.alert_labels import AlertLabels
from alerts.inhibitions import Inhibition, Route
from alerts.links import CHECK, Links, command
from alerts.windows import duration

_MANIFEST = "kneewatch"
# `kubectl apply` and Argo CD keep a copy of each object, as JSON, in an annotation, and Kubernetes allows 262,144 bytes
# for all annotations of an object (apimachinery's TotalAnnotationSizeLimitB). This leaves a quarter to others. The
# chart has the same figure and divides rules alike: deploy/helm/kneewatch/templates/prometheus-operator.yaml.
MOST_BYTES = 196_608


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule: an expression, stored as the series `record`."""

    record: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_yaml(self, _links: Links, _labels: AlertLabels) -> dict[str, object]:
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"record": self.record, "expr": self.expr, **labels}


class FaultKind(StrEnum):
    """The kinds of fault that a simulated month of benchmarks/alerts has."""

    SLOW = "slow decode"
    QUEUE = "queueing"
    KV = "KV exhaustion"
    STALL = "stalled engine"
    DEAD = "dead server"
    KNEE = "knee shift"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert: what Prometheus evaluates, and what everything else that knows of alerts is derived from.

    `summary` and `description` are Prometheus templates. `keep_s`: how long it keeps firing after the expression stops
    matching (`keep_firing_for`). `means`: the line of docs/alerts.md. `panels`: those that show its cause, by the uid
    of their dashboard (alerts/links.py); the alert links the first dashboard, the panels link the runbook.
    `silenced_by`, `route`: what Alertmanager does with it (alerts/inhibitions.py). `finds`: the faults that must make
    it fire in the benchmark; `follows`: others that may; `unseen`: why none does. `command`: what to run first.
    Alerts of one name have the same values from `means` on.
    """

    name: str
    expr: str
    for_s: float
    severity: str
    summary: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)
    keep_s: float = 0.0
    _: KW_ONLY
    means: str
    panels: Mapping[str, Sequence[str]]
    silenced_by: tuple[Inhibition, ...] = ()
    route: Route | None = None
    finds: tuple[FaultKind, ...] = ()
    follows: tuple[FaultKind, ...] = ()
    unseen: str = ""
    command: str = CHECK

    @property
    def dashboard(self) -> str:
        """Return the uid of the dashboard that the alert links."""
        return next(iter(self.panels))

    def as_yaml(self, links: Links, labels: AlertLabels) -> dict[str, object]:
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": duration(self.for_s)} if self.for_s else {}),
            **({"keep_firing_for": duration(self.keep_s)} if self.keep_s else {}),
            "labels": labels.labels_for(self.severity, self.labels),
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "page_url": links.page(),
                "command": command(self.command),
                "dashboard_url": links.dashboard(self.dashboard),
                "runbook_url": links.runbook(self.name),
            },
        }


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated in order, every `interval_s`."""

    name: str
    interval_s: float
    rules: Sequence[Recording | Alert]

    def as_yaml(self, links: Links, labels: AlertLabels) -> dict[str, object]:
        return {
            "name": self.name,
            "interval": duration(self.interval_s),
            "rules": [rule.as_yaml(links, labels) for rule in self.rules],
        }


class _Dumper(yaml.SafeDumper):
    """Write expressions of several lines as block scalars."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Sequence[Mapping[str, object]], remarks: Sequence[str]) -> str:
    """Return the file's text; `remarks` become comments at its head."""
    head = "".join(f"# {remark}\n" for remark in remarks)
    body = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=2**31, allow_unicode=True)
    return head + body


@dataclass(frozen=True, slots=True)
class Manifest:
    """Metadata of the PrometheusRules. `namespace`: "" leaves it to kubectl. `labels`: as the ruleSelector requires."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def wrap(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
        """Return these groups of a rules file as PrometheusRules, each of at most MOST_BYTES, in their order."""
        parts: list[list[Mapping[str, Any]]] = [[]]
        for group in groups:
            if parts[-1] and _bytes_of([*parts[-1], group]) > MOST_BYTES:
                parts.append([])
            parts[-1].append(group)
        return [self._rule(f"{_MANIFEST}-{n}" if n > 1 else _MANIFEST, part) for n, part in enumerate(parts, 1)]

    def _rule(self, name: str, groups: Sequence[Mapping[str, Any]]) -> dict[str, object]:
        metadata: dict[str, object] = {"name": name}
        if self.namespace:
            metadata["namespace"] = self.namespace
        if self.labels:
            metadata["labels"] = dict(self.labels)
        return {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": {"groups": list(groups)},
        }


def _bytes_of(groups: Sequence[Mapping[str, Any]]) -> int:
    """Return the length as JSON that Go writes, as kubectl and Helm do: it writes <, > and & in six bytes each."""
    text = json.dumps(groups, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode()) + 5 * sum(map(text.count, "<>&"))
