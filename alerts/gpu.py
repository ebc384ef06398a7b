"""Alerts on a target's GPUs: XID errors, throttling, memory errors, missing GPUs. Pure.

A series that the exporter does not export is absent and blocks no other condition. A GPU is identified by its UUID, not
by its pod: the error that ends a pod must not look like another GPU's.
"""

from collections.abc import Iterable, Mapping
from functools import partial

from alerts import inhibitions, links
from alerts.rules import Alert, FaultKind, Recording, RuleGroup
from alerts.templates import COUNT, PERCENT, same, value_of, words
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names
from probe.gpu.fields import LABELS

# `namespace` may be the namespace of the pod that used the GPU, and disappear with the pod.
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
    panels={links.SERVER: ["GPU busy", "GPUs and neighbours", "GPU metrics"]},
    silenced_by=(inhibitions.GPU_XID,),
    follows=(FaultKind.DEAD,),
)

# What XID errors mean and ask for, after "Analyzing Xid Errors with the Xid Catalog"
# (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of October 2025).
#
# XIDs with a GPU reset or a node restart as immediate action in the catalogue; the GPU does no work until then. Also
# 48, which needs a reset unless the error was contained; and 154, which newer drivers report right after any of these
# to name the action, and which hides them, because only the last number is exported.
FATAL_XIDS: Mapping[int, str] = {
    46: "the GPU stopped processing; reset it",
    48: "uncorrectable (double-bit) memory error; drain the node, and reset the GPU unless XID 94 follows (contained)",
    62: "the GPU's internal micro-controller halted; reset the GPU",
    64: "a bad memory row could not be retired; reset the GPU, and have it replaced if it comes back",
    79: "the GPU has fallen off the bus; restart the node",
    95: "uncontained memory error: anything on this GPU may be wrong; reset the GPU",
    109: "context switch timed out; reset the GPU",
    110: "security fault; reset the GPU",
    119: "the GPU's system processor (GSP) does not answer; reset the GPU",
    120: "the GPU's system processor (GSP) failed; reset the GPU",
    136: "an NVLink could not be trained; reset the GPU",
    140: "unrecovered ECC error; reset the GPU",
    143: "the GPU could not be initialised; reset it",
    154: "after another XID the driver asks for a recovery action, which its line in the kernel log names",
    155: "software-defined NVLink error; reset the GPU",
    158: "fatal timeout of the GPU; reset it",
}
# Most of these end the process; the GPU keeps working.
OTHER_XIDS: Mapping[int, str] = {
    13: "an exception in a CUDA kernel, usually an application error; the process ends",
    31: "an illegal memory access, usually an application error; the process ends",
    43: "the process was stopped after an error of its own; the GPU is healthy",
    45: "cleanup after another error or a killed process; the kernel log has the cause",
    63: "a memory row will be replaced by a spare row at the next GPU reset",
    74: "NVLink error; a group of GPUs that uses the link may hang or end",
    92: "many correctable memory errors; watch this GPU",
    94: "contained memory error: only the process that used it ends; restart it, and reset the GPU when you can",
    **dict.fromkeys(range(144, 151), "NVLink error; the kernel log says whether it was fatal"),
}


def _value(name: str, matchers: str = "") -> str:
    """Return the selector of a value by its name at dcgm-exporter."""
    return f"{names.gpu(name).name}{{{matchers}}}" if matchers else names.gpu(name).name


def gpu_group(scale: float = 1.0) -> RuleGroup:
    """Return the alerts on XIDs, for targets with GPUs that are read; `scale` shortens windows and waiting times."""
    rules: list[Recording | Alert] = [_new_xid(scale), _xid(scale, page=True), _xid(scale, page=False)]
    return RuleGroup("kneewatch-gpu", max(1.0, 60 * scale), rules)


def gpu_tickets_group(scale: float = 1.0) -> RuleGroup:
    """Return the tickets on GPUs; `scale` shortens windows and waiting times."""
    rules = [_throttling(scale), _memory(scale), _missing(scale), _unread(scale)]
    return RuleGroup("kneewatch-gpu-tickets", max(1.0, 120 * scale), rules)


def _new_xid(scale: float) -> Recording:
    """Record 1 with the XID as the label `xid` for each GPU with a new last XID within the hour.

    A first scrape that shows an old XID has nothing to differ from. If the GPU's pod died with it, and so did its
    series, the last sample counts. The same XID twice looks like once.
    """
    window, series = duration(_XID_S * scale), _value("DCGM_FI_DEV_XID_ERRORS")
    last = f"(\n    max {_BY} ({series})\n    or max {_BY} (last_over_time({series}[{window}]))\n  )"
    least, most = (f"{function} {_BY} ({function}_over_time({series}[{window}]))" for function in ("min", "max"))
    return Recording(
        f"target_gpu_xid:{names.gpu('DCGM_FI_DEV_XID_ERRORS').name}:new{window}",
        f'count_values {_BY} ("xid",\n  {last} > 0\n  unless ({least} == {most})\n)',
    )


def _xid(scale: float, *, page: bool) -> Alert:
    numbers, meaning = "|".join(map(str, FATAL_XIDS)), xid_meaning(FATAL_XIDS if page else OTHER_XIDS)
    return Alert(
        name="KneewatchGPUXid",
        expr=f'{_new_xid(scale).record}{{xid{"=" if page else "!"}~"{numbers}"}}',
        for_s=_SURE_S * scale,
        severity="page" if page else "ticket",
        summary=f"{_NAME} reports XID {{{{ $labels.xid }}}}: {meaning}",
        description=(
            f"The driver of {_CARD}, used by {{{{ $labels.target }}}}, reported XID {{{{ $labels.xid }}}}:"
            f" {meaning}. This is the latest one; earlier ones are in the"
            " kernel log."
        ),
        means="the driver reports an XID error; a page if the GPU does no more work",
        panels={links.SERVER: ["GPU faults", "Errors"]},
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
    reasons = _value("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
    clock, heat = _value("DCGM_FI_DEV_SM_CLOCK"), _value("DCGM_FI_DEV_THERMAL_VIOLATION")
    slowed, capped = (
        f"max {_BY} (avg_over_time(({_bits(reasons, capped=capped)})[{window}:{step}]))" for capped in (False, True)
    )
    hot = f"max {_BY} (rate({heat}[{window}]))"
    best = f"max_over_time({clock}[{duration(DAY_S * scale)}:{duration(max(1.0, 600 * scale))}])"
    fell = f"max {_BY} (avg_over_time({clock}[{window}])) < {_CAPPED_CLOCK:g} * max {_BY} ({best})"
    now = "".join(
        value_of(f"max({query})", _CARD_LABELS, shown=COUNT, before=f"{before} ", after=f" {unit}. ", none="")
        for before, query, unit in (
            ("Clock now:", f"{_value('DCGM_FI_DEV_SM_CLOCK', _THIS)} / 1e6", "MHz"),
            ("Temperature now:", _value("DCGM_FI_DEV_GPU_TEMP", _THIS), "°C"),
            ("Power now:", _value("DCGM_FI_DEV_POWER_USAGE", _THIS), "W"),
            ("Power limit:", _value("DCGM_FI_DEV_POWER_MGMT_LIMIT", _THIS), "W"),
        )
    )
    return Alert(
        name="KneewatchGPUThrottling",
        expr=(
            f"{slowed} > {_THROTTLE_SHARE:g}\nor {hot} > {_THROTTLE_SHARE:g}\n"
            f"or {capped} > {_CAPPED_SHARE:g}\n  and {fell}"
        ),
        for_s=_THROTTLE_S * scale,  # as long as the window: a slowdown that has passed is no ticket
        severity="ticket",
        summary=f"{_NAME} was throttled {{{{ $value | {PERCENT} }}}} of {words(_THROTTLE_S * scale)}",
        description=(
            f"The clocks of {_CARD} were lowered for {{{{ $value | {PERCENT} }}}} of the last"
            f" {words(_THROTTLE_S * scale)}."
            f" {now}A tensor-parallel group is as slow as its slowest"
            " GPU."
        ),
        means="the clocks of a GPU are throttled",
        panels={
            links.SERVER: ["Power", "SM clock", "Throttling", "Temperature", "Memory clock and throttle reasons"],
        },
        finds=(FaultKind.SLOW,),
    )


def _memory(scale: float) -> Alert:
    window = duration(_ERRORS_S * scale)
    grown = (
        ("double_bit_ecc", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
        ("remapped_rows", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
    )
    kinds = [_as_error(kind, _grown(_value(name), window)) for kind, name in grown]
    failed = f"max {_BY} ({_value('DCGM_FI_DEV_ROW_REMAP_FAILURE')}) > 0"
    words_of = (
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
        summary=f"{_NAME} has {words_of}",
        description=(
            f"{_CARD} reports {words_of}. The driver kills the processes that used that memory. Reset the GPU to retire"
            " the row; if no spare row is left, replace the GPU."
        ),
        means="a GPU has uncorrectable memory errors",
        panels={links.SERVER: ["Errors", "Failed row remapping", "Corrected memory errors"]},
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
    listed, heat = names.GPU_COUNT.name, _value("DCGM_FI_DEV_GPU_TEMP")
    reporting = f"count without ({', '.join(LABELS)}) ({heat})"
    counted = value_of(f"max({listed}{{{same(_TARGET_LABELS)}}})", _TARGET_LABELS)
    return _gpu_missing(
        expr=(
            f"max {_TARGET} (max_over_time({listed}[{window}]) - {listed}) > 0\n"
            f"or max {_TARGET} (max_over_time(({reporting})[{window}:{step}]) - {reporting}) > 0"
        ),
        for_s=_MISSING_FOR_S * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: {{{{ $value | {COUNT} }}}} of its GPUs missing for"
            f" {words(_MISSING_FOR_S * scale)}, {counted} listed"
        ),
        description=(
            f"{{{{ $value | {COUNT} }}}} fewer GPUs of {{{{ $labels.target }}}} answer than within the last"
            f" {words(_MISSING_S * scale)};"
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
        summary=f"{{{{ $labels.target }}}}: its GPU metrics have been unreadable for {words(_UNREAD_S * scale)}",
        description=(
            f"Every attempt to read the GPU metrics of {{{{ $labels.target }}}} has failed for"
            f" {words(_UNREAD_S * scale)}; earlier ones"
            " succeeded. The state of the GPUs is unknown: dcgm-exporter is down, or it hangs on a GPU that the driver"
            " lost. No other GPU alert of this target can fire until its metrics are back."
        ),
        labels={"reason": "unread"},
    )


def _quoted(numbers: Iterable[int]) -> str:
    return " ".join(f'"{number}"' for number in numbers)


def xid_meaning(words: Mapping[int, str]) -> str:
    """Return a template that shows the meaning of the alert's label `xid`."""
    numbers: dict[str, list[int]] = {}
    for number, text in words.items():
        numbers.setdefault(text, []).append(number)
    cases = "{{ else ".join(f"if eq $labels.xid {_quoted(its)} }}}}{text}" for text, its in numbers.items())
    return f"{{{{ {cases}{{{{ else }}}}see NVIDIA's catalogue of XID errors{{{{ end }}}}"
