"""The rules file, one for every configuration: `render` returns its text, `write` writes it into a folder."""

from pathlib import Path

from alerts.acute import acute_group
from alerts.alert_labels import PLAIN_LABELS, AlertLabels
from alerts.capacity import capacity_group, stale_group
from alerts.gpu import gpu_group, gpu_tickets_group
from alerts.health import health_group, instrument_group, recording_group
from alerts.links import DEFAULT, Links
from alerts.objectives import objective_groups
from alerts.pressure import disaggregated_group, pressure_group, stalled_group
from alerts.rules import Alert, Manifest, RuleGroup, to_yaml
from alerts.thresholds import DEFAULTS, Thresholds
from alerts.trends import trends_group
from alerts.user_mix import user_mix_groups
from probe.report.files import write_files

FILE, MANIFEST_FILE = "kneewatch.rules.yml", "kneewatch.prometheusrule.yml"
_GENERATED = "Written by `kneewatch alerts`, for every configuration: the rules read what is configured from series."


def render(
    *,
    window_scale: float = 1.0,
    links: Links = DEFAULT,
    manifest: Manifest | None = None,
    labels: AlertLabels = PLAIN_LABELS,
    thresholds: Thresholds = DEFAULTS,
) -> dict[str, str]:
    """Return YAML text by file name; the same options give the same text.

    `window_scale` below 1 shortens every window and waiting time, to rehearse an alert in minutes. With a `manifest`,
    the rules are wrapped in objects for the Prometheus Operator. `labels`: added to every alert. `thresholds`: of
    alerts. Raises ValueError
    unless `window_scale` is above 0.
    """
    remarks = [_GENERATED, *_rehearsal(window_scale)]
    rules = [group.as_yaml(links, labels) for group in groups(window_scale, thresholds) if group.rules]
    if manifest is not None:
        return {MANIFEST_FILE: to_yaml(manifest.wrap(rules), remarks)}
    return {FILE: to_yaml([{"groups": rules}], remarks)}


def groups(window_scale: float = 1.0, thresholds: Thresholds = DEFAULTS) -> list[RuleGroup]:
    """Return every group of rules. Raises ValueError unless `window_scale` is above 0."""
    if window_scale <= 0:
        raise ValueError(f"window_scale must be above 0, got {window_scale}")
    return [
        *objective_groups(window_scale),
        capacity_group(window_scale, thresholds),
        stale_group(window_scale),
        acute_group(window_scale),
        pressure_group(window_scale, thresholds),
        stalled_group(window_scale),
        disaggregated_group(window_scale),
        gpu_group(window_scale),
        gpu_tickets_group(window_scale),
        health_group(window_scale),
        instrument_group(window_scale),
        recording_group(window_scale),
        *user_mix_groups(window_scale),
        trends_group(window_scale),
    ]


def alerts() -> list[Alert]:
    """Return every alert in the order of the rules. A name occurs once for each of its severities and reasons."""
    return [rule for group in groups() for rule in group.rules if isinstance(rule, Alert)]


def alerts_by_panel() -> dict[tuple[str, str], list[str]]:
    """Return the names of the alerts by the panel that shows their cause: the uid of its dashboard and its title."""
    found: dict[tuple[str, str], list[str]] = {}
    for alert in {one.name: one for one in alerts()}.values():
        for uid, titles in alert.panels.items():
            for title in titles:
                found.setdefault((uid, title), []).append(alert.name)
    return found


def write(
    out: Path,
    *,
    window_scale: float = 1.0,
    links: Links = DEFAULT,
    manifest: Manifest | None = None,
    labels: AlertLabels = PLAIN_LABELS,
    thresholds: Thresholds = DEFAULTS,
) -> list[Path]:
    """Write the files into the folder `out`, created if missing. Raises ConfigError."""
    texts = render(window_scale=window_scale, links=links, manifest=manifest, labels=labels, thresholds=thresholds)
    return write_files(texts, out)


def _rehearsal(window_scale: float) -> list[str]:
    if window_scale == 1:
        return []
    return [f"REHEARSAL: windows and waiting times are {window_scale:g} times their length. Not for production."]
