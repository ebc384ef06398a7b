"""Alerts on prefill and decode on different servers: KV caches that do not arrive, one role short of servers. Pure."""

from alerts import links
from alerts.alert_labels import by, on
from alerts.pressure import of_server, waiting
from alerts.rules import Alert, Recording, RuleGroup
from alerts.templates import OF_TARGET, asked
from alerts.windows import duration
from exporters import names
from exporters.names import Series

_WINDOW_S = 600.0
# A server that is replaced fails the transfers under way. Above one in a hundred, the p99 of TTFT is theirs.
_LEAST, _SHARE = 3, 0.01
# Requests that wait at every moment of it, for each server of a role; its other role then has no queue at all.
_QUEUE_S, _STANDING = 300.0, 1
_ROOM = 0.5  # of the KV cache


def disaggregated_group(scale: float = 1.0) -> RuleGroup:
    """Return the rules for all targets; `scale` shortens windows and waiting times."""
    rules: list[Recording | Alert] = [_transfers(scale), _roles(scale)]
    return RuleGroup("kneewatch-disaggregated", max(1.0, 60 * scale), rules)


def _transfers(scale: float) -> Alert:
    """Alert on KV caches that do not arrive: on the server that fetches, or on the one whose caches nobody fetched."""
    window = duration(_WINDOW_S * scale)

    def grown(series: str) -> str:
        return f"round({of_server(f'increase({series}[{window}])')})"

    def now(series: Series) -> str:
        return asked(f"round(max(increase({series.name}{{{OF_TARGET}}}[{window}])))")

    failed, fetched = grown(names.SERVER_KV_TRANSFER_FAILURES.name), grown(names.SERVER_KV_TRANSFERS.name)
    expired = grown(names.SERVER_KV_TRANSFERS_EXPIRED.name)
    finished = grown(f"{names.SERVER_PREEMPTIONS_PER_REQUEST.name}_count")
    return Alert(
        name="KneewatchKVTransferFailing",
        expr=(
            f"  {failed} >= {_LEAST}\n  and {failed} > {_SHARE:g} * ({fetched} + {failed})\n"
            f"  or {expired} >= {_LEAST}\n  and {expired} > {_SHARE:g} * {finished}"
        ),
        for_s=900 * scale,  # longer than the window: a burst that has passed is no ticket
        keep_s=600 * scale,
        severity="ticket",
        summary="{{ $labels.target }}: {{ $value | humanize }} KV caches of requests did not arrive",
        description=(
            f"In {window}, {{{{ $labels.target }}}} fetched {now(names.SERVER_KV_TRANSFERS)} KV caches from prefill"
            f" servers; {now(names.SERVER_KV_TRANSFER_FAILURES)} transfers or handshakes failed, and"
            f" {now(names.SERVER_KV_TRANSFERS_EXPIRED)} of the caches that it computed itself were not fetched in time."
            " Each such request fails, or its prompt is computed twice, as the servers' kv_load_failure_policy says."
        ),
        means=(
            "more than one in a hundred KV caches does not reach the decode server"
            " ([roles](integrations.md#prefill-and-decode-on-different-servers))"
        ),
        panels={links.SERVER: ["KV transfers"]},
        unseen="the servers do both prefill and decode",
    )


def _roles(scale: float) -> Alert:
    """Alert if the servers of one role have had a queue for long while those of the other have room."""
    window = duration(_QUEUE_S * scale)
    short = f"avg {by('discovery', 'role')} ({_grouped(of_server(f'min_over_time({waiting()}[{window}])'))})"
    queue = f"max {by('discovery', 'role')} ({_grouped(of_server(f'max_over_time({waiting()}[{window}])'))})"
    usage = f"max {by('target')} (max_over_time({names.SERVER_KV.name}[{window}]))"
    filled = f"avg {by('discovery', 'role')} ({_grouped(usage)})"
    return Alert(
        name="KneewatchRolesUnbalanced",
        expr=f"{short} >= {_STANDING}\nand {on('discovery')} (\n  {queue} == 0\n  and {filled} < {_ROOM:g}\n)",
        for_s=900 * scale,
        severity="ticket",
        summary="{{ $labels.discovery }}: too few servers for {{ $labels.role }}, and room on the others",
        description=(
            "The {{ $labels.role }} servers of {{ $labels.discovery }} have had requests waiting at every moment for"
            f" {duration((900 + _QUEUE_S) * scale)}, {{{{ $value | humanize }}}} each on average, while those of the"
            f" other role had no queue and used less than {_ROOM:.0%} of their KV cache. Requests wait for one half of"
            " the servers; the other half is idle."
        ),
        means="prefill servers have had a queue for 20 minutes while decode servers have room, or the reverse",
        panels={links.FLEET: ["Most waiting requests"]},
        unseen="the servers do both prefill and decode",
    )


def _grouped(of_target: str) -> str:
    """Return values of targets with their role, and with their discovery, or the GROUP of GROUP/NAME, as `discovery`.

    A target without either serves with none that is known.
    """
    role = f'max {by("target", "role")} ({names.SERVER_ROLE.name}{{target=~".+/.+"}})'
    with_role = f"{of_target} * {on('target')} group_left(role) {role}"
    return f'label_replace({with_role}, "discovery", "$1", "target", "([^/]+)/.*")'
