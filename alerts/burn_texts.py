"""Texts of burn alerts: how many requests were bad, whose, in which windows, of which model, and why. Pure.

A summary has counts and no multiples of a budget: "llama-8b is DOWN: 20 of 20 canaries failed in 5 min (unreachable)".
It says "recovered" while the alert lasts longer than its cause. The description has the longer window, the reasons, the
last success and, once there is enough to judge, the end of the error budget.
"""

from collections.abc import Callable, Mapping, Sequence

from alerts import sli
from alerts.budget import WINDOW, allowed, bad, step_s, total
from alerts.sli import Sli
from alerts.templates import (
    COUNT,
    OF_TARGET,
    PERCENT,
    SPAN,
    TARGET,
    if_any,
    listed,
    runs_out,
    value_of,
    variable,
    words,
)
from alerts.windows import DAY_S, HOUR_S, PAIRS, duration
from exporters import names
from probe.core import objectives as slo
from probe.core.request import NO_FAILURES, Outcome

_TOP = 3  # reasons and models that are listed
_MATCHER = f"{{{OF_TARGET}}}"
_CANARY = f'{OF_TARGET},traffic="canary"'
# With fewer requests, or of a target that was watched for less than an hour, one failure more or less decides.
_ENOUGH, _WATCHED_SHARE = 100, 0.75
# What a request does that is bad, after its number; and what a server does.
_DID: Mapping[str, str] = {
    slo.AVAILABILITY: "failed",
    "ttft": "waited over {} for the first token",
    "tpot": "took over {} per output token",
    "e2e": "took over {} for the whole answer",
    "itl": "had gaps of over {} between tokens",
}
# So many requests that are all good show that the target has recovered.
_SURE, _SURE_OF_USERS = "3.0", "20.0"
_OF_SENT = f"{{{{ %s | {COUNT} }}}} of {{{{ $sent | {COUNT} }}}}".replace(COUNT, COUNT.replace("%", "%%"))
_OF_ASKED = _OF_SENT.replace("$sent", "$asked")


def summary(judged: Sequence[Sli], severity: str, scale: float) -> str:
    """Return one line: the target, what is wrong, how many requests of whom in how long, and the model or reason."""
    short_s, long_s = _windows(severity, scale)
    canaries = judged[0]
    did, lately = _did(canaries.objective), words(short_s)
    is_failure = canaries.objective == slo.AVAILABILITY
    down = (
        "{{ if and (eq $failed $sent) (eq $theirs $asked) }} is DOWN{{ else }} fails{{ end }}"
        if is_failure
        else " is SLOW"
    )
    of_canaries = (
        f"{down}: {_OF_SENT % '$failed'} canaries {did} in {lately}"
        f"{reasons(short_s) if is_failure else ''}{_one_model(canaries, short_s)}"
        f"{{{{ if $asked }}}}; users: {_OF_ASKED % '$theirs'}{{{{ end }}}}"
    )
    of_users = (
        f" {'fails' if is_failure else 'is SLOW'} for users: {_OF_ASKED % '$theirs'} requests {did} in {lately}"
        f"{{{{ if $sent }}}}; canaries: {_OF_SENT % '0.0'}{{{{ end }}}}"
    )
    return (
        f"{_limit(canaries.objective)}{_variables(judged, short_s, scale)}{{{{ $labels.target }}}}"
        f"{{{{ if $failed }}}}{of_canaries}{{{{ else if $theirs }}}}{of_users}{{{{ else }}}}"
        f"{_over(judged, short_s, long_s, scale)}{{{{ end }}}}"
    )


def _over(judged: Sequence[Sli], short_s: float, long_s: float, scale: float) -> str:
    """Return a template for when no request was bad lately. The target has recovered if enough requests show it."""
    canaries, *users = judged
    lately, before = words(short_s), words(long_s)
    owed = variable("owed", _count(bad, users[0], long_s, scale)) if users else "{{ $owed := 0.0 }}"
    is_sure = f"and (or (ge $sent {_SURE}) (ge $asked {_SURE_OF_USERS})) (or $asked (eq $owed 0.0))"
    whole = if_any(
        _count(total, canaries, long_s, scale),
        TARGET,
        f", {_share(_count(bad, canaries, long_s, scale))} in {before}",
        "",
        "",
    )
    counts = (
        f"{{{{ if $sent }}}}{_OF_SENT % '0.0'} canaries {_did(canaries.objective)}{{{{ else }}}}no canary was sent"
        f"{{{{ end }}}} in {lately}{whole}"
    )
    if users:
        counts += (
            f"{{{{ if or $asked $owed }}}}; users: {{{{ if $asked }}}}{_OF_ASKED % '0.0'}{{{{ else }}}}no requests"
            f"{{{{ end }}}}, {{{{ $owed | {COUNT} }}}} in {before}{{{{ end }}}}"
        )
    return f"{owed} {{{{ if {is_sure} }}}}recovered{{{{ else }}}}had failures{{{{ end }}}}: {counts}"


def description(judged: Sequence[Sli], severity: str, scale: float) -> str:
    """Return the counts in the shortest and longest window, reasons, the last success, and the end of the budget."""
    windows = _windows(severity, scale)
    objective = judged[0].objective
    counts = "; ".join(f"{_kind(one)}: {_counts(one, windows, scale)}" for one in judged)
    parts = [
        _limit(objective),
        f"Requests that {_did(objective)}: {counts}. ",
        _models(judged[0], windows[0]),
        *(_canaries(_longest_short_s(severity)) if objective == slo.AVAILABILITY else ()),
        *(_judged_at(one, windows[1], scale) for one in judged),
        _budget(judged, windows, scale),
    ]
    return "".join(parts)


def again(window_s: float, scale: float) -> str:
    """Return the summary of an outage that begins while the page of an earlier one fires."""
    judged = (sli.AVAILABILITY, sli.USERS_AVAILABILITY)
    return (
        f"{_variables(judged, window_s, scale)}{{{{ $labels.target }}}} fails again:"
        f" {{{{ if $sent }}}}{_OF_SENT % '$failed'} canaries failed in {words(window_s)}{reasons(window_s)}"
        "{{ end }}"
        f"{{{{ if $asked }}}}{{{{ if $sent }}}}; {{{{ end }}}}users: {_OF_ASKED % '$theirs'}{{{{ end }}}}"
    )


def why_failed(window_s: float) -> str:
    """Return a template of why canaries failed: the most frequent outcomes, and whether the server refused load."""
    why = listed(
        f"sort_desc(topk({_TOP}, {_by_outcome(window_s)}))",
        "outcome",
        before=f"Failed canaries in {words(window_s)}: ",
        after=". ",
    )
    rejected = f'{names.REQUESTS.name}{{{_CANARY},outcome="{Outcome.REJECTED.value}"}}'
    turned_away = value_of(
        f"sum({sli.grown(rejected, duration(window_s))}) > 0",
        shown=COUNT,
        before="A server or gateway that is up rejected ",
        after=" of them, for too much load or a rate limit. ",
        none="",
    )
    untrusted = f'{names.REQUESTS.name}{{{_CANARY},outcome="{Outcome.CERTIFICATE.value}"}}'
    certificate = value_of(
        f"sum({sli.grown(untrusted, duration(window_s))}) > 0",
        shown=COUNT,
        before="The server's port answers, but ",
        after=" of them ended at a certificate that has expired, is not trusted or is for another name. ",
        none="",
    )
    counted = f"{names.SERVER['rejections_by_reason'].name}{{{OF_TARGET}}}"
    refused = value_of(
        f"sum({sli.grown(counted, duration(window_s))}) > 0",
        shown=COUNT,
        before="The server's queue limit refused ",
        after=f" requests in {words(window_s)}, users' too. ",
        none="",
    )
    return why + turned_away + certificate + refused


def _did(objective: str) -> str:
    """Return what a bad request did, with the variable $limit: "waited over 500 ms for the first token"."""
    return _DID[objective].format("{{ $limit }}")


def _windows(severity: str, scale: float) -> tuple[float, float]:
    pairs = [pair for pair in PAIRS if pair.severity == severity and pair.every_s is None]
    return pairs[0].short_s * scale, pairs[-1].long_s * scale


def _longest_short_s(severity: str) -> float:
    return max(pair.short_s for pair in PAIRS if pair.severity == severity and pair.every_s is None)


def _kind(one: Sli) -> str:
    return "users" if one in sli.USERS else "canaries"


def _count(of: Callable[..., str], one: Sli, window_s: float, scale: float) -> str:
    return f"sum({of(one, window_s, scale, matcher=_MATCHER)})"


def _variables(judged: Sequence[Sli], window_s: float, scale: float) -> str:
    """Return templates that set bad and all requests: $failed and $sent of canaries, $theirs and $asked of users."""
    canaries, *users = judged
    texts = [
        variable(name, query)
        for one, bad_name, all_name in ((canaries, "failed", "sent"), *((one, "theirs", "asked") for one in users))
        for name, query in (
            (bad_name, _count(bad, one, window_s, scale)),
            (all_name, _count(total, one, window_s, scale)),
        )
    ]
    return "".join(texts) if users else f"{''.join(texts)}{{{{ $theirs := 0.0 }}}}{{{{ $asked := 0.0 }}}}"


def _limit(objective: str) -> str:
    """Return a template that sets the variable $limit, which `_did` reads; empty for failures."""
    series = f'{names.OBJECTIVE_SECONDS.name}{{{OF_TARGET},objective="{objective}"}}'
    is_latency = objective != slo.AVAILABILITY
    return variable("limit", f"max({series})", shown=SPAN, none='"the limit"') if is_latency else ""


def _counts(one: Sli, windows: tuple[float, float], scale: float) -> str:
    """Return a template such as "3 of 20 in 5 min, 7 of 1440 in 6 h", "no requests in 6 h", or "unknown"."""
    short, long = map(words, windows)
    missed, all_missed = (_count(bad, one, window_s, scale) for window_s in windows)
    judged, all_judged = (_count(total, one, window_s, scale) for window_s in windows)
    lately = if_any(judged, TARGET, _share(missed), "no requests", "unknown")
    whole = f"{lately} in {short}, {_share(all_missed)} in {long}"
    return if_any(all_judged, TARGET, whole, f"no requests in {long}", "not measured")


def _share(missed: str) -> str:
    return f"{value_of(missed, shown=COUNT, none='0')} of {{{{ . | first | value | {COUNT} }}}}"


def _by_outcome(window_s: float) -> str:
    failed = f'{names.REQUESTS.name}{{{_CANARY},outcome!~"{"|".join(NO_FAILURES)}"}}'
    return f"sum by (outcome) ({sli.grown(failed, duration(window_s))}) > 0"


def reasons(window_s: float) -> str:
    """Return a template of the outcomes of the failed canaries, the most frequent first: " (timeout, rejected)"."""
    query = f"sort_desc(topk({_TOP}, {_by_outcome(window_s)}))"
    each = '{{ if $i }}, {{ end }}{{ $one.Labels.outcome | reReplaceAll "_" " " }}'
    asked = f"printf `{query}` {' '.join(f'$labels.{label}' for label in TARGET)} | query"
    return f"{{{{ with {asked} }}}} ({{{{ range $i, $one := . }}}}{each}{{{{ end }}}}){{{{ end }}}}"


def _by_model(one: Sli, window_s: float) -> str:
    """Return the query of bad canaries by model, of a target with canaries of several; a LoRA adapter is a model."""
    window = duration(window_s)

    def count(series: str, matchers: str) -> str:
        return f"sum by (model) ({sli.grown(f'{series}{{{_CANARY},{matchers}}}', window)})"

    if one.objective == slo.AVAILABILITY:
        missed = count(names.REQUESTS.name, f'outcome!~"{"|".join(NO_FAILURES)}"')
    else:
        every = count(names.REQUESTS.name, 'outcome="ok"')
        good = count(names.GOOD_REQUESTS.name, f'objective="{one.objective}"')
        missed = f"{every} - ({good} or 0 * {every})"
    models = f'count(count by (model) ({names.REQUESTS.name}{{{_CANARY},model!="unknown"}})) > 1'
    return f"({missed}) > 0 and on () ({models})"


def _one_model(one: Sli, window_s: float) -> str:
    """Return a template that names the models of the bad canaries of a target with several: ", those of adapter-a"."""
    each = "{{ if $i }}, {{ end }}{{ $one.Labels.model }}"
    query = f"sort_desc(topk({_TOP}, {_by_model(one, window_s)}))"
    asked = f"printf `{query}` {' '.join(f'$labels.{label}' for label in TARGET)} | query"
    return f"{{{{ with {asked} }}}}, those of {{{{ range $i, $one := . }}}}{each}{{{{ end }}}}{{{{ end }}}}"


def _models(one: Sli, window_s: float) -> str:
    query = f"sort_desc(topk({_TOP}, {_by_model(one, window_s)}))"
    return listed(query, "model", before=f"By model in {words(window_s)}: ", after=". ")


def _canaries(window_s: float) -> list[str]:
    """Return why canaries failed, and when the last one succeeded."""
    last = f"{names.LAST_SUCCESS.name}{{{_CANARY}}}"
    since = value_of(
        f"time() - max({last})",
        shown=SPAN,
        before="The last canary succeeded ",
        after=" ago. ",
        none="No canary has succeeded since Kneewatch started. ",
    )
    has_canaries = f"count({names.REQUESTS.name}{{{_CANARY}}})"
    return [why_failed(window_s), if_any(has_canaries, TARGET, since, "", "")]


def _judged_at(one: Sli, window_s: float, scale: float) -> str:
    """Return how users' latencies are judged: by the server's buckets and clock. Empty for others, and without any."""
    if one not in sli.USERS or one.objective == slo.AVAILABILITY:
        return ""
    bound = f'max({names.USERS_OBJECTIVE_SECONDS.name}{{{OF_TARGET},objective="{one.objective}"}})'
    bound += f" and on () {_count(total, one, window_s, scale)} > 0"
    return value_of(
        bound,
        shown=SPAN,
        before="Users' requests are measured by the server, without the network, and judged at ",
        after=", its lowest histogram bound at or above {{ $limit }}. ",
        none="",
    )


def _budget(judged: Sequence[Sli], windows: tuple[float, float], scale: float) -> str:
    """Return a template of what the objective allows, and when the budget is gone at this pace, with enough data."""
    window = f"{WINDOW}{{{OF_TARGET}}}"
    share = value_of(f"{allowed(judged[0].objective)}{{{OF_TARGET}}}", shown=PERCENT)
    days = value_of(f"{window} / {DAY_S:g}", shown='printf "%.3g d"')
    watched = _WATCHED_SHARE * HOUR_S * scale / step_s(scale)
    enough = " or ".join(
        f"({_count(total, one, windows[1], scale)} >= {_ENOUGH}"
        f" and on () max(count_over_time({one.total_record(duration(step_s(scale)))}{_MATCHER}"
        f"[{duration(HOUR_S * scale)}])) >= {watched:g})"
        for one in judged
    )
    some = (
        f"{{{{ if gt $value 0.0 }}}}; at this pace the whole budget is gone in {runs_out(window, TARGET)}{{{{ end }}}}."
    )
    none = "; there is too little data yet to say when the budget is gone."
    return f"The objective '{{{{ $labels.slo }}}}' allows {share} over {days}{if_any(enough, TARGET, some, none, none)}"
