"""The alerts on what a server does with its load: memory, queue, standstill, prefix cache. Pure.

They read the server's own metrics. What a version of it does not tell is absent, and blocks nothing that the rest says.
They use the series as they are and not kneewatch_kv_pressure, which is of one minute and of one sign each.
"""

from alerts.rules import Alert, Recording, RuleGroup, now
from alerts.templates import asked
from alerts.windows import DAY_S, duration
from exporters import names
from exporters.names import PREFIX
from probe.observe.cross_checks import FULL

# A pressure that passes within ten minutes is a burst: this, and as long again as it has to last.
_WINDOW_S = 300.0
# One preemption in five minutes is chance; increase() makes between one and two of it.
_COUNTS = 1

_STORM_S = 600.0
# Beyond one in ten the 90th percentile of TPOT is that of requests that were computed twice.
_STORM_SHARE = 0.1
# A handful of preemptions is a long prompt or two at night, whatever its share.
_STORM_LEAST = 10
# Of a server that does not tell how many requests ended: one in ten seconds.
_STORM_ALONE = 60

# Growth is read over as long as a queue has to stand: a quarter of an hour.
_GROWTH_S = 900.0
# Requests that wait at every moment: fewer than a batch of a small server takes up in one step.
_STANDING = 5
# A queue of clients that each wait for their answer sways by less than this around its mean.
_GROWTH_SHARE = 0.2

# A prompt that is read in one step, or a first request that compiles, takes up to a minute. vLLM itself gives up on
# an engine after five (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS).
_STALLED_S = 120.0
# In a rehearsal too: below, a standstill and a long step look alike.
_STALLED_AT_LEAST_S = 30.0

_PREFIX_S = 900.0
# A cache that begins anew is warm within half an hour; the window still shows the cold time for as long as it reaches.
_PREFIX_FOR_S = 2700.0
_PREFIX_FALL = 0.5
# Below, what was lost is not worth a ticket.
_PREFIX_WORTH = 0.2
# Tokens a second: a few requests a minute. Fewer decide nothing.
_PREFIX_LEAST = 50
# Our own prompts are new each time unless the workload shares a prefix: beyond this they would make the ratio.
_PREFIX_OURS = 0.2


def pressure_group(scale: float = 1.0) -> RuleGroup:
    """For all targets; `scale` shortens windows and waiting times."""
    prefix = (_hit_ratio(scale), _prefix(scale))
    rules: list[Recording | Alert] = [_kv_cache(scale), _preemptions(scale), _queue(scale), _stalled(scale), *prefix]
    return RuleGroup("kneewatch-pressure", max(1.0, 30 * scale), rules)


def _of_users(expr: str, scale: float, window_s: float = _WINDOW_S) -> str:
    """`expr`, of so long, unless load is our own step-up load, or the counters are several servers', which leap."""
    window = duration(window_s * scale)
    ours = f'sum by (target) (increase({names.REQUESTS.name}{{traffic="capacity"}}[{window}]))'
    several = f"max by (target) (max_over_time({names.AMBIGUOUS.name}[{window}]))"
    return f"(\n{expr}\n)\nunless on (target) (\n  {ours} > 0\n  or {several} > 0\n)"


def _of_server(expr: str) -> str:
    """The sum by target. Where several Kneewatches read one server, each of them sees all of it: the largest counts."""
    return f"max by (target) (sum by (target, job, instance) ({expr}))"


def _told(expr: str) -> str:
    """The same for a template, of one target."""
    return f"max(sum by (job, instance) ({expr}))"


def _increase(series: str, window: str) -> str:
    return _of_server(f"increase({series}[{window}])")


def _waiting(matchers: str = "") -> str:
    # "deferred" requests wait for something other than room: a LoRA budget or a KV transfer.
    return f'{names.SERVER_WAITING.name}{{{matchers}reason!="deferred"}}'


def _waiting_now() -> str:
    return now(_told(_waiting("target=%q,")))


def _kv_cache(scale: float) -> Alert:
    """A full cache alone is good use of memory; with requests waiting, pushed out or refused it is pressure."""
    window = duration(_WINDOW_S * scale)
    kv = f"max by (target) (avg_over_time({names.SERVER_KV.name}[{window}]))"
    waiting = _of_server(f"avg_over_time({_waiting()}[{window}])")
    counted = [
        f"{_increase(series.name, window)} > {_COUNTS}"
        for series in (names.SERVER_PREEMPTIONS, names.SERVER_REJECTIONS)
    ]
    signs = "\n  or ".join([f"{waiting} >= 1", *counted])
    preempted, refused = (
        now(f"round({_told(f'increase({series.name}{{target=%q}}[{window}])')})")
        for series in (names.SERVER_PREEMPTIONS, names.SERVER_REJECTIONS)
    )
    return Alert(
        name="KneewatchKVCachePressure",
        expr=_of_users(f"{kv} > {FULL:g}\nand (\n  {signs}\n)", scale),
        for_s=_WINDOW_S * scale,
        keep_s=_STORM_S * scale,  # it silences the storm that follows from it, whose window is longer
        severity="ticket",
        summary="{{ $labels.target }}: KV cache {{ $value | humanizePercentage }} full and holding requests back",
        description=(
            "The KV cache of {{ $labels.target }} is {{ $value | humanizePercentage }} full (average over"
            f" {window}). Requests waiting now: {_waiting_now()}; in {window}, preempted: {preempted}, refused:"
            f" {refused}. Preempted requests are computed again, so load beyond this point makes everyone slower."
        ),
    )


def _preemptions(scale: float) -> Alert:
    window = duration(_STORM_S * scale)
    preempted = f"round({_increase(names.SERVER_PREEMPTIONS.name, window)})"
    finished = f"{names.SERVER_PREEMPTIONS_PER_REQUEST.name}_count"
    ended = _increase(finished, window)
    # Of an engine that thrashes nothing ends: any number of preemptions is then more than a share of none.
    expr = (
        f"  {preempted} >= {_STORM_LEAST}\n  and {preempted} > {_STORM_SHARE:g} * {ended}\n"
        f"  or {preempted} >= {_STORM_ALONE} unless on (target) {ended}"
    )
    ended_now = now(f"round({_told(f'increase({finished}{{target=%q}}[{window}])')})")
    return Alert(
        name="KneewatchPreemptionStorm",
        expr=_of_users(expr, scale, _STORM_S + _WINDOW_S),
        for_s=_WINDOW_S * scale,
        severity="ticket",
        summary=f"{{{{ $labels.target }}}}: {{{{ $value | humanize }}}} preemptions in {window}",
        description=(
            f"{{{{ $labels.target }}}} has pushed {{{{ $value | humanize }}}} requests out of its KV cache in {window},"
            f" while {ended_now} ended; more than one for each ten is a storm. Each is computed again from its first"
            " token: its stream stalls, and the engine does the work twice."
        ),
    )


def _queue(scale: float) -> Alert:
    """It is never empty, and longer and longer, or so long that waiting alone breaks the objective for TTFT."""
    window, growth = duration(_WINDOW_S * scale), duration(_GROWTH_S * scale)
    standing = _of_server(f"min_over_time({_waiting()}[{window}])")
    slope = f"deriv({_waiting()}[{growth}])"
    grown = f"{_of_server(slope)} * {_GROWTH_S * scale:g}"
    mean = _of_server(f"avg_over_time({_waiting()}[{growth}])")
    queue = names.SERVER_QUEUE.name
    wait = f"{_increase(queue + '_sum', window)} / ({_increase(queue + '_count', window)} > 0)"
    objective = f'min by (target) ({names.OBJECTIVE_SECONDS.name}{{objective="ttft"}})'
    much = f"clamp_min({_GROWTH_SHARE:g} * {mean}, {_STANDING})"
    expr = f"{standing} >= {_STANDING}\nand (\n  {grown} > {much}\n  or {wait} > {objective}\n)"
    deriv = f"deriv({_waiting('target=%q,')}[{growth}])"
    per_minute = now(f"round({_told(deriv)} * 60, 0.1)")
    waited = asked(
        f"sum(increase({queue}_sum{{target=%q}}[{window}])) / sum(increase({queue}_count{{target=%[1]q}}[{window}]))",
        shown="humanizeDuration",
    )
    return Alert(
        name="KneewatchQueueGrowth",
        expr=_of_users(expr, scale),
        for_s=2 * _WINDOW_S * scale,
        severity="ticket",
        summary="{{ $labels.target }}: {{ $value | humanize }} requests or more wait, and the queue does not drain",
        description=(
            f"For {duration(3 * _WINDOW_S * scale)} {{{{ $labels.target }}}} has had a queue at every moment. Waiting"
            f" at least: {{{{ $value | humanize }}}}; now: {_waiting_now()}; growth a minute: {per_minute}. Requests"
            f" that ended in the last {window} had waited for {waited} on the mean. More is asked for than is served."
        ),
    )


def _stalled(scale: float) -> Alert:
    """The gauge is absent where the server cannot be read at the moment, hence the maximum of a minute."""
    stalled_s = max(_STALLED_S * scale, _STALLED_AT_LEAST_S)
    stalled = f"max by (target) (max_over_time({names.STALLED.name}[{duration(max(60 * scale, 15))}]))"
    running = now(_told(f"{names.SERVER_RUNNING.name}{{target=%q}}"))
    return Alert(
        name="KneewatchEngineStalled",
        expr=f"{stalled} > {stalled_s:g}",
        for_s=30 * scale,
        keep_s=600 * scale,  # a Kneewatch that restarts begins to count anew
        severity="page",
        summary="{{ $labels.target }}: an engine has requests and has done nothing for {{ $value | humanizeDuration }}",
        description=(
            f"{{{{ $labels.target }}}} has requests (running: {running}, waiting: {_waiting_now()}), and for"
            " {{ $value | humanizeDuration }} one of its engines has generated no token and its KV cache has not moved."
            " /health may go on saying 200. Users get nothing; a stuck engine seldom comes back by itself."
        ),
    )


def _hit_ratio(scale: float) -> Recording:
    """Of what users asked, where that was enough: our own prompts are found in no cache."""
    window = duration(_PREFIX_S * scale)
    hits, queries, ours = (
        _of_server(f"rate({series}[{window}])")
        for series in (
            names.SERVER_PREFIX_HITS.name,
            names.SERVER_PREFIX_QUERIES.name,
            f'{names.TOKENS.name}{{kind="prompt"}}',
        )
    )
    return Recording(
        f"target:{PREFIX}prefix_cache_hits:ratio_rate{window}",
        f"{hits}\n/ (\n  {queries} > {_PREFIX_LEAST}\n  unless {ours} > {_PREFIX_OURS:g} * {queries}\n)\n"
        f"unless max by (target) (max_over_time({names.AMBIGUOUS.name}[{window}])) > 0",
    )


def _prefix(scale: float) -> Alert:
    """Against yesterday and last week, as far as either is known: a Sunday is no measure for a Monday."""
    ratio, window = _hit_ratio(scale).record, duration(_PREFIX_S * scale)
    yesterday, last_week = (f"{ratio} offset {duration(days * DAY_S * scale)}" for days in (1, 7))
    told = [
        asked(f"{ratio}{{target=%q}} offset {duration(days * DAY_S * scale)}", shown="humanizePercentage")
        for days in (1, 7)
    ]
    return Alert(
        name="KneewatchPrefixHitCollapse",
        expr=(
            f"{ratio}\n  < {_PREFIX_FALL:g} * ({yesterday} >= {_PREFIX_WORTH:g} or {last_week} >= {_PREFIX_WORTH:g})\n"
            f"unless {ratio} >= {_PREFIX_FALL:g} * {last_week}"
        ),
        for_s=_PREFIX_FOR_S * scale,
        severity="ticket",
        summary="{{ $labels.target }}: only {{ $value | humanizePercentage }} of prompt tokens are in the prefix cache",
        description=(
            f"Over the last {window}, {{{{ $value | humanizePercentage }}}} of the prompt tokens of"
            f" {{{{ $labels.target }}}} were found in its prefix cache. A day before: {told[0]}; a week before:"
            f" {told[1]}. The rest is computed: TTFT and the load of the GPU grow, and capacity falls."
        ),
    )
