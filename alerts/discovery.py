"""The alerts on targets that are found, and on Kneewatches that share them. Pure."""

from alerts.links import PROBE
from alerts.rules import Alert
from alerts.windows import HOUR_S, duration
from exporters import names

_FAILING_S = 900.0
_NOTHING_S = 600.0
_SHARDS_S = 900.0  # longer than a rollout of a few pods, one after the other


def discovery_alerts(scale: float = 1.0) -> list[Alert]:
    """For a configuration that has discoveries; `scale` shortens their waiting times."""
    return [_failing(scale), _nothing(scale)]


def shard_alerts(scale: float = 1.0) -> list[Alert]:
    """Where nobody shards, these have no series."""
    return [_shards(scale)]


def _failing(scale: float) -> Alert:
    window = duration(_FAILING_S / 3 * scale)
    return Alert(
        name="KneewatchDiscoveryFailing",
        expr=f"min by (target) (min_over_time({names.DISCOVERY_FAILING.name}[{window}])) == 1",
        for_s=_FAILING_S * 2 / 3 * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.target }}: which servers there are cannot be found out",
        description=(
            f"For {duration(_FAILING_S * scale)} the discovery of {{{{ $labels.target }}}} has not said which servers"
            " there are, or has left some of them out. Those that it found before are watched still; new ones are not."
            " The log of Kneewatch says why."
        ),
    )


def _nothing(scale: float) -> Alert:
    before = duration(HOUR_S * scale)
    found = names.DISCOVERED.name
    return Alert(
        name="KneewatchNothingFound",
        expr=(
            f"max by (target) ({found}) == 0\n"
            f"  and max by (target) (max_over_time({found}[{before}])) > 0\n"
            f"  unless max by (target) ({names.DISCOVERY_FAILING.name}) == 1"
        ),
        for_s=_NOTHING_S * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.target }}: no server is left of those that were found",
        description=(
            f"Within the last {before} discovery found servers of {{{{ $labels.target }}}}, and for"
            f" {duration(_NOTHING_S * scale)} it has found none: they were scaled to zero, none of them gets ready, or"
            " what they are found by has changed. No other alert can fire for servers that nobody finds."
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
        summary="{{ $labels.job }}: some targets are nobody's, or several Kneewatches'",
        description=(
            f"For {duration(_SHARDS_S * scale)} the Kneewatches of {{{{ $labels.job }}}} have not been the shards that"
            " they should be: one is gone, or they do not agree on how many there are. Targets of a missing shard are"
            " watched by nobody. `--total-shards` has to be the StatefulSet's replicas."
        ),
    )
