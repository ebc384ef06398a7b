"""Links of an alert: its runbook, and the dashboard that shows its cause. Pure."""

from dataclasses import dataclass

# The default address of the runbooks. Each page has the name of its alert.
RUNBOOKS = "https://github.com/kneewatch/kneewatch/blob/main/docs/runbooks/"

# The dashboards' identifiers in Grafana, which are also their file names.
FLEET, TARGET, CAPACITY, PROBE = "kneewatch-fleet", "kneewatch-target", "kneewatch-capacity", "kneewatch-probe"


@dataclass(frozen=True, slots=True)
class Links:
    """Base addresses of links. `runbooks`: the runbook pages. `grafana`: Grafana, or "" for paths on it.

    `uid_prefix`: the prefix that the dashboards were written with.
    """

    runbooks: str = RUNBOOKS
    grafana: str = ""
    uid_prefix: str = ""

    def runbook(self, alert: str) -> str:
        """Return the address of an alert's runbook."""
        return f"{self.runbooks.rstrip('/')}/{alert}.md"

    def dashboard(self, uid: str) -> str:
        """Return a Prometheus template of a dashboard's address, for the alert's target."""
        one = "" if uid == FLEET else "{{ with $labels.target }}?var-target={{ . }}{{ end }}"
        return f"{self.grafana.rstrip('/')}/d/{self.uid_prefix}{uid}{one}"


DEFAULT = Links()
