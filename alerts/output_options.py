"""Checks of the options of `kneewatch alerts` and `kneewatch dashboards`.

Every ConfigError names its option.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from alerts.alert_labels import AlertLabels
from alerts.links import DASHBOARDS, FLEET
from probe.core.errors import ConfigError
from probe.core.text import one_line

if TYPE_CHECKING:
    from alerts.rules import Manifest
    from alerts.thresholds import Thresholds

_UID_LENGTH = 40  # Grafana's limit
# Kubernetes' own rules for names (RFC 1123) and labels.
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_DNS_NAME = re.compile(rf"(?=.{{1,253}}$){_DNS_LABEL.pattern}(\.{_DNS_LABEL.pattern})*", re.ASCII)
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_ALERT_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)  # Prometheus' rule
_OWN_LABELS = frozenset({"alertname", "severity", "urgency", "group", "target", "discovery"})
SEVERITIES = ("page", "ticket", "none")


class RulesFormat(StrEnum):
    """The reader of the rules: Prometheus itself, or the Prometheus Operator."""

    PROMETHEUS = "prometheus"
    OPERATOR = "operator"


def check_address(url: str, option: str, example: str) -> str:
    """Return the address if it is valid, has no credentials, and is no template of Prometheus. Raises ConfigError."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ConfigError(f"{option}: expected an address without credentials, which all who see an alert could read")
    if not url.startswith(("http://", "https://")) or not url.isprintable() or " " in url or "{" in url:
        raise ConfigError(f"{option} {one_line(url)}: expected an address such as {example}")
    return url


def check_uid_prefix(prefix: str) -> str:
    """Return the prefix of the dashboards' identifiers if it is valid. Raises ConfigError."""
    longest = _UID_LENGTH - max(len(uid) for uid, _ in DASHBOARDS)
    if len(prefix) > longest or not re.fullmatch(r"[A-Za-z0-9_-]*", prefix, re.ASCII):
        raise ConfigError(
            f"--uid-prefix {one_line(prefix)}: expected at most {longest} of A-Z, a-z, 0-9, - and _, such as team-a-"
        )
    return prefix


def check_config_map(uid_prefix: str, namespace: str | None, *, configmap: bool) -> None:
    """Check the names and the namespace of ConfigMaps with dashboards. Raises ConfigError."""
    if not configmap:
        if namespace is not None:
            raise ConfigError("--namespace: goes with --configmap only; a file for Grafana has none")
        return
    if not _DNS_NAME.fullmatch(f"{uid_prefix}{FLEET}"):
        raise ConfigError(
            f"--uid-prefix {one_line(uid_prefix)}: names ConfigMaps too; expected a-z, 0-9 and - only, the first no -,"
            " such as team-a-"
        )
    if namespace is not None:
        _namespace(namespace)


def check_window_scale(scale: float) -> float:
    """Return the factor for windows if it is valid. Raises ConfigError."""
    if not 0 < scale <= 1:
        raise ConfigError(f"--window-scale {scale:g}: expected a number above 0 and at most 1, such as 0.01")
    return scale


def prometheus_rule(written: RulesFormat, namespace: str | None, labels: Sequence[str]) -> "Manifest | None":
    """Return the metadata of the PrometheusRules, or None for a plain file. Raises ConfigError."""
    if written is RulesFormat.OPERATOR:
        from alerts.rules import Manifest  # noqa: PLC0415 - it imports yaml, which --help does without

        return Manifest(_namespace(namespace) if namespace is not None else "", _labels(labels))
    for option, given in (("--namespace", namespace), ("--label", labels)):
        if given:
            raise ConfigError(f"{option}: goes with --format operator only; a plain rules file has none")
    return None


def alert_labels(severities: Sequence[str], more: Sequence[str]) -> AlertLabels:
    """Return the labels of all alerts. Raises ConfigError."""
    renamed: dict[str, str] = {}
    for text in severities:
        ours, equals, theirs = text.partition("=")
        if not equals or ours not in SEVERITIES or not _is_plain(theirs):
            raise ConfigError(
                f"--severity {one_line(text)}: expected page, ticket or none and its new name, such as page=critical"
            )
        if ours in renamed:
            raise ConfigError(f"--severity {one_line(text)}: {ours} is given twice; give each severity once")
        renamed[ours] = theirs
    added: dict[str, str] = {}
    for text in more:
        key, equals, value = text.partition("=")
        if not equals or not _ALERT_LABEL.fullmatch(key) or key.startswith("__") or not _is_plain(value):
            raise ConfigError(f"--alert-label {one_line(text)}: expected key=value, such as team=ml")
        if key in _OWN_LABELS:
            raise ConfigError(f"--alert-label {one_line(text)}: {key} is set by the rules; choose another name")
        if key in added:
            raise ConfigError(f"--alert-label {one_line(text)}: {key} is given twice; give each label once")
        added[key] = value
    return AlertLabels(renamed, added)


def chosen_thresholds(written: Sequence[str]) -> "Thresholds":
    """Return the thresholds of alerts, with the values that are given. Raises ConfigError."""
    from alerts.thresholds import THRESHOLDS, thresholds  # noqa: PLC0415 - beside what --help does without

    known = {each.name: each for each in THRESHOLDS}
    values: dict[str, float] = {}
    for text in written:
        name, _, value = text.partition("=")
        if name not in known:
            raise ConfigError(f"--set {one_line(text)}: expected NAME=VALUE, with NAME one of {', '.join(known)}")
        if name in values:
            raise ConfigError(f"--set {one_line(text)}: {name} is given twice; give each threshold once")
        row = known[name]
        number = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+) ?(%?)", value, re.ASCII)
        given = float(number[1]) / (100 if number[2] else 1) if number else -1.0
        if not row.least <= given <= row.most:
            raise ConfigError(
                f"--set {one_line(text)}: expected a number from {row.least:g} to {row.most:g},"
                f" such as {name}={row.default:g}"
            )
        values[name] = given
    return thresholds(**values)


def _is_plain(value: str) -> bool:
    """Report whether a label's value is printable and no template."""
    return bool(value) and value.isprintable() and "{{" not in value


def _namespace(name: str) -> str:
    if not _DNS_LABEL.fullmatch(name):
        raise ConfigError(
            f"--namespace {one_line(name)}: expected at most 63 of a-z, 0-9 and -, the first and the last no -,"
            " such as monitoring"
        )
    return name


def _labels(written: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in written:
        key, equals, value = text.partition("=")
        if not (equals and _is_key(key) and (not value or _LABEL_NAME.fullmatch(value))):
            raise ConfigError(
                f"--label {one_line(text)}: expected key=value as Kubernetes allows them,"
                " such as release=kube-prometheus-stack"
            )
        if key in labels:
            raise ConfigError(f"--label {one_line(text)}: {key} is given twice; give each key once")
        labels[key] = value
    return labels


def _is_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    return bool(_LABEL_NAME.fullmatch(name)) and (not slash or bool(_DNS_NAME.fullmatch(domain)))
