"""A step of a search: one load that it tried, and what can be derived from its requests and snapshots. Pure."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, stdev

from probe.capacity.model.front_end_delay import DelaySample
from probe.capacity.model.replay import ReplayPrediction, SentRequest, UserArrivals
from probe.capacity.model.windows import MetricsWindow
from probe.core import latency
from probe.core.objectives import LATENCIES, Objectives
from probe.core.percentiles import percentile
from probe.core.reasons import TOO_FEW, is_overload, is_precaution
from probe.core.request import Outcome, RequestRecord
from probe.core.snapshot import ServerSnapshot, UserLoad
from probe.core.step import StepRun, StepSummary

FEW = 8  # the least requests to learn something from: the mean of fewer is chance
# A step is steady if, beyond chance, at most this many times as many requests are in flight at its end as at its
# beginning: a batch that still fills grows by less, an endless queue by more.
_GROWTH = 1.3
_MOST_REPORT = 0.9  # a server that reports times does so for this share of requests; some are without one of them


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One load and its result. `load_rps`: requests/s of all traffic, converted to the workload's requests.

    `own_rps`: its own; `users`: those in it, also where it was cut short; `burst_rps`: by how much they exceeded that
    load for some seconds, where chance does not explain it.
    """

    load_rps: float
    summary: StepSummary
    run: StepRun
    tripped: str | None
    is_steady: bool = True
    predicted: ReplayPrediction | None = None
    delay: DelaySample | None = None
    tails: Mapping[str, float] = field(default_factory=dict)  # latencies at their objectives' percentiles, in seconds
    part: int = -1  # index of the server model's part with this step's snapshots
    user_arrivals: Sequence[UserArrivals] = ()
    would_stop_twin: bool = False  # the guard may stop the twin too, with the same requests
    own_rps: float = 0.0
    users: UserLoad = field(default_factory=UserLoad)
    burst_rps: float = 0.0

    @property
    def highest_rps(self) -> float:
        """Return the highest load that the server had in it: what broke, broke at this one, or below."""
        return self.load_rps + self.burst_rps

    @property
    def has_held(self) -> bool:
        """Return whether nothing went wrong, even if there were too few requests to judge."""
        return self.tripped is None and not self.summary.broken and self.summary.reason in (None, TOO_FEW.word)

    @property
    def has_broken(self) -> bool:
        """Return whether an objective broke or the guard stopped an overload. Another end is neither."""
        return is_overload(self.tripped) or bool(self.summary.broken)

    @property
    def is_precaution(self) -> bool:
        """Return whether the guard stopped it before an objective broke."""
        return is_precaution(self.tripped)

    @property
    def is_informative(self) -> bool:
        """Return whether its latencies are the server's, of enough requests to learn from."""
        return self.has_enough and not self.summary.is_late

    @property
    def has_enough(self) -> bool:
        """Return whether there are enough requests to compare it with the twin."""
        return self.summary.valid or (self.summary.reason == TOO_FEW.word and self.summary.requests.ok >= FEW)

    def first_tokens(self) -> list[tuple[int, float]]:
        """Return prompt tokens and TTFT in seconds (0 if unknown) of judged requests, in the order they were due."""
        judged = _judged(self.run)
        return [(r.prompt_tokens or r.spec.prompt_tokens, latency.ttft_s(r) or 0.0) for r in judged]


def _judged(run: StepRun) -> list[RequestRecord]:
    """Return the answered requests that were due in the window, in the order they were due."""
    begin, end = run.window_ns
    judged = (r for r in run.records if r.outcome is Outcome.OK and begin <= r.scheduled_ns <= end)
    return sorted(judged, key=lambda r: r.scheduled_ns)


def tail_latencies(run: StepRun, objectives: Objectives) -> dict[str, float]:
    """Return the latencies of a step at their objectives' percentiles, in seconds."""
    judged = _judged(run)
    found = {}
    for name, objective in objectives.latencies().items():
        values = sorted(value for r in judged if (value := LATENCIES[name].of_request(r)) is not None)
        if len(values) >= FEW:
            found[name] = percentile(values, objective.ratio)
    return found


def sent_requests(run: StepRun) -> tuple[SentRequest, ...]:
    """Return the requests of a step in the order they were sent, with other probe requests, which are not judged."""
    if not run.records:
        return ()
    begin, last = min(r.scheduled_ns for r in run.records), max(r.scheduled_ns for r in run.records)
    window, end = run.window_ns
    own = [(r, r.outcome is Outcome.OK and window <= r.scheduled_ns <= end) for r in run.records]
    others = [(r, False) for r in run.other_probes if begin <= r.scheduled_ns <= last]
    return tuple(
        SentRequest(
            (_sent_ns(r) - begin) * 1e-9,
            r.prompt_tokens or r.spec.prompt_tokens,
            r.spec.output_tokens,
            judged,
            r.spec.shared_tokens,
        )
        for r, judged in sorted([*own, *others], key=lambda each: _sent_ns(each[0]))
    )


def _sent_ns(record: RequestRecord) -> int:
    return max(record.sent_ns, record.scheduled_ns)


def find_user_arrivals(run: StepRun, snapshots: Sequence[ServerSnapshot], users: UserLoad) -> tuple[UserArrivals, ...]:
    """Return when live users' requests arrived during a step, in seconds after its first request was due.

    In what is judged they are as many as `users` says.
    """
    if not run.records:
        return ()
    zero_ns = min(r.scheduled_ns for r in run.records)
    return arrivals_between(snapshots, [*run.records, *run.other_probes], users, run.window_ns, zero_ns)


def arrivals_between(
    snapshots: Sequence[ServerSnapshot],
    sent: Sequence[RequestRecord],
    users: UserLoad,
    known_ns: tuple[int, int],
    zero_ns: int = 0,
) -> tuple[UserArrivals, ...]:
    """Return when live users' requests arrived, by the server's counters; between `known_ns` as many as `users` says.

    First tokens that are no probe request's (`sent`) belong to users; their requests arrived a mean TTFT earlier.
    """
    counted = [(r.at_ns, r.histograms["ttft"]) for r in snapshots if "ttft" in r.histograms]
    if not counted or not all(math.isfinite(value) for _, ttft in counted for value in (ttft.count, ttft.sum)):
        return ()
    (_, first), (_, last) = counted[0], counted[-1]
    late_ns = round((last.sum - first.sum) / (last.count - first.count) * 1e9) if last.count > first.count else 0
    # A cancelled request has no times. Where its answer had begun, the server has counted it.
    begun = (r.events.at_ns[0] if r.events else r.scheduled_ns + late_ns for r in sent if r.events or r.reads)
    firsts = sorted(begun)
    # A canary in flight at the last snapshot is not known yet, and may have been counted.
    begin_ns, end_ns = max(known_ns[0], counted[0][0]), min(known_ns[1], counted[-1][0])
    left = math.inf
    if users.requests_per_second is not None:
        left = round(users.requests_per_second * (end_ns - begin_ns) * 1e-9)
    zero_ns += late_ns
    found: list[UserArrivals] = []
    unknown = 0.0
    for (from_ns, before), (to_ns, after) in pairwise(counted):
        if after.count < before.count:
            return ()  # the server was restarted
        unknown += after.count - before.count - (bisect_right(firsts, to_ns) - bisect_right(firsts, from_ns))
        is_known = begin_ns <= from_ns and to_ns <= end_ns
        count = max(round(min(unknown, left) if is_known else unknown), 0)
        unknown -= count
        left -= count if is_known else 0
        found.append(UserArrivals((from_ns - zero_ns) * 1e-9, (to_ns - zero_ns) * 1e-9, count))
    return tuple(found)


def is_steady(inside: Sequence[MetricsWindow]) -> bool:
    """Return whether the number of requests in flight had stopped growing; True if it is unknown."""
    in_flight = [w.running + w.waiting for w in inside if w.running is not None and w.waiting is not None]
    third = len(in_flight) // 3
    if not third:
        return True
    before, after = fmean(in_flight[:third]), fmean(in_flight[-third:])
    # A request more or less is chance where hardly any is in flight.
    return after < _GROWTH * before + 2 * math.sqrt(max(before, 1.0))


def measure_delay(run: StepRun, summary: StepSummary, measured: MetricsWindow) -> DelaySample | None:
    """Return how much later the probe got first tokens than the server reports for all requests; None if unknown.

    Where the server reports each request's times, by its own requests alone.
    """
    if summary.requests.ok < FEW or not measured.prompts or summary.ttft_s.mean is None or summary.ttft_s.p95 is None:
        return None
    outside_s = [parts["outside"] for one in run.records if (parts := latency.ttft_parts_s(one))]
    if len(outside_s) >= _MOST_REPORT * summary.requests.ok:
        error_s = stdev(outside_s) / math.sqrt(len(outside_s))
        return DelaySample(measured.prompts / measured.seconds, fmean(outside_s), len(outside_s), error_s)
    # Canaries are in the server's mean, and their prompts are short: they belong in the probe's mean, too.
    beside_s = [
        latency.ttft_s(r) or 0.0 for r in run.other_probes if measured.begin_s < _first_token_s(r) <= measured.end_s
    ]
    known = summary.requests.ok + len(beside_s)
    late_s = (
        summary.requests.ok * summary.ttft_s.mean + sum(beside_s)
    ) / known - measured.ttft_sum_s / measured.prompts
    # Requests in only one of the two means cause scatter; a latency's standard deviation is about a quarter of p95.
    others = max(measured.prompts - known, 1.0) / measured.prompts
    error_s = summary.ttft_s.p95 / 4 * math.sqrt(2 * others / known)
    return DelaySample(measured.prompts / measured.seconds, late_s, known, error_s)


def _first_token_s(record: RequestRecord) -> float:
    """Return when the first token arrived; infinity if none did."""
    return record.events.at_ns[0] * 1e-9 if record.events else math.inf
