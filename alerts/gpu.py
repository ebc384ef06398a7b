"""Alerts on a target's GPUs: XID errors, throttling, memory errors, missing GPUs. Pure.

Only series that Kneewatch relays count, which have a `target` label: a Prometheus that scrapes dcgm-exporter itself has
the same series for GPUs without a target. A series that the exporter does not export is absent and blocks no other
condition. A GPU is identified by its UUID, not by its pod: the error that ends a pod must not look like another GPU's.
"""

from functools import partial

from alerts import inhibitions, links, xid
from alerts.rules import Alert, FaultKind, Recording, RuleGroup
from alerts.templates import asked, same
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names
from probe.gpu.fields import LABELS

# `namespace` may be that of the pod that used the GPU, and go with it.
_TARGET_LABELS, _CARD_LABELS = ("cluster", "target"), ("cluster", "target", "UUID")
_TARGET = f"by ({', '.join(_TARGET_LABELS)})"
_BY = "by (cluster, target, gpu, UUID, modelName, Hostname)"
_THIS = same(_CARD_LABELS)
_NAME = "{{ $labels.target }}: GPU {{ $labels.gpu }} of {{ $labels.Hostname }}"
_CARD = "GPU {{ $labels.gpu }} ({{ $labels.modelName }}, {{ $labels.UUID }}) of {{ $labels.Hostname }}"

# Two evaluations of the group.
_SURE_S = 30.0

# The exporter shows the last XID until another one comes, possibly for weeks. It counts as new for an hour.
_XID_S = HOUR_S

_THROTTLE_S = 600.0
_SAMPLE_S = 30.0  # dcgm-exporter's default collection interval
# A few seconds at the thermal limit are normal. A quarter of the time costs up to a quarter of the clocks.
_THROTTLE_SHARE = 0.25
# A GPU at its power limit is well used, and its clocks drop by a third in heavy prefill. Below half of the day's
# maximum, the limit was lowered or the power supply failed.
_CAPPED_SHARE = 0.5
_CAPPED_CLOCK = 0.5

_ERRORS_S = HOUR_S
# The counters do not move after an error. Keep the ticket for a day so that it is noticed.
_ERRORS_KEEP_S = DAY_S

# A rolling restart moves a pod and its GPUs within minutes.
_MISSING_FOR_S = 600.0
_MISSING_S = 2 * HOUR_S
_UNREAD_S = 900.0
_UNREAD_SINCE_S = 6 * HOUR_S
_STEP_S = 300.0

_gpu_missing = partial(
    Alert,
    name="KneewatchGPUMissing",
    means="a GPU is missing, or the GPU metrics cannot be read",
    panels={links.TARGET: ["GPU busy", "GPUs and neighbours"], links.SERVER: ["GPU metrics"]},
    silenced_by=(inhibitions.GPU_XID,),
    follows=(FaultKind.DEAD,),
)


def _relayed(name: str, more: str = "") -> str:
    return f'{names.gpu(name).name}{{target!=""{more}}}'


def gpu_group(scale: float = 1.0) -> RuleGroup:
    """Return the alerts on XIDs, for targets whose GPUs are read; `scale` shortens windows and waiting times."""
    rules: list[Recording | Alert] = [_new_xid(scale), _xid(scale, page=True), _xid(scale, page=False)]
    return RuleGroup("kneewatch-gpu", max(1.0, 60 * scale), rules)


def gpu_tickets_group(scale: float = 1.0) -> RuleGroup:
    """Return the alerts on GPUs of which none is a page; `scale` as above."""
    rules = [_throttling(scale), _memory(scale), _missing(scale), _unread(scale)]
    return RuleGroup("kneewatch-gpu-tickets", max(1.0, 120 * scale), rules)


def _new_xid(scale: float) -> Recording:
    """Record 1 with the XID as the label `xid` for a GPU whose last XID changed within the hour.

    A first scrape that shows an old XID has nothing to differ from. If the GPU's pod died of it, and its series with
    it, the last sample counts. The same XID twice looks like once.
    """
    window, series = duration(_XID_S * scale), _relayed("DCGM_FI_DEV_XID_ERRORS")
    last = f"(\n    max {_BY} ({series})\n    or max {_BY} (last_over_time({series}[{window}]))\n  )"
    least, most = (f"{function} {_BY} ({function}_over_time({series}[{window}]))" for function in ("min", "max"))
    return Recording(
        f"target_gpu_xid:{names.gpu('DCGM_FI_DEV_XID_ERRORS').name}:new{window}",
        f'count_values {_BY} ("xid",\n  {last} > 0\n  unless ({least} == {most})\n)',
    )


def _xid(scale: float, *, page: bool) -> Alert:
    numbers = "|".join(map(str, xid.FATAL))
    return Alert(
        name="KneewatchGPUXid",
        expr=f'{_new_xid(scale).record}{{xid{"=" if page else "!"}~"{numbers}"}}',
        for_s=_SURE_S * scale,
        severity="page" if page else "ticket",
        summary=f"{_NAME} reports XID {{{{ $labels.xid }}}}",
        description=(
            f"The driver of {_CARD}, used by {{{{ $labels.target }}}}, reported XID {{{{ $labels.xid }}}}:"
            f" {xid.meaning(xid.FATAL if page else xid.OTHERS)}. This is the latest one; earlier ones are in the kernel"
            " log."
        ),
        means="the driver reports an XID error; a page if the GPU does no more work",
        panels={links.TARGET: ["GPU faults", "Errors"]},
        follows=(FaultKind.DEAD,),
    )


def _bits(reasons: str, *, capped: bool) -> str:
    """Return an expression that is 1 where NVML's clock event reasons have one of the bits, else 0.

    PromQL has no bit operators, hence the division and modulo. Slowed: 0x08 (hardware), 0x20 (thermal, software), 0x40
    (thermal, hardware) or 0x80 (power brake); 0x10 (sync boost) comes from another GPU. Capped: 0x04, the power limit.
    """
    if capped:
        return f"floor({reasons} / 4) % 2"
    return f"(floor({reasons} / 8) % 2 + floor({reasons} / 32) % 8 > bool 0)"


def _throttling(scale: float) -> Alert:
    window = duration(_THROTTLE_S * scale)
    step = duration(max(1.0, _SAMPLE_S * scale))
    reasons = _relayed("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
    clock, heat = _relayed("DCGM_FI_DEV_SM_CLOCK"), _relayed("DCGM_FI_DEV_THERMAL_VIOLATION")
    slowed, capped = (
        f"max {_BY} (avg_over_time(({_bits(reasons, capped=capped)})[{window}:{step}]))" for capped in (False, True)
    )
    hot = f"max {_BY} (rate({heat}[{window}])) / 1e9"  # nanoseconds
    best = f"max_over_time({clock}[{duration(DAY_S * scale)}:{duration(max(1.0, 600 * scale))}])"
    fell = f"max {_BY} (avg_over_time({clock}[{window}])) < {_CAPPED_CLOCK:g} * max {_BY} ({best})"
    clock_now, degrees, watts, limit = (
        asked(f"max({_relayed(name, f',{_THIS}')})", _CARD_LABELS)
        for name in (
            "DCGM_FI_DEV_SM_CLOCK",
            "DCGM_FI_DEV_GPU_TEMP",
            "DCGM_FI_DEV_POWER_USAGE",
            "DCGM_FI_DEV_POWER_MGMT_LIMIT",
        )
    )
    return Alert(
        name="KneewatchGPUThrottling",
        expr=(
            f"{slowed} > {_THROTTLE_SHARE:g}\nor {hot} > {_THROTTLE_SHARE:g}\n"
            f"or {capped} > {_CAPPED_SHARE:g}\n  and {fell}"
        ),
        for_s=_THROTTLE_S / 2 * scale,
        severity="ticket",
        summary=f"{_NAME} is throttled {{{{ $value | humanizePercentage }}}} of the time",
        description=(
            f"The clocks of {_CARD} were lowered for {{{{ $value | humanizePercentage }}}} of the last {window}. Now:"
            f" {clock_now} MHz, {degrees} °C, {watts} W of {limit} W. A tensor-parallel group is as slow as its slowest"
            " GPU."
        ),
        means="the clocks of a GPU are throttled",
        panels={
            links.TARGET: ["Power", "SM clock", "Throttling"],
            links.SERVER: ["Temperature", "Memory clock and throttle reasons"],
        },
        finds=(FaultKind.SLOW,),
    )


def _memory(scale: float) -> Alert:
    window = duration(_ERRORS_S * scale)
    grown = (
        ("double_bit_ecc", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
        ("remapped_rows", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
    )
    kinds = [_as_error(kind, _grown(_relayed(name), window)) for kind, name in grown]
    failed = f"max {_BY} ({_relayed('DCGM_FI_DEV_ROW_REMAP_FAILURE')}) > 0"
    words = (
        '{{ if eq $labels.error "remap_failure" }}a memory row that could not be replaced by a spare row'
        '{{ else if eq $labels.error "remapped_rows" }}memory rows replaced after uncorrectable errors'
        "{{ else }}uncorrectable (double-bit) ECC errors{{ end }}"
    )
    return Alert(
        name="KneewatchGPUMemoryErrors",
        expr="\nor ".join([*kinds, _as_error("remap_failure", failed)]),
        for_s=_SURE_S * scale,
        keep_s=_ERRORS_KEEP_S * scale,
        severity="ticket",
        summary=f"{_NAME} has uncorrectable memory errors",
        description=(
            f"{_CARD} reports {words}. The driver kills the processes that used that memory. Reset the GPU to retire"
            " the row; if no spare row is left, replace the GPU."
        ),
        means="a GPU has uncorrectable memory errors",
        panels={links.TARGET: ["Errors"], links.SERVER: ["Failed row remapping", "Corrected memory errors"]},
        unseen="no fault damages the memory of a GPU",
    )


def _grown(series: str, window: str) -> str:
    """Return how far a counter is above its minimum in the window, where it is above.

    increase() works by series, and a new pod or Kneewatch starts another series.
    """
    last = f"(max {_BY} ({series}) or max {_BY} (last_over_time({series}[{window}])))"
    return f"{last} - min {_BY} (min_over_time({series}[{window}])) > 0"


def _as_error(kind: str, expr: str) -> str:
    return f'label_replace({expr}, "error", "{kind}", "", "")'


def _missing(scale: float) -> Alert:
    """Compare with the count before; where NVML still lists a lost GPU, count those that report a temperature."""
    window, step = duration(_MISSING_S * scale), duration(max(1.0, _STEP_S * scale))
    listed, heat = names.GPU_COUNT.name, _relayed("DCGM_FI_DEV_GPU_TEMP")
    reporting = f"count without ({', '.join(LABELS)}) ({heat})"
    counted = asked(f"max({listed}{{{same(_TARGET_LABELS)}}})", _TARGET_LABELS)
    return _gpu_missing(
        expr=(
            f"max {_TARGET} (max_over_time({listed}[{window}]) - {listed}) > 0\n"
            f"or max {_TARGET} (max_over_time(({reporting})[{window}:{step}]) - {reporting}) > 0"
        ),
        for_s=_MISSING_FOR_S * scale,
        severity="ticket",
        summary="{{ $labels.target }}: {{ $value | humanize }} of its GPUs missing",
        description=(
            f"{{{{ $value | humanize }}}} fewer GPUs of {{{{ $labels.target }}}} answer than within the last {window};"
            f" listed now: {counted}. Either the driver lost a GPU, or the server now runs on fewer. A tensor-parallel"
            " group does not survive this; independent replicas lose capacity."
        ),
        labels={"reason": "missing"},
    )


def _unread(scale: float) -> Alert:
    unread, since = duration(_UNREAD_S * scale), duration(_UNREAD_SINCE_S * scale)
    up = names.GPU_UP.name
    was = f"max_over_time({up}[{since}:{duration(max(1.0, _STEP_S * scale))}]) == 1"
    return _gpu_missing(
        expr=f"max {_TARGET} (max_over_time({up}[{unread}]) == 0 and {was})",
        for_s=60 * scale,
        severity="ticket",
        summary=f"{{{{ $labels.target }}}}: its GPU metrics have been unreadable for {unread}",
        description=(
            f"Every attempt to read the GPU metrics of {{{{ $labels.target }}}} has failed for {unread}; earlier ones"
            " succeeded. The state of the GPUs is unknown: dcgm-exporter is down, or it hangs on a GPU that the driver"
            " lost. No other GPU alert of this target can fire until its metrics are back."
        ),
        labels={"reason": "unread"},
    )
