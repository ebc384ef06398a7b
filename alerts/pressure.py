"""Alerts on how a server copes with its load: KV cache, queue, stalled engines, prefix cache, split roles. Pure.

They read the server's own metrics. A series that a version does not export is absent and blocks no other condition.
Whether the KV cache is too small is decided by the monitor (probe/observe/kv_pressure.py), so alert, pages and
dashboards agree.
"""

from alerts import inhibitions, links
from alerts.alert_labels import by, on
from alerts.rules import Alert, FaultKind, Recording, RuleGroup
from alerts.templates import COUNT, NUMBER, OF_TARGET, PERCENT, SPAN, listed, value_of, words
from alerts.thresholds import DEFAULTS, KV_CACHE_USAGE, PREEMPTION_SHARE, QUEUE_REQUESTS, Thresholds, percent
from alerts.windows import DAY_S, duration
from exporters import names
from exporters.names import PREFIX, Series
from probe.observe.engine_balance import IMBALANCES

# Pressure that passes within ten minutes is a burst: this window, and the same again as `for`.
_WINDOW_S = 300.0
# The share of that window. A single preemption shows as pressure for a minute or two of the five.
_MOSTLY = 0.5

# Preemptions count until the window has passed them: `for` exceeds it by the length of a burst that is no ticket.
_STORM_S, _STORM_FOR_S = 600.0, 900.0
# A handful of preemptions is a long prompt or two at night, whatever their share.
_STORM_LEAST = 10
# For a server that does not export how many requests finished: one in ten seconds.
_STORM_ALONE = 60

# Requests come and go by the minute; what stays for a quarter of an hour is the load.
_FULL_S = 900.0

# Growth is measured over the time that a queue has to last: a quarter of an hour.
_GROWTH_S = 900.0
# A queue of closed-loop clients varies by less than this around its mean.
_GROWTH_SHARE = 0.2

# Prefilling a prompt in one step, or compiling for a first request, takes up to a minute. vLLM itself gives up on an
# engine after five (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS).
_STALLED_S = 120.0
# Also in a rehearsal: below this, a stall and a long step look alike.
_STALLED_AT_LEAST_S = 30.0

# As long as autoscalers and drains take; the monitor's ratio is of five minutes, and of engines older than thirty.
_IMBALANCE_S = 900.0

_PREFIX_S = 900.0
# An emptied cache is warm again within half an hour; the window shows the cold time for its own length longer.
_PREFIX_FOR_S = 2700.0
_PREFIX_FALL = 0.5
# Below this hit ratio, the loss is not worth a ticket.
_PREFIX_WORTH = 0.2
# Tokens a second, or a few requests a minute. Fewer are not enough to judge.
_PREFIX_LEAST = 50
# Probe prompts are new each time unless the workload shares a prefix: above this share they would dominate the ratio.
_PREFIX_PROBE_SHARE = 0.2

_TRANSFERS_S = 600.0
# A server that is replaced fails the transfers under way. Above one in a hundred, the p99 of TTFT is theirs.
_TRANSFERS_LEAST = 3
_TRANSFERS_SHARE = 0.01
# Requests that wait at every moment of the window, for each server of a role; the other role then has no queue at all.
_QUEUE_S = 300.0
_AT_LEAST = 1
_ROOM = 0.5  # of the KV cache


_TIMES = 'printf "%.1f"'
# What one engine has more of, from the label `reason`.
_OF_WHAT = (
    '{{ if eq $labels.reason "kv_cache" }}KV cache use{{ else if eq $labels.reason "itl" }}time between tokens'
    '{{ else if eq $labels.reason "ttft" }}TTFT{{ else }}{{ $labels.reason }}{{ end }}'
)


def pressure_group(scale: float = 1.0, thresholds: Thresholds = DEFAULTS) -> RuleGroup:
    """Return the tickets for all targets; `scale` shortens windows and waiting times."""
    prefix = (_hit_ratio(scale), _prefix(scale))
    rules: list[Recording | Alert] = [
        _kv_cache(scale),
        _kv_cache_full(scale, thresholds),
        _preemptions(scale, thresholds),
        _queue(scale, thresholds),
        _imbalance(scale),
        *prefix,
    ]
    return RuleGroup("kneewatch-pressure", max(1.0, 60 * scale), rules)


def stalled_group(scale: float = 1.0) -> RuleGroup:
    """Return the page on stalled engines; `scale` shortens its waiting times."""
    return RuleGroup("kneewatch-stalled", max(1.0, 30 * scale), [_stalled(scale)])


def _of_users(expr: str, scale: float, window_s: float = _WINDOW_S) -> str:
    """Return `expr` unless a capacity run loads the target, or several servers' counters are mixed and jump."""
    window = duration(window_s * scale)
    capacity_run = f'sum {by("target")} (increase({names.REQUESTS.name}{{traffic="capacity"}}[{window}]))'
    several = f"max {by('target')} (max_over_time({names.AMBIGUOUS.name}[{window}]))"
    return f"(\n{expr}\n)\nunless {on('target')} (\n  {capacity_run} > 0\n  or {several} > 0\n)"


def of_server(expr: str) -> str:
    """Return the sum by target. If several Kneewatches read one server, each sees the whole, so take the maximum."""
    return f"max {by('target')} (sum {by('target', 'job', 'instance')} ({expr}))"


def _of_one_server(expr: str) -> str:
    """Return the sum of one target, for a template: `of_server` without the target's labels."""
    return f"max(sum by (job, instance) ({expr}))"


def _increase(series: str, window: str) -> str:
    return of_server(f"increase({series}[{window}])")


def waiting(matchers: str = "") -> str:
    # "deferred" requests wait for something else: a LoRA budget or a KV transfer.
    return f'{names.SERVER["waiting_by_reason"].name}{{{matchers}reason!="deferred"}}'


def _waiting_now() -> str:
    return value_of(_of_one_server(waiting(f"{OF_TARGET},")))


def _kv_cache(scale: float) -> Alert:
    """Alert on a KV cache that is too small. A full one alone is good use of memory, and a queue may be intended."""
    window, in_5 = duration(_WINDOW_S * scale), words(_WINDOW_S * scale)
    usage = f"max {by('target')} (avg_over_time({names.SERVER['kv_cache_usage'].name}[{window}]))"
    too_small = f"max {by('target')} (avg_over_time({names.KV_TOO_SMALL.name}[{window}]))"
    preempted, refused = (
        value_of(f"round({_of_one_server(f'increase({series.name}{{{OF_TARGET}}}[{window}])')})")
        for series in (names.SERVER["preemptions"], names.SERVER["rejections_by_reason"])
    )
    return Alert(
        name="KneewatchKVCachePressure",
        expr=_of_users(f"{usage}\nand {too_small} > {_MOSTLY:g}", scale),
        for_s=_WINDOW_S * scale,
        keep_s=_STORM_S * scale,  # it inhibits the preemption storm that follows from it and has a longer window
        severity="ticket",
        summary=f"{{{{ $labels.target }}}}: the KV cache is too small for the load ({{{{ $value | {PERCENT} }}}} used)",
        description=(
            f"Requests of {{{{ $labels.target }}}} lack room in the KV cache ({{{{ $value | {PERCENT} }}}} used on"
            f" average over {in_5}), and they miss an objective, will miss it, or are rejected. Waiting now:"
            f" {_waiting_now()}; in {in_5}, preempted: {preempted}, rejected: {refused}. Preempted requests are"
            " computed again, so more load makes every request slower."
        ),
        means=(
            "requests lack room in the KV cache (preempted, or waiting while batch slots are free), and are late or"
            " rejected"
        ),
        panels={
            links.TARGET: ["KV cache in use", "Preemptions"],
            links.SERVER: ["Signs of KV cache pressure", "Rejections and corrupted requests"],
            links.FLEET: ["Fullest KV caches"],
        },
        silenced_by=(inhibitions.TARGET_DOWN, inhibitions.ENGINE_STALLED),
        finds=(FaultKind.KV,),
        follows=(FaultKind.KNEE,),
    )


def _kv_cache_full(scale: float, thresholds: Thresholds) -> Alert:
    """Alert on a KV cache that fills up, before requests suffer: off, unless its threshold is set below 1."""
    window = duration(_FULL_S * scale)
    usage = f"max {by('target')} (avg_over_time({names.SERVER['kv_cache_usage'].name}[{window}]))"
    return Alert(
        name="KneewatchKVCacheNearlyFull",
        expr=_of_users(f"{usage} > {thresholds[KV_CACHE_USAGE]}", scale, _FULL_S),
        for_s=_WINDOW_S * scale,
        keep_s=_STORM_S * scale,
        severity="ticket",
        summary=f"{{{{ $labels.target }}}}: {{{{ $value | {PERCENT} }}}} of the KV cache is in use",
        description=(
            f"On average over {words(_FULL_S * scale)}, {{{{ $value | {PERCENT} }}}} of the KV cache of"
            f" {{{{ $labels.target }}}} was in use; this alert fires above {thresholds.share(KV_CACHE_USAGE)}."
            f" Waiting now: {_waiting_now()}. No request needs to suffer yet. With more load, or longer"
            " answers, requests wait or are preempted."
        ),
        means=(
            "more of the KV cache is in use than you allow, whether or not requests suffer; off unless its threshold"
            " is set"
        ),
        panels={links.TARGET: ["KV cache in use"], links.FLEET: ["Fullest KV caches"]},
        silenced_by=(inhibitions.TARGET_DOWN, inhibitions.ENGINE_STALLED, inhibitions.KV_CACHE_PRESSURE),
        unseen="it is off by default",
    )


def _preemptions(scale: float, thresholds: Thresholds) -> Alert:
    window = duration(_STORM_S * scale)
    preempted = f"round({_increase(names.SERVER['preemptions'].name, window)})"
    finished = f"{names.SERVER_PREEMPTIONS_PER_REQUEST.name}_count"
    ended = _increase(finished, window)
    # If an engine thrashes, no request finishes: any number of preemptions then exceeds the share.
    expr = (
        f"  {preempted} >= {_STORM_LEAST}\n  and {preempted} > {thresholds[PREEMPTION_SHARE]} * {ended}\n"
        f"  or {preempted} >= {_STORM_ALONE} unless {on('target')} {ended}"
    )
    ended_now = value_of(
        f"round({_of_one_server(f'increase({finished}{{{OF_TARGET}}}[{window}])')})", none="an unknown number of"
    )
    return Alert(
        name="KneewatchPreemptionStorm",
        expr=_of_users(expr, scale, _STORM_S + _WINDOW_S),
        for_s=_STORM_FOR_S * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: {{{{ $value | {COUNT} }}}} preemptions in {words(_STORM_S * scale)}, while"
            f" {ended_now} requests finished"
        ),
        description=(
            f"{{{{ $labels.target }}}} preempted {{{{ $value | {COUNT} }}}} requests in {words(_STORM_S * scale)},"
            f" while"
            f" {ended_now} finished; this alert fires above {thresholds.share(PREEMPTION_SHARE)} of them. A preempted"
            f" request is"
            " computed again from its first token: its stream stalls, and the engine does the work twice."
        ),
        means=f"the server preempts more than {percent(PREEMPTION_SHARE)} as many requests as finish",
        panels={links.TARGET: ["Preemptions"], links.SERVER: ["Signs of KV cache pressure"]},
        silenced_by=(inhibitions.TARGET_DOWN, inhibitions.ENGINE_STALLED, inhibitions.KV_CACHE_PRESSURE),
        finds=(FaultKind.KV,),
        follows=(FaultKind.KNEE,),
    )


def _queue(scale: float, thresholds: Thresholds) -> Alert:
    """Alert on a queue that is never empty and keeps growing, or that alone takes longer than the TTFT objective."""
    window, growth = duration(_WINDOW_S * scale), duration(_GROWTH_S * scale)
    standing = of_server(f"min_over_time({waiting()}[{window}])")
    slope = f"deriv({waiting()}[{growth}])"
    grown = f"{of_server(slope)} * {_GROWTH_S * scale:g}"
    mean = of_server(f"avg_over_time({waiting()}[{growth}])")
    queue = names.SERVER["queue"].name
    wait = f"{_increase(queue + '_sum', window)} / ({_increase(queue + '_count', window)} > 0)"
    objective = f'min {by("target")} ({names.OBJECTIVE_SECONDS.name}{{objective="ttft"}})'
    much = f"clamp_min({_GROWTH_SHARE:g} * {mean}, {thresholds[QUEUE_REQUESTS]})"
    expr = f"{standing} >= {thresholds[QUEUE_REQUESTS]}\nand (\n  {grown} > {much}\n  or {wait} > {objective}\n)"
    deriv = f"deriv({waiting(f'{OF_TARGET},')}[{growth}])"
    per_minute = value_of(f"round({_of_one_server(deriv)} * 60, 0.1)")
    waited = value_of(
        f"sum(increase({queue}_sum{{{OF_TARGET}}}[{window}])) / sum(increase({queue}_count{{{OF_TARGET}}}[{window}]))",
        shown=SPAN,
        before=f"Requests that finished in the last {words(_WINDOW_S * scale)} had waited ",
        after=" on average. ",
        none="",
    )
    return Alert(
        name="KneewatchQueueGrowth",
        expr=_of_users(expr, scale),
        for_s=2 * _WINDOW_S * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: {{{{ $value | {COUNT} }}}} or more requests have waited for"
            f" {words(3 * _WINDOW_S * scale)}, now {_waiting_now()}: the queue does not drain"
        ),
        description=(
            f"{{{{ $labels.target }}}} has had requests waiting at every moment for {words(3 * _WINDOW_S * scale)}."
            f" Waiting at least: {{{{ $value | {COUNT} }}}}; now: {_waiting_now()}; growth per minute: {per_minute}."
            f" {waited}Demand exceeds what the"
            " server can serve."
        ),
        means="the queue never empties, and grows, or its wait alone exceeds the TTFT objective",
        panels={
            links.TARGET: ["Requests in the server", "Where a request's time goes"],
            links.SERVER: ["Queue and prefill, p95"],
            links.FLEET: ["Most waiting requests"],
        },
        silenced_by=(
            inhibitions.TARGET_DOWN,
            inhibitions.ENGINE_STALLED,
            inhibitions.TTFT_COLLAPSE,
            inhibitions.KV_CACHE_PRESSURE,
        ),
        finds=(FaultKind.QUEUE,),
        follows=(FaultKind.KV, FaultKind.STALL, FaultKind.KNEE),
    )


def _stalled(scale: float) -> Alert:
    """Alert on a stalled engine. The gauge is absent while a scrape fails, hence the maximum over a minute."""
    stalled_s = max(_STALLED_S * scale, _STALLED_AT_LEAST_S)
    stalled = f"max {by('target')} (max_over_time({names.STALLED.name}[{duration(max(60 * scale, 15))}]))"
    running = value_of(_of_one_server(f"{names.SERVER['running'].name}{{{OF_TARGET}}}"))
    return Alert(
        name="KneewatchEngineStalled",
        expr=f"{stalled} > {stalled_s:g}",
        for_s=30 * scale,
        keep_s=600 * scale,  # a Kneewatch that restarts counts from zero
        severity="page",
        summary=(
            f"{{{{ $labels.target }}}} is STUCK: an engine with requests has made no progress for"
            f" {{{{ $value | {SPAN} }}}}"
        ),
        description=(
            f"{{{{ $labels.target }}}} has requests (running: {running}, waiting: {_waiting_now()}), but for"
            f" {{{{ $value | {SPAN} }}}} one of its engines has generated no token and its KV cache usage has not"
            " changed. /health may still return 200. Users get no answers; a stalled engine rarely recovers by itself."
        ),
        means="an engine with requests makes no progress, whatever `/health` returns",
        panels={
            links.TARGET: ["Requests in the server", "Stalled engine"],
            links.SERVER: ["Server tokens per second"],
        },
        finds=(FaultKind.STALL,),
    )


def _imbalance(scale: float) -> Alert:
    """Alert where one engine has much more than the others. What can be compared the monitor decides
    (probe/observe/engine_balance.py): no new, drained or otherwise different one.
    """
    window = duration(_IMBALANCE_S * scale)
    ratio = f"max {by('target', 'reason')} (avg_over_time({names.IMBALANCE.name}{{reason=%r}}[{window}]))"
    shown = [f"{ratio % reason} >= {least:g}".replace("'", '"') for reason, least in IMBALANCES.items()]
    running, waits = (f"{names.ENGINE[key].name}{{{OF_TARGET}}}" for key in ("running", "waiting"))
    load = f"max by (engine_index) ({running} + {waits})"
    most = listed(f"topk(2, {load})", "engine_index", before=" Requests running and waiting now, most: ")
    least = listed(f"bottomk(2, {load})", "engine_index", before="; least: ", after=".")
    return Alert(
        name="KneewatchReplicasUnbalanced",
        expr=_of_users("\nor ".join(shown), scale, 2 * _IMBALANCE_S),
        for_s=_IMBALANCE_S * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: one engine has {{{{ $value | {_TIMES} }}}} times the {_OF_WHAT} of the others"
        ),
        description=(
            f"For {words(2 * _IMBALANCE_S * scale)}, one replica or data-parallel engine of {{{{ $labels.target }}}}"
            f" has had {{{{ $value | {_TIMES} }}}} times the {_OF_WHAT} of the others' mean.{most}{least}"
            " Users of that one wait while the others have room."
        ),
        means="one replica or data-parallel engine has twice the load, KV cache use or latency of the others",
        panels={links.SERVER: ["Imbalance of engines", "Waiting, by engine", "TTFT, by engine"]},
        silenced_by=(inhibitions.TARGET_DOWN, inhibitions.ENGINE_STALLED),
        unseen="its engines share each load evenly",
    )


def _hit_ratio(scale: float) -> Recording:
    """Record the hit ratio of user traffic, if it is enough: probe prompts are in no cache."""
    window = duration(_PREFIX_S * scale)
    hits, queries, probes = (
        of_server(f"rate({series}[{window}])")
        for series in (
            names.SERVER["prefix_cache_hits"].name,
            names.SERVER["prefix_cache_queries"].name,
            f'{names.TOKENS.name}{{kind="prompt"}}',
        )
    )
    return Recording(
        f"target:{PREFIX}prefix_cache_hits:ratio_rate{window}",
        f"{hits}\n/ (\n  {queries} > {_PREFIX_LEAST}\n  unless {probes} > {_PREFIX_PROBE_SHARE:g} * {queries}\n)\n"
        f"unless max {by('target')} (max_over_time({names.AMBIGUOUS.name}[{window}])) > 0",
    )


def _prefix(scale: float) -> Alert:
    """Compare with yesterday and last week, if known: a Sunday says little about a Monday."""
    ratio = _hit_ratio(scale).record
    yesterday, last_week = (f"{ratio} offset {duration(days * DAY_S * scale)}" for days in (1, 7))
    day, week = (f"{ratio}{{{OF_TARGET}}} offset {duration(days * DAY_S * scale)}" for days in (1, 7))
    earlier = [value_of(query, shown=PERCENT) for query in (day, week)]
    before = value_of(f"{day} >= {_PREFIX_WORTH:g} or {week}", shown=PERCENT)
    return Alert(
        name="KneewatchPrefixHitCollapse",
        expr=(
            f"{ratio}\n  < {_PREFIX_FALL:g} * ({yesterday} >= {_PREFIX_WORTH:g} or {last_week} >= {_PREFIX_WORTH:g})\n"
            f"unless {ratio} >= {_PREFIX_FALL:g} * {last_week}"
        ),
        for_s=_PREFIX_FOR_S * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: prefix cache hits fell from {before} to {{{{ $value | {PERCENT} }}}} of prompt"
            " tokens"
        ),
        description=(
            f"Over the last {words(_PREFIX_S * scale)}, {{{{ $value | {PERCENT} }}}} of the prompt tokens of"
            f" {{{{ $labels.target }}}} were found in its prefix cache. One day earlier: {earlier[0]}; one week"
            f" earlier: {earlier[1]}. The rest is computed: TTFT and GPU load rise, and capacity falls."
        ),
        means="the prefix cache's hit ratio is less than half of yesterday's and last week's",
        panels={links.TARGET: ["Prefix hits"]},
        silenced_by=(inhibitions.TARGET_DOWN, inhibitions.ENGINE_STALLED),
        unseen="no fault empties the prefix cache",
    )


def disaggregated_group(scale: float = 1.0) -> RuleGroup:
    """Return the rules for all targets; `scale` shortens windows and waiting times."""
    rules: list[Recording | Alert] = [_transfers(scale), _roles(scale)]
    return RuleGroup("kneewatch-disaggregated", max(1.0, 60 * scale), rules)


def _transfers(scale: float) -> Alert:
    """Alert on KV caches that do not arrive: on the server that fetches, or on the one that computed them."""
    window = duration(_TRANSFERS_S * scale)

    def grown(series: str) -> str:
        return f"round({of_server(f'increase({series}[{window}])')})"

    def now(series: Series) -> str:
        return value_of(f"round(max(increase({series.name}{{{OF_TARGET}}}[{window}])))", none="an unknown number of")

    failed, fetched = grown(names.SERVER["kv_transfer_failures"].name), grown(names.SERVER["kv_transfers"].name)
    expired = grown(names.SERVER["kv_transfers_expired"].name)
    finished = grown(f"{names.SERVER_PREEMPTIONS_PER_REQUEST.name}_count")
    return Alert(
        name="KneewatchKVTransferFailing",
        expr=(
            f"  {failed} >= {_TRANSFERS_LEAST}\n  and {failed} > {_TRANSFERS_SHARE:g} * ({fetched} + {failed})\n"
            f"  or {expired} >= {_TRANSFERS_LEAST}\n  and {expired} > {_TRANSFERS_SHARE:g} * {finished}"
        ),
        for_s=900 * scale,  # longer than the window: a burst that has passed is no ticket
        keep_s=600 * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: {{{{ $value | {COUNT} }}}} KV caches of requests did not arrive in"
            f" {words(_TRANSFERS_S * scale)}"
        ),
        description=(
            f"In {words(_TRANSFERS_S * scale)}, {{{{ $labels.target }}}} fetched {now(names.SERVER['kv_transfers'])}"
            f" KV caches from other"
            f" servers or a store; {now(names.SERVER['kv_transfer_failures'])} transfers or handshakes failed, and"
            f" {now(names.SERVER['kv_transfers_expired'])} of the caches that it computed itself were not fetched in"
            " time. Each such request fails, or its prompt is computed twice, as the servers' kv_load_failure_policy"
            " says."
        ),
        means=(
            "more than one in a hundred KV caches does not reach the decode server"
            " ([roles](integrations.md#prefill-and-decode-on-different-servers))"
        ),
        panels={links.SERVER: ["KV transfers"]},
        unseen="the servers do both prefill and decode",
    )


def _roles(scale: float) -> Alert:
    """Alert if one role's servers have had a queue for long while the other role's have room."""
    window = duration(_QUEUE_S * scale)
    short = f"avg {by('discovery', 'role')} ({_grouped(of_server(f'min_over_time({waiting()}[{window}])'))})"
    queue = f"max {by('discovery', 'role')} ({_grouped(of_server(f'max_over_time({waiting()}[{window}])'))})"
    usage = f"max {by('target')} (max_over_time({names.SERVER['kv_cache_usage'].name}[{window}]))"
    filled = f"avg {by('discovery', 'role')} ({_grouped(usage)})"
    return Alert(
        name="KneewatchRolesUnbalanced",
        command=links.CHECK_ALL,
        expr=f"{short} >= {_AT_LEAST}\nand {on('discovery')} (\n  {queue} == 0\n  and {filled} < {_ROOM:g}\n)",
        for_s=900 * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.discovery }}}}: {{{{ $value | {NUMBER} }}}} requests wait at each {{{{ $labels.role }}}}"
            f" server,"
            " and the servers of the other role have room"
        ),
        description=(
            "The {{ $labels.role }} servers of {{ $labels.discovery }} have had requests waiting at every moment for"
            f" {words((900 + _QUEUE_S) * scale)}, {{{{ $value | {NUMBER} }}}} each on average, while the servers"
            f" of the other role had no queue and used less than {_ROOM:.0%} of their KV cache. Requests wait for one"
            " role while the other has room."
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
