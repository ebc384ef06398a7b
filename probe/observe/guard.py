"""The guard: decides whether load may go on. Pure: polls and failures in, a verdict out.

The signals and their order come from one measured overload of a real vLLM with a small KV cache:
preemptions showed after 3.8 s, a standing queue after 8.8 s, "KV above 0.95 three times in a row" only
after 13 s, because usage swings between 0.8 and 1.0 while requests are pushed out. Hence preemptions
first, and KV as two of the last five polls.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, sqrt
from typing import Self

from probe.core import reasons
from probe.core.objectives import Objective, Objectives
from probe.core.reasons import Reason
from probe.core.request import Outcome
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.observe.restarts import restarted
from probe.observe.user_load import requests_counted


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The limits at which load stops. Numbers of polls are consecutive unless noted otherwise."""

    preemptions: float = 3
    waiting: float = 4
    waiting_polls: int = 3
    kv_cache_usage: float = 0.95
    kv_polls: int = 2  # of the last kv_window
    kv_window: int = 5
    missed_polls: int = 2
    ttft: Objective | None = None  # the users' objectives; None: no latency is judged
    tpot: Objective | None = None
    over_objective: float = 2  # this multiple of an objective is harm, and no measurement any more
    latency_polls: int = 6  # three seconds: at one request/s the last poll alone would have no samples
    slow_first_tokens: float = 3
    itl_samples: float = 20
    unanswered: int = 3  # requests that wait too long for their first token; a single one may have a long prompt
    hang_s: float = 2.0  # or twice the limit, if longer: a server that does not answer a single request does not answer
    worse_than_before: float = 2  # users with long prompts wait long without probe load too
    usual_samples: float = 200

    def promised(self, objectives: Objectives) -> Self:
        """Return the limits with the latency objectives. A mean gap is no longer than the longest one."""
        return replace(self, ttft=objectives.ttft, tpot=objectives.tpot or objectives.itl)

    def offered(self, rate_rps: float) -> Self:
        """Return the limits at an offered rate: requests that arrive within the TTFT objective may all wait."""
        within_s = self.ttft.within_s if self.ttft else 0.0
        return replace(self, waiting=max(self.waiting, rate_rps * within_s))


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """The decision whether load may go on; `reason` is the word of a row, `detail` has the numbers."""

    allows_load: bool
    reason: str | None = None
    detail: str | None = None


GO = GuardVerdict(allows_load=True)
SLEEPS = "the server sleeps: its metrics show no engine awake"
LOOK_BACK = 8  # polls that are compared whole, the newest
# Failures that show that the server is in trouble. After a wrong answer or a bad request, going on would measure
# nothing either. Any failure therefore stops the load; these only have a better name.
_FAILURES = {
    Outcome.REJECTED: reasons.RATE_LIMITED,
    **dict.fromkeys(
        (Outcome.SERVER_ERROR, Outcome.UNREACHABLE, Outcome.CERTIFICATE, Outcome.TIMEOUT), reasons.SERVER_ERRORS
    ),
}
# At least this many requests, answered at least this long ago (s): some servers export counters every few seconds.
_OWN_REQUESTS = 20
OWN_COUNTED_S = 5.0
# The least share of them that it counts if it is one of several servers.
_OWN_SHARE = 0.05


def denied(reason: Reason, detail: str | None = None) -> GuardVerdict:
    """Return the verdict that load may not begin, or not go on."""
    return GuardVerdict(allows_load=False, reason=reason.word, detail=detail)


def may_start(server: ServerSnapshot | None, limits: GuardLimits) -> GuardVerdict:
    """Decide before any load: refuse a server that sleeps, has a queue that is unknown or not empty, or a nearly full
    KV cache.
    """
    if server is None or server.waiting is None:
        return denied(reasons.NO_SERVER_METRICS, "the server does not report its queue, by which the guard decides")
    if server.is_asleep:
        return denied(reasons.REFUSED_ASLEEP, SLEEPS)
    if server.waiting > 0:
        return denied(reasons.BUSY, f"{server.waiting:g} requests are already waiting")
    if (server.kv_cache_usage or 0) > limits.kv_cache_usage:
        return denied(reasons.BUSY, f"KV cache {server.kv_cache_usage:.0%} full")
    return GO


def decide(
    polls: Sequence[ServerSnapshot | None],
    failures: Sequence[Outcome],
    limits: GuardLimits,
    unanswered_s: Sequence[float] = (),
    *,
    rejected: int = 0,
    before: ServerSnapshot | None = None,
    is_cut: bool = False,
) -> GuardVerdict:
    """Decide whether load may go on.

    `polls`: the server at each poll since load began, oldest first, None for a failed poll; `failures`: outcomes of the
    probe requests that failed since then, but for the `rejected` ones, which the server refused for having too much to
    do; `unanswered_s`: for how long (s) the probe requests without a first token have been due, in any order. `before`:
    the server before any load of the run; None: the first poll. `is_cut`: the first failure was an answer that still
    arrived at Kneewatch's time limit.
    """
    if polls and polls[-1] is not None and polls[-1].is_asleep:
        return denied(reasons.ASLEEP, SLEEPS)  # and not the failures that this brings
    if failures:
        first = failures[0]
        reason = reasons.TIME_LIMIT if is_cut else _FAILURES.get(first, reasons.FAILED_REQUESTS)
        return denied(reason, f"{len(failures)} probe requests failed, first: {first}")
    missed = polls[-limits.missed_polls :]
    if len(missed) == limits.missed_polls and all(poll is None or poll.waiting is None for poll in missed):
        return denied(reasons.SERVER_UNREADABLE, f"{len(missed)} polls of the server failed")
    read = [poll for poll in polls if poll is not None]
    return (
        _restarted(read)
        or _rejecting(read, rejected)
        or _preempting(read, limits)
        or _queueing(read, limits)
        or _full(read, limits)
        or _unanswered(unanswered_s, limits)
        or _slow(read, limits, before)
        or GO
    )


def counted_after_s(server: ServerSnapshot) -> float:
    """Return how long (s) a metrics page may take to count a request that was answered."""
    return OWN_COUNTED_S + server.delay_s


def page_fault(
    answered_ns: Sequence[int], snapshots: Sequence[ServerSnapshot], within_s: float | None = None
) -> Reason | None:
    """Return why a metrics page has not counted a run's own requests, or None.

    `answered_ns`: when they were answered, in order. `within_s`: how long the page may take to count one; None: the
    usual time and the delay of this page.
    If another server shared the requests with the n pages that are read, these would count n of n + 1 requests; the
    limit is half-way between that and all.
    """
    if not answered_ns or not snapshots:
        return None
    first, last = snapshots[0], snapshots[-1]
    pages = max(len(last.replicas), 1)
    whole_share = (pages + 0.5) / (pages + 1)
    before, after = requests_counted(first), requests_counted(last)
    if within_s is None:
        within_s = counted_after_s(last)
    own = bisect_right(answered_ns, last.at_ns - int(within_s * 1e9)) - bisect_right(answered_ns, first.at_ns)
    if before is None or after is None or own < _OWN_REQUESTS * pages or after - before >= whole_share * own:
        return None
    return reasons.SEVERAL_SERVERS if after - before >= _OWN_SHARE * own else reasons.OTHER_SERVER


def broken_for_certain(missed: Mapping[str, int], planned: float, objectives: Objectives) -> str | None:
    """Return the objective that a step breaks whatever is still to come, or None.

    `missed`: requests that missed it so far, by name; `planned`: requests of the whole step. Two standard deviations
    more than the objective allows may miss it: a step of few requests breaks one by chance.
    """
    for name, objective in objectives.latencies().items():
        allowed = (1 - objective.ratio) * planned
        if missed.get(name, 0) > allowed + 2 * sqrt(allowed) + 1:
            return name
    return None


def preemptions(polls: Sequence[ServerSnapshot]) -> float | None:
    """Return the preemptions between the first poll and the last; None if the server does not report them."""
    return _growth([poll.preemptions for poll in polls])


def rejections(polls: Sequence[ServerSnapshot]) -> float | None:
    """Return the requests that the server refused to queue between the first poll and the last; None: not reported."""
    return _growth([poll.rejections for poll in polls])


def _growth(counted: Sequence[float | None]) -> float | None:
    counts = [count for count in counted if count is not None]
    # From poll to poll: a server that restarts in between counts from zero again.
    return sum(max(after - before, 0.0) for before, after in pairwise(counts)) if counts else None


def _restarted(polls: Sequence[ServerSnapshot]) -> GuardVerdict | None:
    # The guard decides after each poll, so it has already reported a change between older ones.
    for before, after in pairwise(polls[-LOOK_BACK:]):
        if (words := restarted(before, after)) is not None:
            is_other = before.replicas.keys() != after.replicas.keys()
            return denied(reasons.REPLICAS_CHANGED if is_other else reasons.SERVER_RESTARTED, words)
    return None


def _rejecting(polls: Sequence[ServerSnapshot], rejected: int) -> GuardVerdict | None:
    """Judge rejections. A single one is harm: a user may have got it, and a full queue refuses whoever comes."""
    counted = rejections(polls) or 0.0
    if not rejected and not counted:
        return None
    return denied(reasons.REJECTIONS, f"the server refused {max(rejected, counted):g} requests since the load began")


def _preempting(polls: Sequence[ServerSnapshot], limits: GuardLimits) -> GuardVerdict | None:
    grown = preemptions(polls) or 0.0
    if grown < limits.preemptions:
        return None
    return denied(reasons.PREEMPTIONS, f"{grown:g} preemptions since the load began")


def _queueing(polls: Sequence[ServerSnapshot], limits: GuardLimits) -> GuardVerdict | None:
    recent = [poll.waiting or 0.0 for poll in polls[-limits.waiting_polls :]]
    if len(recent) < limits.waiting_polls or min(recent) <= limits.waiting:
        return None
    return denied(reasons.QUEUE, f"{recent[-1]:g} requests waiting for {len(recent)} polls")


def _full(polls: Sequence[ServerSnapshot], limits: GuardLimits) -> GuardVerdict | None:
    recent = [poll.kv_cache_usage or 0.0 for poll in polls[-limits.kv_window :]]
    high = [usage for usage in recent if usage > limits.kv_cache_usage]
    if len(high) < limits.kv_polls:
        return None
    return denied(reasons.KV_CACHE, f"KV cache at {max(high):.0%} in {len(high)} of {len(recent)} polls")


def _unanswered(unanswered_s: Sequence[float], limits: GuardLimits) -> GuardVerdict | None:
    if limits.ttft is None:
        return None
    limit_s = limits.over_objective * limits.ttft.within_s
    late = sorted((waits_s for waits_s in unanswered_s if waits_s > limit_s), reverse=True)
    if not late or (len(late) < limits.unanswered and late[0] <= max(2 * limit_s, limits.hang_s)):
        return None
    words = f"{len(late)} probe requests without a first token after {limit_s:g} s, the longest for {late[0]:.2f} s"
    return denied(reasons.NO_FIRST_TOKEN, words)


def _slow(polls: Sequence[ServerSnapshot], limits: GuardLimits, before: ServerSnapshot | None) -> GuardVerdict | None:
    words = slow_tokens(polls, limits, before)
    return denied(reasons.USERS_LATENCY, words) if words else None


def slow_tokens(
    polls: Sequence[ServerSnapshot], limits: GuardLimits, before: ServerSnapshot | None = None
) -> str | None:
    """Describe latencies that are too long at the end of `polls`, the successful ones since load began, or None.

    `before`: as for `decide`. What is usual is taken from it, as a later poll has the run's own overloads in it.
    The server's histograms include probe requests, which share queue and batch with users' requests: whichever wait too
    long, it is a reason to stop.
    """
    recent = polls[-limits.latency_polls :]
    usual = [before] if before is not None else polls
    return _slow_first_tokens(usual, recent, limits) or _slow_next_tokens(recent, limits)


def _slow_first_tokens(
    polls: Sequence[ServerSnapshot], recent: Sequence[ServerSnapshot], limits: GuardLimits
) -> str | None:
    """Describe too many first tokens after twice the objective: more than may miss the objective, and than usual."""
    first, last = _ends(recent, "ttft")
    if limits.ttft is None or first is None or last is None:
        return None
    wanted_s = limits.over_objective * limits.ttft.within_s
    limit_s = min((bound for bound, _ in last.buckets if bound >= wanted_s), default=inf)  # rather late than wrong
    answered = last.count - first.count
    slow = answered - (_up_to(last, limit_s) - _up_to(first, limit_s))
    usual = limits.worse_than_before * _usual(polls, limit_s, limits)
    if slow < limits.slow_first_tokens or slow <= max(1 - limits.ttft.ratio, usual) * answered:
        return None
    return f"{slow:g} of {answered:g} requests that the server answered had their first token after {limit_s:g} s"


def _usual(polls: Sequence[ServerSnapshot], limit_s: float, limits: GuardLimits) -> float:
    """Return the share of first tokens after `limit_s` in the server's life before this load; 0 with few samples."""
    ever, _ = _ends(polls, "ttft")
    if ever is None or ever.count < limits.usual_samples:
        return 0.0
    return (ever.count - _up_to(ever, limit_s)) / ever.count


def _slow_next_tokens(recent: Sequence[ServerSnapshot], limits: GuardLimits) -> str | None:
    """Describe a mean gap over twice the objective. Single long gaps, while a prompt is prefilled, are no harm."""
    first, last = _ends(recent, "itl")
    if limits.tpot is None or first is None or last is None:
        return None
    count, limit_s = last.count - first.count, limits.over_objective * limits.tpot.within_s
    if count < limits.itl_samples or (mean_s := (last.sum - first.sum) / count) <= limit_s:
        return None
    return f"the server's mean gap between tokens is {mean_s * 1000:.0f} ms, more than {limit_s * 1000:.0f} ms"


def _ends(recent: Sequence[ServerSnapshot], name: str) -> tuple[Histogram | None, Histogram | None]:
    """Return a histogram at the first and at the last poll that has it."""
    found = [poll.histograms[name] for poll in recent if name in poll.histograms]
    return (found[0], found[-1]) if found else (None, None)


def _up_to(histogram: Histogram, bound: float) -> float:
    return max((count for upper, count in histogram.buckets if upper <= bound), default=0.0)
