"""What Alertmanager is told of the alerts: which of them silence others and why, and which have a route of their own.

Rows. An alert names them in its `silenced_by` and `route`; alerts/alertmanager.py makes rules and routes of both.
Three principles: a ticket never silences a page, a symptom never silences its cause, and an alert is silenced only
while its cause lasts.
"""

from dataclasses import dataclass

_PAGE, _TICKET = 'severity="page"', 'severity="ticket"'
_OURS = 'alertname=~"Kneewatch.+"'


@dataclass(frozen=True, slots=True)
class Inhibition:
    """A rule by which firing alerts silence others that have the same values of the labels `equal`.

    `source` matches the alerts that silence. They silence the alerts with this row in `silenced_by`, if `target`
    matches; if no alert has this row, all that `target` matches. `why` becomes a comment.
    """

    source: tuple[str, ...]
    why: str
    target: tuple[str, ...] = ()
    equal: tuple[str, ...] = ("cluster", "namespace", "target")

    @property
    def alert(self) -> str:
        """Return the name of the alert that silences, or what matches the names of several."""
        return next(one for one in self.source if one.startswith("alertname")).partition('"')[2].rstrip('"')


REPEATED = Inhibition(
    (_PAGE, _OURS),
    "A page makes the ticket for the same objective redundant.",
    target=(_TICKET,),
    equal=("alertname", "cluster", "namespace", "target", "workload", "objective", "UUID"),
)
TARGET_DOWN = Inhibition(
    ('alertname="KneewatchTargetDown"', 'severity="none"'),
    "Most requests fail: the server is down. High latency, queues and unreadable metrics are symptoms of that."
    " KneewatchAvailabilityBurn is no source: it may burn because one canary in fifty fails, while every user waits."
    " KneewatchTTFTBurn and KneewatchTPOTBurn still notify: canaries may fail on their own (for example after a key"
    " rotation) while users wait.",
)
ENGINE_STALLED = Inhibition(
    ('alertname="KneewatchEngineStalled"', _PAGE),
    "A stalled engine generates no tokens, so all requests wait. The availability page still notifies, in the same"
    " notification if it fires within the wait: it shows the impact on users.",
)
GPU_XID = Inhibition(
    ('alertname="KneewatchGPUXid"', _PAGE),
    "An error that takes a GPU away is why it is missing.",
    target=(_TICKET,),
)
TTFT_COLLAPSE = Inhibition(
    ('alertname="KneewatchTTFTCollapse"', _PAGE),
    "Every request waits many times as long as promised: the budgets burn, and the queue grows.",
)
PROBE_GONE = Inhibition(
    ('alertname="KneewatchProbeGone"', _PAGE),
    "Nothing monitors the target, so the series of its other alerts are stale or missing. `discovery`: the alert for a"
    " discovery has no target label. Without this it would inhibit every other alert that has none. Its namespace is"
    " not known: no series is left to tell.",
    target=(_OURS, 'alertname!="KneewatchProbeGone"', 'severity!="none"'),
    equal=("target", "discovery"),
)
PROBE_SILENT = Inhibition(
    ('alertname="KneewatchProbeSilent"', _PAGE),
    "KneewatchProbeSilent covers the failing canary task too.",
    target=('task="canary"',),
)
KV_CACHE_PRESSURE = Inhibition(
    ('alertname="KneewatchKVCachePressure"',),
    "A full KV cache causes both queueing and preemptions.",
    target=(_TICKET,),
)
PREFIX_HIT_COLLAPSE = Inhibition(
    ('alertname="KneewatchPrefixHitCollapse"',),
    "A collapse of prefix hits is a change of the mix, found within an hour.",
    target=(_TICKET,),
)
KNEE_DROPPED = Inhibition(
    ('alertname="KneewatchKneeDropped"',),
    "KneewatchKneeDropped is the more severe form of KneewatchKneeDown.",
    target=(_TICKET,),
    equal=("cluster", "namespace", "target", "model", "workload"),
)
KNEE_BELOW_PEAK = Inhibition(
    ('alertname="KneewatchKneeDropped"', _PAGE),
    "The capacity is below the users' peak, so little of it is left at every peak, also by the forecast for what they"
    " send.",
    target=(_TICKET,),
    equal=("cluster", "namespace", "target", "model"),
)
INHIBITIONS = (
    REPEATED,
    TARGET_DOWN,
    ENGINE_STALLED,
    GPU_XID,
    TTFT_COLLAPSE,
    PROBE_GONE,
    PROBE_SILENT,
    KV_CACHE_PRESSURE,
    PREFIX_HIT_COLLAPSE,
    KNEE_DROPPED,
    KNEE_BELOW_PEAK,
)


@dataclass(frozen=True, slots=True)
class Route:
    """A route to a receiver; the first one that matches counts. `why` becomes a comment.

    It matches the alerts with this row as their `route`, if `matchers` match; if no alert has this row, all that
    `matchers` match. Without `group_by` or a time, the root route's count. Times are Alertmanager's durations.
    """

    receiver: str
    why: str
    matchers: tuple[str, ...] = ()
    group_by: tuple[str, ...] = ()
    group_wait: str = ""
    group_interval: str = ""
    repeat_interval: str = ""


NOBODY = Route(
    "none",
    "Not for people: this KneewatchTargetDown is the source of an inhibition below. Its page, for another outage, is"
    " below.",
    ('severity="none"',),
)
ONE_KNEEWATCH = Route(
    "page",
    "A Kneewatch that is down sends one page, regardless of how many targets it watches.",
    group_by=("alertname", "cluster"),
    group_wait="10s",
    group_interval="1m",
    repeat_interval="1h",
)
LASTS_FOR_DAYS = Route(
    "page",
    "A dropped knee lasts for days. In a group of its own it does not hide the target's next outage.",
    (_PAGE,),
    group_by=("alertname", "cluster", "namespace", "group"),
    group_wait="1m",
    group_interval="10m",
    repeat_interval="1d",
)
PAGES = Route(
    "page",
    "All firing page alerts of a target, or of the servers of one discovery, are one notification. The wait collects"
    " what one cause makes fire: requests are counted each minute, so servers that die together may page a minute"
    " apart, and with a scrape a minute a stalled engine a little later than its canaries. Alerts that fire later are"
    " added after group_interval. A page fires for half an hour after its cause has ended, so it repeats later than"
    " that.",
    (_PAGE,),
    group_by=("cluster", "namespace", "group"),
    group_wait="90s",
    group_interval="1m",
    repeat_interval="6h",
)
ALL_TARGETS = Route(
    "ticket",
    "Affects all targets of a Kneewatch, so do not group by target.",
    group_by=("alertname", "cluster", "reason"),
)
ROUTES = (NOBODY, ONE_KNEEWATCH, LASTS_FOR_DAYS, PAGES, ALL_TARGETS)
