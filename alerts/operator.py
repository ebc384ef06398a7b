"""The rules as PrometheusRules, for the Prometheus Operator. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NAME = "kneewatch"
# `kubectl apply` keeps a copy of each object in an annotation of at most 256 KiB, which all rules in one nearly fill.
_BUDGETS, _BUDGET_GROUPS = f"{NAME}-budgets", "kneewatch-slo-"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Metadata of the PrometheusRules. `namespace`: "" leaves it to kubectl. `labels`: as the ruleSelector requires."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def around(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
        """Return these groups of a rules file as two PrometheusRules: the error budgets' groups, and all others."""
        budgets = [group for group in groups if group["name"].startswith(_BUDGET_GROUPS)]
        others = [group for group in groups if group not in budgets]
        return [self._rule(_BUDGETS, budgets), self._rule(NAME, others)]

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
