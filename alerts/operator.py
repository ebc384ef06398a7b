"""The rules as the Prometheus Operator takes them: a PrometheusRule around the same groups. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

NAME = "kneewatch"


@dataclass(frozen=True, slots=True)
class Manifest:
    """`namespace`: "" leaves it to kubectl. `labels`: what the ruleSelector of your Prometheus asks for."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def around(self, spec: Mapping[str, object]) -> dict[str, object]:
        """The object whose `spec` is the content of a rules file."""
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
