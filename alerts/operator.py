"""The rules as a PrometheusRule, for the Prometheus Operator. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

NAME = "kneewatch"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Metadata of a PrometheusRule. `namespace`: "" leaves it to kubectl. `labels`: as the ruleSelector requires."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def around(self, spec: Mapping[str, object]) -> dict[str, object]:
        """Return a PrometheusRule with this content of a rules file as its `spec`."""
        metadata: dict[str, object] = {"name": NAME}
        if self.namespace:
            metadata["namespace"] = self.namespace
        if self.labels:
            metadata["labels"] = dict(self.labels)
        return {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": dict(spec),
        }
