"""Labels of alerts: those that every alert has, and those that aggregations keep. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Labels that a Prometheus may add to every series it scrapes or receives. Without them in each aggregation, targets of
# the same name in two clusters would be one.
KEPT = ("cluster", "namespace")
# What alerts are grouped by: the discovery of a found server (`pods` for `pods/a`), else the target itself.
GROUP = '{{ reReplaceAll "/.*" "" (or $labels.target $labels.discovery) }}'


def by(*labels: str) -> str:
    """Return a grouping clause for these labels and those to keep."""
    return f"by ({', '.join((*KEPT, *labels))})"


def on(*labels: str) -> str:
    """Return a matching clause for these labels and those to keep."""
    return f"on ({', '.join((*KEPT, *labels))})"


@dataclass(frozen=True, slots=True)
class AlertLabels:
    """Labels of all alerts, as a site wants them. `severities`: other values of `severity`. `more`: added labels.

    An alert with another severity keeps the original one in `urgency`: Kneewatch sends no load while a page fires.
    """

    severities: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)

    def labels_for(self, severity: str, own: Mapping[str, str]) -> dict[str, str]:
        """Return an alert's labels. Its own win over added ones."""
        renamed = {"urgency": severity} if severity in self.severities else {}
        return {"severity": self.severities.get(severity, severity), **renamed, "group": GROUP, **self.more, **own}


PLAIN_LABELS = AlertLabels()
