"""Alerts on discovery, and on the shards that share the targets. Pure."""

from alerts import links
from alerts.alert_labels import KEPT, by
from alerts.rules import Alert
from alerts.templates import COUNT, same, value_of, words
from alerts.windows import HOUR_S, duration
from exporters import names

_DISCOVERY = (*KEPT, "discovery")
_FAILING_S = 900.0
_NOTHING_S = 600.0
_SHARDS_S = 900.0  # longer than a rollout of a few pods, one after the other


def discovery_alerts(scale: float = 1.0) -> list[Alert]:
    """Return the alerts; `scale` shortens their waiting times. Without discoveries or shards they have no series."""
    return [_failing(scale), _too_few(scale), _shards(scale)]


def _failing(scale: float) -> Alert:
    window = duration(_FAILING_S / 3 * scale)
    return Alert(
        name="KneewatchDiscoveryFailing",
        command=links.CHECK_FOUND,
        expr=f"min {by('discovery')} (min_over_time({names.DISCOVERY_FAILING.name}[{window}])) == 1",
        for_s=_FAILING_S * 2 / 3 * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.discovery }}}}: discovery has failed for {words(_FAILING_S * scale)}; new servers are not"
            " watched"
        ),
        description=(
            f"For {words(_FAILING_S * scale)} the discovery {{{{ $labels.discovery }}}} has failed, or could not use"
            " some of its servers. Known servers are still watched; new ones are not. Kneewatch's log has the reason."
        ),
        means="a discovery fails, or cannot use some of its servers",
        panels={links.PROBE: ["Failing discoveries"]},
        unseen="no discovery fails",
    )


def _too_few(scale: float) -> Alert:
    """Alert on a discovery that found its `min_targets` and no longer does; at 0 the service may scale to zero."""
    before = duration(HOUR_S * scale)
    most = f"max {by('discovery')}"
    least, found = f"{most} ({names.DISCOVERY_LEAST.name})", names.DISCOVERED.name
    now = f"{{{{ $value | {COUNT} }}}} servers"
    should = value_of(f"max({names.DISCOVERY_LEAST.name}{{{same(_DISCOVERY)}}})", _DISCOVERY, shown=COUNT)
    return Alert(
        name="KneewatchNothingFound",
        command=links.CHECK_FOUND,
        expr=(
            f"{most} ({found}) < {least}\nand {most} (max_over_time({found}[{before}])) >= {least}\n"
            f"unless {most} ({names.DISCOVERY_FAILING.name}) == 1"
        ),
        for_s=_NOTHING_S * scale,
        severity="ticket",
        summary=f"{{{{ $labels.discovery }}}}: discovery finds {now}, and should find {should} or more",
        description=(
            f"The discovery {{{{ $labels.discovery }}}} found enough servers within the last {words(HOUR_S * scale)}"
            f" and has found"
            f" {now} for {words(_NOTHING_S * scale)}: they were scaled down, are not ready, or the selection no"
            " longer matches them. No other alert can fire for servers that are not discovered. If the service"
            " may scale to zero, set `discover.min_targets: 0`."
        ),
        means="a discovery finds fewer servers than its `min_targets`",
        panels={links.PROBE: ["Discovered servers"]},
        unseen="every server that is discovered stays",
    )


def incomplete_shards() -> str:
    """Return an expression for jobs with missing shards, or with shards that disagree on their number."""
    there = f'count {by("job")} (count_values {by("job")} ("shard", {names.SHARD.name}))'
    of = f"{by('job')} ({names.SHARDS.name})"
    return f"{there} != max {of}\n  or max {of} != min {of}"


def _shards(scale: float) -> Alert:
    return Alert(
        name="KneewatchShardsMismatch",
        command=links.PODS,
        expr=incomplete_shards(),
        for_s=_SHARDS_S * scale,
        severity="ticket",
        summary="{{ $labels.job }}: some targets are watched by no shard, or by more than one",
        description=(
            f"For {words(_SHARDS_S * scale)} the Kneewatch instances of job {{{{ $labels.job }}}} have not been the"
            " shards they should be: one is missing, or they disagree on how many there are. The targets of a missing"
            " shard are not watched. `--total-shards` must equal the StatefulSet's replicas."
        ),
        means="a shard is missing, or the shards disagree on how many there are",
        panels={links.PROBE: ["Shards"]},
        unseen="one Kneewatch watches all targets",
    )
