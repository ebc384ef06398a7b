"""Where an alert leads: its runbook, and the dashboard that shows what it is about. Pure."""

from dataclasses import dataclass

# Each alert has its page there, unless told otherwise; the name of the page is the name of the alert.
RUNBOOKS = "https://github.com/kneewatch/kneewatch/blob/main/docs/runbooks/"

# The dashboards' own identifiers in Grafana, and the names of their files.
FLEET, TARGET, CAPACITY, PROBE = "kneewatch-fleet", "kneewatch-target", "kneewatch-capacity", "kneewatch-probe"


@dataclass(frozen=True, slots=True)
class Links:
    """`runbooks`: the address that the alerts' pages lie under. `grafana`: Grafana's; "" gives paths on it.

    `uid_prefix`: what the dashboards were written with.
    """

    runbooks: str = RUNBOOKS
    grafana: str = ""
    uid_prefix: str = ""

    def runbook(self, alert: str) -> str:
        """The page of an alert."""
        return f"{self.runbooks.rstrip('/')}/{alert}.md"

    def dashboard(self, uid: str) -> str:
        """A Prometheus template of a dashboard's address, for the target that an alert is about."""
        one = "" if uid == FLEET else "{{ with $labels.target }}?var-target={{ . }}{{ end }}"
        return f"{self.grafana.rstrip('/')}/d/{self.uid_prefix}{uid}{one}"


DEFAULT = Links()
