"""Links of an alert: its runbook, and the dashboard that shows its cause. Pure."""

from dataclasses import dataclass

from alerts.alert_labels import KEPT
from alerts.templates import same
from exporters import names

# The default address of the runbooks. Each page has the name of its alert.
RUNBOOKS = "https://github.com/kneewatch/kneewatch/blob/main/docs/runbooks/"

# The dashboards' identifiers in Grafana, which are also their file names.
FLEET, TARGET, SERVER = "kneewatch-fleet", "kneewatch-target", "kneewatch-server"
CAPACITY, PROBE = "kneewatch-capacity", "kneewatch-probe"
DASHBOARDS = ((FLEET, "Fleet"), (TARGET, "Target"), (SERVER, "Server"), (CAPACITY, "Capacity"), (PROBE, "Probe"))


def _exported(label: str, query: str, values: str = "") -> str:
    """Return a template of an address that the query finds; empty without one."""
    asked = f"printf `{query}` {values} | query" if values else f"query `{query}`"
    return f'{{{{ with {asked} }}}}{{{{ . | first | label "{label}" }}}}{{{{ end }}}}'


# A Kneewatch that is down still names Grafana for an hour.
_GRAFANA = _exported("grafana", f'max by (grafana) (last_over_time({names.LINKS.name}{{grafana!=""}}[1h]))')
# Of the Kneewatch that watches the target, or of any. Without a namespace, which alerts on GPUs do not have.
_WATCHES = ("cluster", "target")
_OWN = f'{names.LINKS.name}{{pages!=""}}'
_PAGES = _exported(
    "pages",
    f"max by (pages) ({_OWN} and on (job, instance) {names.TASK_INTERVAL.name}{{{same(_WATCHES)}}})"
    f" or on () max by (pages) ({_OWN})",
    " ".join(f"$labels.{label}" for label in _WATCHES),
)


# The first command of an alert, where Kneewatch runs; TARGET and DISCOVERY are the alert's labels.
CONFIGURED = "-c /etc/kneewatch/kneewatch.yml"
CHECK = f"kneewatch check {CONFIGURED} --target TARGET"
CHECK_ALL = f"kneewatch check {CONFIGURED}"
CHECK_FOUND = f"kneewatch check {CONFIGURED} --target DISCOVERY"
FORECAST = f"kneewatch forecast {CONFIGURED} --target TARGET"
READ_METRICS = f"{FORECAST} --seconds 15"
CHECK_CONFIG = f"kneewatch config check {CONFIGURED}"
SHOW_CONFIG = f"kneewatch config show {CONFIGURED}"
CPU = "cat /sys/fs/cgroup/cpu.stat"
# Where Kneewatch may be down, nothing can run in its container.
PODS = "kubectl get pods -l app.kubernetes.io/name=kneewatch -o wide"


def command(words: str) -> str:
    """Return a template of a command that needs no editing: by kubectl if the alert has a namespace."""
    names_of = words.replace("TARGET", "{{ $labels.target }}").replace("DISCOVERY", "{{ $labels.discovery }}")
    namespace = "{{ with $labels.namespace }}%s{{ end }}"
    if words == PODS:
        return names_of.replace("kubectl", f"kubectl{namespace % ' -n {{ . }}'}", 1)
    return f"{namespace % 'kubectl -n {{ . }} exec deploy/kneewatch -- '}{names_of}"


@dataclass(frozen=True, slots=True)
class Links:
    """Base addresses of links. `runbooks`: the runbook pages. `grafana`, `pages`: Grafana and the monitor's pages.

    Alerts take the addresses that are "" from what the monitor exports (names.LINKS). `uid_prefix`: the prefix that the
    dashboards were written with.
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
        return f"{self.grafana.rstrip('/') or _GRAFANA}/d/{self.uid_prefix}{uid}{one}"

    def page(self) -> str:
        """Return a Prometheus template of the address of the page of the alert's target."""
        return self.page_of("{{ with $labels.target }}targets/{{ . }}{{ end }}")

    def page_of(self, path: str) -> str:
        """Return the address of one of the monitor's pages."""
        return f"{self.pages.rstrip('/') or _PAGES}/{path}"

    def missing(self) -> str | None:
        """Return which addresses alerts take from the monitor's configuration, in one line; None if of none."""
        hints = []
        if not self.grafana:
            hints.append("grafana_url for links to dashboards (or give --grafana https://grafana.example.org)")
        if not self.pages:
            hints.append("web_external_url for links to the monitor's pages (or give -c FILE with it)")
        return f"alerts read the monitor's configuration: set {' and '.join(hints)}" if hints else None


DEFAULT = Links()
