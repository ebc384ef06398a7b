"""Conditions that cannot wait for an error budget to burn, seen by canaries alone. Pure."""

from functools import partial

from alerts import inhibitions, links, sli
from alerts.alert_labels import by
from alerts.budget import step_s
from alerts.burn_conditions import worse
from alerts.burn_texts import again, why_failed
from alerts.rules import Alert, FaultKind, RuleGroup
from alerts.templates import COUNT, OF_TARGET, SPAN, value_of, words
from alerts.windows import duration
from exporters import names
from probe.core.request import Outcome

_WINDOW_S = 300.0
# Two or three of the canaries in five minutes may be slow at once, by chance or by one long prompt.
_LEAST = 4
# Nearly every canary misses the objective, and by far: no queue that is about to drain, and no burst.
_MISSED = 0.9
_FAR = 10.0
_DOWN = 0.5
# Recorded minutes in which most canaries must have failed: few, so that a new outage is not noticed later.
_LATELY_STEPS = 2
# After an outage, caches are cold and the queue is long for as long as that.
_DOWN_KEEP_S = 600.0
# A server that restarts again and again is a notification in half an hour.
_AGAIN_KEEP_S = 1800.0
# It inhibits the burn alerts of the same cause, which fire for some 20 minutes after it: else they would page then.
_TTFT_KEEP_S = 1800.0

# A request with NaN in its logits is a fault of hardware or kernels, and seldom alone. increase() extrapolates.
_CORRUPTED_S = 600.0
_CORRUPTED_LEAST = 2.5
_CORRUPTED_KEEP_S = 1800.0

_target_down = partial(
    Alert,
    name="KneewatchTargetDown",
    means=(
        "most canaries fail. `none` notifies no person, and silences alerts on what follows from that; the page"
        " notifies of failures, also users', that begin while the KneewatchAvailabilityBurn page of earlier ones fires"
    ),
    panels={links.TARGET: ["Last canary"]},
    follows=(FaultKind.DEAD, FaultKind.STALL),
)


def acute_group(scale: float = 1.0) -> RuleGroup:
    """Return the alerts for all targets; `scale` shortens windows and waiting times."""
    alerts = [_down(scale), _down_again(scale), _ttft(scale), _corrupted(scale)]
    return RuleGroup("kneewatch-acute", max(1.0, 30 * scale), alerts)


def _canaries(record: str, window_s: float) -> str:
    """Return the PromQL: a target's canaries by a record of each minute, over a window."""
    return f"sum {by('target')} (sum_over_time({record}[{duration(window_s)}]))"


def _records(scale: float) -> tuple[str, str]:
    """Return the records of failed canaries and of all."""
    every = duration(step_s(scale))
    return sli.AVAILABILITY.bad_record(every), sli.AVAILABILITY.total_record(every)


def _down(scale: float) -> Alert:
    """Mark a target as down. It notifies no person: it inhibits the alerts on what a dead server cannot do.

    KneewatchAvailabilityBurn itself may burn for a day because one canary in fifty fails, and must not inhibit those.
    Neither must one of several kinds of canaries, such as the one of a LoRA adapter, while most others succeed. And a
    server that rejects most of them for too much load is up, and its queue is the cause.
    """
    window, lately = duration(_WINDOW_S * scale), _LATELY_STEPS * step_s(scale)
    failed, sent = (_canaries(record, lately) for record in _records(scale))
    shed = f'{names.REQUESTS.name}{{traffic="canary",outcome="{Outcome.REJECTED.value}"}}'
    of_window = _canaries(_records(scale)[0], _WINDOW_S * scale)
    return _target_down(
        expr=(
            f"max {by('target')} (avg_over_time({names.TARGET_UP.name}[{window}])) < {_DOWN:g}\n"
            f"unless {failed} < {_DOWN:g} * {sent}\n"
            f"unless sum {by('target')} (increase({shed}[{window}])) > {_DOWN:g} * {of_window}"
        ),
        for_s=0.0,
        keep_s=_DOWN_KEEP_S * scale,
        severity="none",
        summary=f"{{{{ $labels.target }}}}: canaries have failed for most of {words(_WINDOW_S * scale)}",
        description=(
            f"For more than half of the last {words(_WINDOW_S * scale)} the latest canary of {{{{ $labels.target }}}}"
            f" had failed (most of"
            " them, if it has several kinds of canaries). This alert notifies no person. In Alertmanager it inhibits"
            " alerts on latency, queues and metrics, which are consequences; a page notifies of the outage."
        ),
    )


def _down_again(scale: float) -> Alert:
    """Page for requests that fail anew while KneewatchAvailabilityBurn still fires for an earlier failure.

    It never fires with the first page of an outage, which is not old enough then.
    """
    anew = "\nor ".join(f"({worse(one, scale)})" for one in (sli.AVAILABILITY, sli.USERS_AVAILABILITY))
    return _target_down(
        expr=f"max {by('target')} (\n{anew}\n)",
        for_s=0.0,
        keep_s=_AGAIN_KEEP_S * scale,
        severity="page",
        summary=again(_WINDOW_S * scale, scale),
        description=(
            f"Requests to {{{{ $labels.target }}}} fail again, far more than 10 minutes earlier."
            f" {why_failed(_WINDOW_S * scale)}It may be restarting again and again. The page of the earlier failure"
            " still fires, so it does not ring for this one."
        ),
    )


def _ttft(scale: float) -> Alert:
    """Alert if nearly all canaries wait many times as long as promised: at 95 %, the budget lasts for 43 minutes."""
    window = duration(_WINDOW_S * scale)
    canary = 'traffic="canary"'

    def increase(series: str, matchers: str) -> str:
        return f"sum {by('target')} (increase({series}{{{matchers}}}[{window}]))"

    answered = increase(names.REQUESTS.name, f'{canary},outcome="ok"')
    good = increase(names.GOOD_REQUESTS.name, f'{canary},objective="ttft"')
    mean = f"{increase(names.TTFT.name + '_sum', canary)} / ({increase(names.TTFT.name + '_count', canary)} > 0)"
    promised = f'max {by("target")} ({names.OBJECTIVE_SECONDS.name}{{objective="ttft"}})'
    objective = value_of(f'min({names.OBJECTIVE_SECONDS.name}{{{OF_TARGET},objective="ttft"}})', shown=SPAN)
    return Alert(
        name="KneewatchTTFTCollapse",
        expr=(
            f"{mean}\n  > {_FAR:g} * {promised}\n"
            f"and {answered} > {_LEAST - 0.5:g}\n"  # increase() extrapolates
            f"unless {good} > {1 - _MISSED:.2g} * {answered}"
        ),
        for_s=_WINDOW_S * scale,
        keep_s=_TTFT_KEEP_S * scale,
        severity="page",
        summary=(
            f"{{{{ $labels.target }}}} is SLOW: canaries wait {{{{ $value | {SPAN} }}}} for the first token, the"
            f" objective"
            f" is {objective}"
        ),
        description=(
            f"Over the last {words(_WINDOW_S * scale)} the canaries of {{{{ $labels.target }}}} waited"
            f" {{{{ $value | {SPAN} }}}} for their first token on average, over {_FAR:g} times the objective"
            f" ({objective}), and nine in ten or more missed it. Every user waits like that: the server has far more"
            " load than it can serve, or has slowed down."
        ),
        means="nearly all canaries wait more than ten times the TTFT objective",
        panels={links.TARGET: ["TTFT"]},
        silenced_by=(inhibitions.TARGET_DOWN, inhibitions.ENGINE_STALLED),
        follows=(FaultKind.QUEUE, FaultKind.KV, FaultKind.STALL),
    )


def _corrupted(scale: float) -> Alert:
    """Alert on requests with NaN in their logits, which only a vLLM that looks for them reports."""
    window = duration(_CORRUPTED_S * scale)
    increase = f"sum {by('target', 'job', 'instance')} (increase({names.SERVER['corrupted'].name}[{window}]))"
    return Alert(
        name="KneewatchCorruptedRequests",
        expr=f"round(max {by('target')} ({increase}) > {_CORRUPTED_LEAST:g})",
        for_s=0.0,
        keep_s=_CORRUPTED_KEEP_S * scale,
        severity="page",
        summary=(
            f"{{{{ $labels.target }}}} answers nonsense: {{{{ $value | {COUNT} }}}} requests with NaN in their logits"
            f" in"
            f" {words(_CORRUPTED_S * scale)}"
        ),
        description=(
            f"vLLM counted {{{{ $value | {COUNT} }}}} finished requests of {{{{ $labels.target }}}} with NaN in their"
            f" logits within {words(_CORRUPTED_S * scale)} (vllm:corrupted_requests). Their text makes no sense,"
            f" often one token repeated,"
            " and users got it with status 200. Latency and /health look well."
        ),
        means=(
            "vLLM computes NaN, so answers make no sense; only a vLLM with `VLLM_COMPUTE_NANS_IN_LOGITS=1` reports it"
        ),
        panels={links.SERVER: ["Rejections and corrupted requests"]},
        unseen="no fault makes the server compute NaN",
    )
