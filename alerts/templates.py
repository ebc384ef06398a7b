"""Templates of values that an alert's text queries from Prometheus while the alert fires. Pure."""

import re
from collections.abc import Sequence

from alerts.alert_labels import KEPT
from alerts.windows import DAY_S, HOUR_S, duration

# How values are written: as people say them, without needless digits, and never as 1.4k or 2.394 %.
COUNT = 'printf "%.0f"'
NUMBER = 'printf "%.2f" | reReplaceAll "[.]?0+$" ""'
PERCENT = 'printf "%.2g" | humanizePercentage'
# "20 s", "3 min 50 s", "2 h", of a number of seconds.
SPAN = (
    'printf "%.2g" | humanizeDuration | reReplaceAll "^([^ ]+ [^ ]+) .*" "${1}" | reReplaceAll "( 0[a-z]+)+$" ""'
    ' | reReplaceAll "([0-9])([a-z])" "${1} ${2}" | reReplaceAll " m( |$)" " min${1}"'
)
_UNITS = {"m": "min"}


def same(labels: Sequence[str]) -> str:
    """Return matchers for the alert's own values of these labels, by position, so that they may occur several times."""
    return ",".join(f"{label}=%[{position}]q" for position, label in enumerate(labels, start=1))


# The labels of the alert's target: one of another cluster may have the same name.
TARGET = (*KEPT, "target")
OF_TARGET = same(TARGET)


def value_of(
    query: str,
    labels: Sequence[str] = TARGET,
    *,
    shown: str = NUMBER,
    before: str = "",
    after: str = "",
    none: str = "unknown",
) -> str:
    """Return a template of the result of `query`, formatted by `shown`, between two texts; without one, `none`.

    `%[2]q` in the query is the value of the second of the alert's `labels`: `same` writes matchers for all of them.
    """
    return (
        f"{{{{ with printf `{query}` {_values(labels)} | query }}}}{before}{{{{ . | first | value | {shown} }}}}{after}"
        f"{{{{ else }}}}{none}{{{{ end }}}}"
    )


def words(seconds: float) -> str:
    """Return a duration as a text says it: "5 min", "6 h", "90 s"."""
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", duration(seconds)).groups()  # type: ignore[union-attr]
    return f"{number} {_UNITS.get(unit, unit)}"


def variable(name: str, query: str, labels: Sequence[str] = TARGET, *, shown: str = "", none: str = "0.0") -> str:
    """Return a template that sets a variable to the result of `query`, formatted by `shown`; without one, to `none`."""
    asked, value = f"printf `{query}` {_values(labels)} | query", f".Value | {shown}" if shown else ".Value"
    return f"{{{{ ${name} := {none} }}}}{{{{ range {asked} }}}}{{{{ ${name} = {value} }}}}{{{{ end }}}}"


def listed(query: str, label: str, labels: Sequence[str] = TARGET, *, before: str = "", after: str = "") -> str:
    """Return a template that lists counts by `label`, such as "timeout 3, rejected 1"; empty without a result."""
    return (
        f"{{{{ with printf `{query}` {_values(labels)} | query }}}}{before}{{{{ range $i, $one := . }}}}"
        f"{{{{ if $i }}}}, {{{{ end }}}}{{{{ $one.Labels.{label} }}}} {{{{ $one.Value | {COUNT} }}}}{{{{ end }}}}"
        f"{after}{{{{ end }}}}"
    )


def if_any(query: str, labels: Sequence[str], some: str, zero: str, none: str) -> str:
    """Return a template of `some`, in which `.` is the result of `query`; of `zero` if it is 0, and else of `none`."""
    return (
        f"{{{{ with printf `{query}` {_values(labels)} | query }}}}{{{{ if . | first | value }}}}{some}"
        f"{{{{ else }}}}{zero}{{{{ end }}}}{{{{ else }}}}{none}{{{{ end }}}}"
    )


def runs_out(seconds: str, labels: Sequence[str]) -> str:
    """Return a template of the result of a query in seconds divided by the alert's value, such as 43 min or 6 d."""

    def shown(unit: str, unit_s: float, below_s: float, other: str) -> str:
        query = f"({seconds} / %[{len(labels) + 1}]g < {below_s:g}) / {unit_s:g}"
        return (
            f"{{{{ with printf `{query}` {_values(labels)} $value | query }}}}"
            f"{{{{ . | first | value | {COUNT} }}}} {unit}{{{{ else }}}}{other}{{{{ end }}}}"
        )

    return shown("min", 60.0, 2 * HOUR_S, shown("h", HOUR_S, 2 * DAY_S, shown("d", DAY_S, 1e9, "unknown")))


def _values(labels: Sequence[str]) -> str:
    """Return the values of these labels of the alert; one that begins with $ is a variable of the template."""
    return " ".join(label if label.startswith("$") else f"$labels.{label}" for label in labels)
