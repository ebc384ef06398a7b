"""Links of an alert: its runbook, and the dashboard that shows its cause. Pure."""

from dataclasses import dataclass

from alerts.alert_labels import KEPT

# The default address of the runbooks. Each page has the name of its alert.
RUNBOOKS = "https://github.com/kneewatch/kneewatch/blob/main/docs/runbooks/"

# The dashboards' identifiers in Grafana, which are also their file names.
FLEET, TARGET, SERVER = "kneewatch-fleet", "kneewatch-target", "kneewatch-server"
CAPACITY, PROBE = "kneewatch-capacity", "kneewatch-probe"
DASHBOARDS = ((FLEET, "Fleet"), (TARGET, "Target"), (SERVER, "Server"), (CAPACITY, "Capacity"), (PROBE, "Probe"))


@dataclass(frozen=True, slots=True)
class Links:
    """Base addresses of links. `runbooks`: the runbook pages. `grafana`: Grafana, or "" for paths on it.

    `uid_prefix`: the prefix that the dashboards were written with. `pages`: the monitor's pages, or "" for no link.
    """

    runbooks: str = RUNBOOKS
    grafana: str = ""
    uid_prefix: str = ""
    pages: str = ""

    def runbook(self, alert: str) -> str:
        """Return the address of an alert's runbook."""
        return f"{self.runbooks.rstrip('/')}/{alert}.md"

    def dashboard(self, uid: str) -> str:
        """Return a Prometheus template of a dashboard's address, for the alert's target, cluster and namespace."""
        place = "".join(f"{{{{ with $labels.{label} }}}}&var-{label}={{{{ . }}}}{{{{ end }}}}" for label in KEPT)
        one = "" if uid == FLEET else f"{{{{ with $labels.target }}}}?var-target={{{{ . }}}}{place}{{{{ end }}}}"
        return f"{self.grafana.rstrip('/')}/d/{self.uid_prefix}{uid}{one}"

    def page(self) -> dict[str, str]:
        """Return the annotation with the page of the alert's target, a Prometheus template; empty without `pages`."""
        return {"page_url": self.page_of("{{ with $labels.target }}targets/{{ . }}{{ end }}")} if self.pages else {}

    def page_of(self, path: str) -> str:
        """Return the address of one of the monitor's pages."""
        return f"{self.pages.rstrip('/')}/{path}"

    def missing(self) -> str | None:
        """Return what to add for links that open from a notification, in one line; None if nothing is missing."""
        hints = []
        if not self.grafana:
            hints.append("give --grafana https://grafana.example.org for links to dashboards")
        if not self.pages:
            hints.append("give -c FILE with web_external_url for links to the monitor's pages")
        return f"alerts lack links that open from a notification: {'; '.join(hints)}" if hints else None


DEFAULT = Links()
