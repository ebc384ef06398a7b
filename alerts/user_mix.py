"""An alert when users send other requests than before: prompts or answers of other lengths, or fewer prefix hits. Pure.

Capacity holds for one mix of requests, so such a change comes before a knee that has shifted and a headroom that is
wrong. A day is compared with the seven days before it and with the same day a week earlier, and has to differ from
both: neither a daily nor a weekly rhythm is a change. Counters are recorded once an hour, as increases,
so that a restart of Kneewatch, of the server or of Prometheus loses an hour at most, and comparing weeks costs little.
"""

from alerts import inhibitions, links
from alerts.alert_labels import by, on
from alerts.rules import Alert, Recording, RuleGroup
from alerts.templates import OF_TARGET, PERCENT, TARGET, if_any, words
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names
from exporters.names import PREFIX

# Requests by length, and tokens; tokens that the server looked up in its prefix cache, and those it found.
REQUESTS = f"target_model:{PREFIX}users_length_requests:increase1h"
TOKENS = f"target_model:{PREFIX}users_length_tokens:increase1h"
LOOKED_UP = f"target:{PREFIX}prefix_cache_queries:increase1h"
FOUND = f"target:{PREFIX}prefix_cache_hits:increase1h"
# Of the last day: mean tokens, and the share of requests up to a length.
MEAN = f"target_model:{PREFIX}users_length_tokens:mean1d"
SHARE = f"target_model:{PREFIX}users_length_share:ratio1d"
MISSES = f"target:{PREFIX}prefix_cache_misses:ratio1d"
# Where a day differs from both: its mean relative to the mean of the week before, minus 1.
MOVED = f"target_model:{PREFIX}users_mix_moved:ratio"
SHOWN = (REQUESTS, MEAN, MISSES)  # on dashboards

_LABELS = ("target", "model")
_KIND = (*_LABELS, "kind")
_HISTOGRAMS = (("prompts", names.USERS_PROMPT_TOKENS), ("answers", names.USERS_OUTPUT_TOKENS))
# A larger change of the mean moves the knee about as much. Means of a day of log-normal lengths vary by a tenth.
_MEAN_CHANGE = 0.3
# Of the share of requests up to a length, at two lengths: one alone may be a bound of the histogram that many are near.
_SHARE_CHANGE = 0.15
_LENGTHS = 2
_MISS_CHANGE = 0.1  # of prompt tokens, in addition to the relative change
_MIN_REQUESTS = 1000  # a day; fewer are few clients with varying habits
_COVERED = 0.8  # of the hours of a day: a part of a day has another mix than the whole
_OF_USERS = 0.8  # of the tokens that were looked up: others are canaries, with new prompts each time
_FOR_S = 3 * HOUR_S
_KEEP_S = 6 * HOUR_S
_AT_LEAST_S = 15.0
_ALERT_EVERY_S = 240.0  # less than 5 minutes, when a sample becomes stale: no query would find the alert


def user_mix_groups(scale: float = 1.0) -> list[RuleGroup]:
    """Return the rules for all targets; `scale` shortens windows and waiting times."""
    rules = _Rules(scale)
    return [
        RuleGroup("kneewatch-users", rules.every_s, [*rules.hourly(), *rules.of_day(), *rules.moved()]),
        RuleGroup("kneewatch-users-moved", max(_AT_LEAST_S, _ALERT_EVERY_S * scale), [rules.alert()]),
    ]


def if_moved(scale: float) -> str:
    """Return a template of a sentence for an alert on the knee: that the mix has moved within a week, or nothing."""
    recorded = f"count(count_over_time({MOVED}{{{OF_TARGET}}}[{duration(7 * DAY_S * scale)}]))"
    some = " What users send has changed within the week, too: see KneewatchUserMixMoved."
    return if_any(recorded, TARGET, some, "", "")


class _Rules:
    def __init__(self, scale: float) -> None:
        self._scale = scale
        self.every_s = max(_AT_LEAST_S, HOUR_S * scale)
        self._hour = duration(max(2 * _AT_LEAST_S, HOUR_S * scale))
        self._day = duration(DAY_S * scale)
        self._before = f"[{duration(7 * DAY_S * scale)}] offset {self._day}"
        self._last_week = f"[{duration(3 * self.every_s)}] offset {duration(7 * DAY_S * scale)}"

    def hourly(self) -> list[Recording]:
        """Record what was counted within an hour. Several Kneewatches may read one server."""
        found = []
        for kind, series in _HISTOGRAMS:
            for record, suffix, more in ((REQUESTS, "bucket", ("le",)), (TOKENS, "sum", ())):
                increase = f"max {by(*_LABELS, *more)} (increase({series.name}_{suffix}[{self._hour}]))"
                found.append(Recording(record, increase, {"kind": kind}))
        for record, series in (
            (LOOKED_UP, names.SERVER["prefix_cache_queries"]),
            (FOUND, names.SERVER["prefix_cache_hits"]),
        ):
            found.append(Recording(record, f"max {by('target')} (increase({series.name}[{self._hour}]))"))
        return found

    def of_day(self) -> list[Recording]:
        """Record a day's means and shares, of days that were watched and had enough requests."""
        whole = f'{REQUESTS}{{le="+Inf"}}[{self._day}]'
        counted = f"count_over_time({whole}) >= {_COVERED * DAY_S * self._scale / self.every_s:.1f}"
        enough = f"({counted} and avg_over_time({whole}) >= {_MIN_REQUESTS / 24:.1f})"
        is_whole = f"and {on(*_KIND)} {enough}"
        users = f'max {by("target")} (avg_over_time({TOKENS}{{kind="prompts"}}[{self._day}]))'
        asked = f"avg_over_time({LOOKED_UP}[{self._day}])"
        return [
            Recording(MEAN, f"{self._mean(f'[{self._day}]')}\n{is_whole}"),
            Recording(SHARE, f"{self._share(f'[{self._day}]')}\n{is_whole}"),
            Recording(
                MISSES,
                f"{self._misses(f'[{self._day}]')}\nand {on('target')} ({users} >= {_OF_USERS} * {asked})"
                f"\nand {on('target')} {MEAN}",
            ),
        ]

    def moved(self) -> list[Recording]:
        """Record how far means have moved where a day differs from the week before and from that day last week."""
        mean = f"{MEAN} / {self._mean(self._before)} - 1"
        lengths = f"({_differs(MEAN, self._mean(self._before))}\n  and {_differs(MEAN, self._past(MEAN))}"
        shape = (
            f"count {by(*_KIND)} (abs({SHARE} - {self._share(self._before)}) > {_SHARE_CHANGE}\n"
            f"    and abs({SHARE} - {self._past(SHARE)}) > {_SHARE_CHANGE}) >= {_LENGTHS}"
        )
        misses, week = f"{MISSES} / {self._misses(self._before)} - 1", self._misses(self._before)
        far = [f"abs({MISSES} - {past}) > {_MISS_CHANGE}" for past in (week, self._past(MISSES))]
        both = [_differs(MISSES, past) for past in (week, self._past(MISSES))]
        return [
            Recording(MOVED, f"{mean}\nand ({lengths}\n  or {shape}))"),
            Recording(MOVED, f"{misses}\nand {' and '.join((*both, *far))}", {"kind": "prefix misses"}),
        ]

    def alert(self) -> Alert:
        recent = f"[{duration(2 * self.every_s)}]"
        each = (
            f"{{{{ with printf `max by (kind) (last_over_time({MOVED}{{{OF_TARGET}}}{recent}))` $labels.cluster"
            " $labels.namespace"
            " $labels.target | query }}{{ range $i, $one := . }}{{ if $i }}, {{ end }}{{ $one.Labels.kind }}"
            f" {{{{ if gt $one.Value 0.0 }}}}+{{{{ end }}}}{{{{ $one.Value | {PERCENT} }}}}{{{{ end }}}}{{{{ else"
            f" }}}}no mean changed"
            "{{ end }}"
        )
        return Alert(
            name="KneewatchUserMixMoved",
            expr=f"max {by('target')} (abs(last_over_time({MOVED}{recent}))) >= 0",
            for_s=_FOR_S * self._scale,
            keep_s=_KEEP_S * self._scale,
            severity="ticket",
            summary=(
                f"{{{{ $labels.target }}}}: users send other requests than last week ({each}): its capacity no longer"
                " applies"
            ),
            description=(
                f"Over the last {words(DAY_S * self._scale)}, prompts, answers or prefix hits of the requests that"
                f" users send to"
                f" {{{{ $labels.target }}}} differ from the week before and from the same day last week. Change"
                f" of the mean against the week: {each}. Capacity was measured for other requests, so headroom and the"
                " knee may be wrong for your users."
            ),
            means=(
                "users' prompts, answers or prefix hits of a day differ from the week before and from the same day last"
                " week; a shift of the knee often begins with it, and headroom may be wrong"
            ),
            panels={links.SERVER: ["What users send", "Users' mix by day"]},
            silenced_by=(inhibitions.PREFIX_HIT_COLLAPSE,),
            unseen="users send the same mix all month",
        )

    def _mean(self, window: str) -> str:
        count = f'max {by(*_KIND)} (avg_over_time({REQUESTS}{{le="+Inf"}}{window}))'
        return f"(max {by(*_KIND)} (avg_over_time({TOKENS}{window})) / {count})"

    def _share(self, window: str) -> str:
        count = f'avg_over_time({REQUESTS}{{le="+Inf"}}{window})'
        each = f"max {by(*_KIND, 'le')} (avg_over_time({REQUESTS}{window}))"
        return f"({each} / {on(*_KIND)} group_left max {by(*_KIND)} ({count}))"

    def _misses(self, window: str) -> str:
        found, asked = (f"max {by('target')} (avg_over_time({one}{window}))" for one in (FOUND, LOOKED_UP))
        return f"(1 - {found} / {asked})"

    def _past(self, record: str) -> str:
        return f"last_over_time({record}{self._last_week})"


def _differs(now: str, past: str) -> str:
    """Return the condition that a value is larger or smaller by the same factor."""
    return f"(({now} > {1 + _MEAN_CHANGE} * {past}) or ({now} * {1 + _MEAN_CHANGE} < {past}))"
