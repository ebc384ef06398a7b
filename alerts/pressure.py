"""The alert on a KV cache that is too small for the load. Pure."""

from alerts.rules import Alert, Group, now
from alerts.windows import duration
from exporters import names
from probe.joined import FULL

_WINDOW_S = 300.0


def pressure_group(scale: float = 1.0) -> Group:
    """A full cache alone is good use of memory; with requests waiting or pushed out it is pressure."""
    window = duration(_WINDOW_S * scale)
    kv = f"max by (target) (avg_over_time({names.SERVER_KV.name}[{window}]))"
    # "deferred" requests wait for something other than room: a LoRA budget or a KV transfer.
    waiting = f'sum by (target) (avg_over_time({names.SERVER_WAITING.name}{{reason!="deferred"}}[{window}]))'
    preempted = f"sum by (target) (increase({names.SERVER_PREEMPTIONS.name}[{window}]))"
    expr = f"{kv} > {FULL:g}\nand ({waiting} >= 1 or {preempted} > 1)"
    waiting_now = now(f'sum({names.SERVER_WAITING.name}{{target=%q,reason!="deferred"}})')
    preempted_now = now(f"sum(increase({names.SERVER_PREEMPTIONS.name}{{target=%q}}[{window}]))")
    pressure = Alert(
        name="KneewatchKVCachePressure",
        expr=expr,
        for_s=_WINDOW_S * scale,
        severity="ticket",
        summary="{{ $labels.target }}: KV cache {{ $value | humanizePercentage }} full and holding requests back",
        description=(
            "The KV cache of {{ $labels.target }} is {{ $value | humanizePercentage }} full (average over"
            f" {window}), with {waiting_now} requests waiting now and {preempted_now} preempted in {window}."
            " Preempted requests are computed again, so load beyond this point makes everyone slower."
        ),
    )
    return Group("kneewatch-pressure", max(1.0, 30 * scale), [pressure])
