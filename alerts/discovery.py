"""Alerts on discovery, and on the shards that share the targets. Pure."""

from alerts.links import PROBE
from alerts.rules import Alert
from alerts.windows import HOUR_S, duration
from exporters import names

_FAILING_S = 900.0
_NOTHING_S = 600.0
_SHARDS_S = 900.0  # longer than a rollout of a few pods, one after the other


def discovery_alerts(scale: float = 1.0) -> list[Alert]:
    """Return the alerts for a configuration with discoveries; `scale` shortens their waiting times."""
    return [_failing(scale), _nothing(scale)]


def shard_alerts(scale: float = 1.0) -> list[Alert]:
    """Return the alerts on shards; without sharding they have no series."""
    return [_shards(scale)]


def _failing(scale: float) -> Alert:
    window = duration(_FAILING_S / 3 * scale)
    return Alert(
        name="KneewatchDiscoveryFailing",
        expr=f"min by (discovery) (min_over_time({names.DISCOVERY_FAILING.name}[{window}])) == 1",
        for_s=_FAILING_S * 2 / 3 * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.discovery }}: discovery fails",
        description=(
            f"For {duration(_FAILING_S * scale)} the discovery {{{{ $labels.discovery }}}} has failed, or could not use"
            " some of its servers. Known servers are still watched; new ones are not. Kneewatch's log has the reason."
        ),
    )


def _nothing(scale: float) -> Alert:
    before = duration(HOUR_S * scale)
    found = names.DISCOVERED.name
    return Alert(
        name="KneewatchNothingFound",
        expr=(
            f"max by (discovery) ({found}) == 0\n"
            f"  and max by (discovery) (max_over_time({found}[{before}])) > 0\n"
            f"  unless max by (discovery) ({names.DISCOVERY_FAILING.name}) == 1"
        ),
        for_s=_NOTHING_S * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.discovery }}: discovery finds no servers any more",
        description=(
            f"The discovery {{{{ $labels.discovery }}}} found servers within the last {before} and has found none for"
            f" {duration(_NOTHING_S * scale)}: they were scaled to zero, none becomes ready, or the selection no longer"
            " matches them. No other alert can fire for servers that are not discovered."
        ),
    )


def _shards(scale: float) -> Alert:
    there = f'count by (job) (count_values by (job) ("shard", {names.SHARD.name}))'
    of = f"by (job) ({names.SHARDS.name})"
    return Alert(
        name="KneewatchShardsMismatch",
        expr=f"{there} != max {of}\n  or max {of} != min {of}",
        for_s=_SHARDS_S * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.job }}: some targets are watched by no shard, or by more than one",
        description=(
            f"For {duration(_SHARDS_S * scale)} the Kneewatch instances of job {{{{ $labels.job }}}} have not been the"
            " shards they should be: one is missing, or they disagree on how many there are. The targets of a missing"
            " shard are not watched. `--total-shards` must equal the StatefulSet's replicas."
        ),
    )
