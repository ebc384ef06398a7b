"""Why a capacity run was refused, stopped or not judged: one row for each reason. Pure.

Everything that lists reasons derives from the tuples at the end of this file: the texts of results, the labels of
series, and the tables of docs/guard.md. A new reason is a row here, its name in one of these tuples, and the check that
finds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from probe.core.result import Stopped

# Fewer answered requests than this say nothing about a 95th percentile: one of 20 is the 95th.
MIN_REQUESTS = 20


class ReasonKind(StrEnum):
    """What a reason says of the server and of the run's measurements."""

    FAILURE = "failure"  # probe requests failed
    BLIND = "blind"  # the guard cannot see the server
    VOID = "void"  # the measurements are not of one server that users get: no capacity is published
    OVERLOAD = "overload"  # too much load; a search survives it
    PRECAUTION = "precaution"  # an overload that has not broken any objective yet
    UNLOADED = "unloaded"  # the server misses an objective without load, so less load would not help
    TRAFFIC = "traffic"  # users changed, which says nothing of the server; a search goes on from the users of now
    REFUSAL = "refusal"
    BUDGET = "budget"
    ERROR = "error"  # a fault of the load generator, never of the server
    UNJUDGED = "unjudged"  # a step shows too little of the server
    END = "end"  # what kind of thing ended a run, where the reason is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason: its word in results and series, and what people are told.

    `why` and `advice` are clauses without a full stop. `condition` says in Markdown when exactly it applies, for
    docs/guard.md; "" where `why` says it all. `unseen`: what the guard does not see by the run's own answers alone; ""
    where these show it. `verdict`: the label of a step's series.
    """

    word: str
    kind: ReasonKind
    why: str
    advice: str
    condition: str = ""
    unseen: str = ""
    verdict: str = ""

    @property
    def is_overload(self) -> bool:
        """Return whether less load would help: a search then goes on with less."""
        return self.kind in (ReasonKind.OVERLOAD, ReasonKind.PRECAUTION)

    @property
    def explained(self) -> str:
        """Return what happened, with the word."""
        return f"{self.why} ({self.word})"


# Trips: why the guard stops load.

SERVER_ERRORS = Reason(
    word="server_errors",
    kind=ReasonKind.FAILURE,
    why="requests got HTTP 5xx, no connection, or no answer in time",
    advice="look at the server's log for the first failure, and measure again once it answers",
    condition="a probe request got 5xx, no connection, or no answer within Kneewatch's time limit (`capacity.timeout`)",
)
TIME_LIMIT = Reason(
    word="time_limit",
    kind=ReasonKind.FAILURE,
    why="an answer was still arriving at Kneewatch's time limit",
    advice="raise --timeout (capacity.timeout in a configuration), or ask for shorter answers",
    condition="an answer was still arriving at Kneewatch's time limit (`capacity.timeout`)",
)
RATE_LIMITED = Reason(
    word="rate_limited",
    kind=ReasonKind.FAILURE,
    why="requests were refused with HTTP 429, which is a rate limit or a full queue, and no knee",
    advice="raise the limit for Kneewatch's key, or measure behind the gateway",
    condition="a probe request got 429, and not the words of an engine that has too much to do",
)
FAILED_REQUESTS = Reason(
    word="failed_requests",
    kind=ReasonKind.FAILURE,
    why="requests were refused or answered wrongly",
    advice="change what the first failure names: the workload, model or request keys of the target, or its API key",
    condition="another failure: an incomplete stream, a wrong answer, an answer of another model, a bad request;"
    " `Failure` (in JSON `first_failure`) has the words of the first one",
)
SERVER_UNREADABLE = Reason(
    word="server_unreadable",
    kind=ReasonKind.BLIND,
    why="the metrics page failed twice in a row, so the guard could not see the server",
    advice="make the page at metrics_url (--metrics-url) answer, or guard by the run's own answers alone with"
    " --stream-guard (capacity.guard: stream)",
    condition="two scrapes in a row failed, or did not report how many requests wait",
    unseen="a metrics page that fails",
)
OTHER_SERVER = Reason(
    word="other_server",
    kind=ReasonKind.VOID,
    why="the metrics page counted none of the run's requests, so it is another server's and guards nothing",
    advice="set metrics_url to the page of the server at base_url, then measure again",
    condition="of 20 or more probe requests that were answered at least five seconds before, the metrics page has"
    " counted less than one in twenty",
    unseen="other servers",
)
SERVER_RESTARTED = Reason(
    word="server_restarted",
    kind=ReasonKind.VOID,
    why="the server restarted during the run, so its data are of two servers",
    advice="measure again when the rollout is over; after a crash, read the server's log first",
    condition="a counter of the server fell, or its version changed: a rollout or a crash",
    unseen="restarts",
)
SEVERAL_SERVERS = Reason(
    word="several_servers",
    kind=ReasonKind.VOID,
    why="several servers answer at this address, and not all of their metrics pages are read, so the guard is blind",
    advice="give the metrics page of each server (metrics_urls, or --metrics-url for each), or measure each server at"
    " its own address",
    condition="after another process had answered, the first one answered again; or of 20 or more probe requests that"
    " were answered at least five seconds before, the metrics page has counted less than three in four; of more than"
    " 20 for each of n pages in [`metrics_urls`](engines.md#several-replicas-behind-one-address), less than n + 1/2 in"
    " n + 1. Also ends a search without a guard, which learns from the page. A balancer by connection that sends the"
    " scrapes, and most of the requests, to the same server is not noticed",
    unseen="other servers",
)
REPLICAS_CHANGED = Reason(
    word="replicas_changed",
    kind=ReasonKind.VOID,
    why="a replica behind the address came or went during the run, so its data are of two servers",
    advice="measure while the number of replicas does not change",
    condition="a replica that [`metrics_discovery`](engines.md#replicas-that-come-and-go) finds came or went; with or"
    " without a guard",
    unseen="other servers",
)
ASLEEP = Reason(
    word="asleep",
    kind=ReasonKind.VOID,
    why="the server fell asleep",
    advice="wake it up, then measure again",
    condition="the server fell asleep, or was paused by `/sleep`",
    unseen="sleep",
)
PREEMPTIONS = Reason(
    word="preemptions",
    kind=ReasonKind.PRECAUTION,
    why="the KV cache is the limit",
    advice="the KV cache is too small for more load: raise --gpu-memory-utilization, lower --max-num-seqs, or add a"
    " replica",
    condition="three requests were preempted from the KV cache since the load began",
    unseen="preemptions",
)
QUEUE = Reason(
    word="queue",
    kind=ReasonKind.PRECAUTION,
    why="the server does not keep up",
    advice="requests queue above this load: raise --max-num-seqs if KV cache is free, or add a replica",
    condition="in three scrapes in a row more than 4 requests waited; in an open loop, more than arrive within the"
    " TTFT objective, where that is more",
    unseen="the queue",
)
KV_CACHE = Reason(
    word="kv_cache",
    kind=ReasonKind.PRECAUTION,
    why="preemptions are about to start",
    advice="the KV cache is too small for more load: raise --gpu-memory-utilization, shorten the context, or add a"
    " replica",
    condition="the KV cache was above 95 % in two of the last five scrapes",
    unseen="the KV cache",
)
REJECTIONS = Reason(
    word="rejections",
    kind=ReasonKind.OVERLOAD,
    why="the server refuses requests, as its queue limit is reached",
    advice="raise the queue limit (vLLM: --max-num-queued-reqs, --max-num-queued-tokens) if requests may wait longer,"
    " or add a replica",
    condition="the server refused a probe request for having too much to do"
    " ([which answers](engines.md#refused-or-broken)); or, since the load began, its metrics page counted a request"
    " that it refused to queue, a user's or one that got 503 or 429",
    unseen="rejected users",
)
NO_FIRST_TOKEN = Reason(
    word="no_first_token",
    kind=ReasonKind.OVERLOAD,
    why="the server hangs, or its queue is long",
    advice="requests queue above this load: raise --max-num-seqs if KV cache is free, or add a replica",
    condition="three probe requests have waited for their first token for more than twice the TTFT objective, or one"
    " for more than four times it and two seconds (the first request of a run may take as long as a canary)",
)
USERS_LATENCY = Reason(
    word="users_latency",
    kind=ReasonKind.PRECAUTION,
    why="users wait; probe requests wait in the same queue",
    advice="user requests slowed down first: plan for less than this load, or add a replica",
    condition="over the last six scrapes, by the server's own histograms, which do not say whose requests were slow:"
    " three or more first tokens, more than the objective lets miss it and more than twice the share since the server"
    " started, came after more than twice the TTFT objective (the next bucket bound above); or the mean gap between"
    " tokens, of 20 or more, was over twice the TPOT objective (the ITL objective where there is none for TPOT)",
    unseen="users",
)
SLOW_ANSWERS = Reason(
    word="slow_answers",
    kind=ReasonKind.OVERLOAD,
    why="the server does not keep up",
    advice="answers take more than twice an objective at this load: plan for less, or add a replica",
    condition="only [without a metrics page](#without-a-metrics-page): five of the last ten answers of a step took"
    " more than twice an objective: TTFT, TPOT, E2E, or their longest gap (ITL)",
)
SLOW_UNLOADED = Reason(
    word="slow_unloaded",
    kind=ReasonKind.UNLOADED,
    why="without load the median already misses an objective",
    advice="loosen the objective, shorten the workload, or make the server faster",
    condition="only [without a metrics page](#without-a-metrics-page), before any load: the median of five requests"
    " sent one at a time missed an objective, or one of them waited for its first token as for `no_first_token`",
)
IN_FLIGHT_CAP = Reason(
    word="in_flight_cap",
    kind=ReasonKind.OVERLOAD,
    why="the server does not keep up",
    advice="requests arrive faster than they are answered: add a replica",
    condition="an open loop reached its limit of requests in flight, over all workers",
)
OBJECTIVE_BROKEN = Reason(
    word="objective_broken",
    kind=ReasonKind.OVERLOAD,
    why="this load is too much; the rest of the step would only do harm",
    advice="this load breaks an objective: plan for less, or add a replica",
    condition="in a step of a search: so many requests were late or slow that the step misses its objective whatever"
    " follows (the allowed share of all planned requests, plus two standard deviations)",
)

USERS_CHANGED = Reason(
    word="users_changed",
    kind=ReasonKind.TRAFFIC,
    why="users sent much more, or less, than when the run began, so its loads are of different traffic",
    advice="measure at an hour when user traffic is steadier",
    condition="only in a search. Users brought a step's load to 1.65 times the highest load that held, over five"
    " seconds or more, and chance does not explain it by their rate before (three standard deviations and two"
    " requests): the step ends at the next scrape after their first tokens, and the next one allows for them. Or their"
    " rate has changed since the run began, by more than 8 % of the capacity and than chance explains, or bursts of the"
    " last minute leave no room for a step: the run ends, with a forecast at best",
    unseen="users who come or go",
)

# Refusals: why a scheduled run does not begin.

LOCKED = Reason(
    word="locked",
    kind=ReasonKind.REFUSAL,
    why="another Kneewatch is loading the server; the message names the process on this machine, or the holder of the"
    " Lease, where it is known",
    advice="wait, or let only one instance probe",
)
NO_LOCK = Reason(
    word="no_lock",
    kind=ReasonKind.REFUSAL,
    why="the lock file cannot be created or is not a regular file; or the API server, or a missing Role, refuses the"
    " Lease",
    advice="set lock_dir; the Role is in deploy/kustomize/discovery",
)
OUTSIDE_WINDOW = Reason(
    word="outside_window",
    kind=ReasonKind.REFUSAL,
    why="no window of schedule.windows is open, or it closes before a first step could end",
    advice="move schedule.cron into a window",
)
LATE = Reason(
    word="late",
    kind=ReasonKind.REFUSAL,
    why="the run could not begin within schedule.grace of its time: other runs went on, or this machine was suspended",
    advice="spread the times (schedule.cron, schedule.windows), shorten budget.seconds, or raise capacity_runs_at_once",
)
BUDGET_SPENT = Reason(
    word="budget_spent",
    kind=ReasonKind.REFUSAL,
    why="less than a quarter of tokens_per_run is left of tokens_per_day, or the tokens spent are unknown because the"
    " store cannot be read",
    advice="run less often, or raise tokens_per_day",
)
CANARY_FAILED = Reason(
    word="canary_failed",
    kind=ReasonKind.REFUSAL,
    why="the last canary did not succeed, or none has ended yet",
    advice="see the canary's outcome on the status page",
)
NO_SERVER_METRICS = Reason(
    word="no_server_metrics",
    kind=ReasonKind.REFUSAL,
    why="the server's metrics cannot be read, or do not report how many requests wait",
    advice="set metrics_url (--metrics-url) to its page; without one, --stream-guard (capacity.guard: stream) guards"
    " by the run's own answers, and --no-guard not at all",
    condition="the server's metrics cannot be read"
    " ([KneewatchServerMetricsUnreadable](runbooks/KneewatchServerMetricsUnreadable.md)), or do not report how many"
    " requests wait",
)
REFUSED_ASLEEP = Reason(
    word="asleep",
    kind=ReasonKind.REFUSAL,
    why="the server's metrics show it asleep",
    advice="run while it is awake",
    condition="the server's metrics show it [asleep](operations.md#servers-that-sleep)",
)
BUSY = Reason(
    word="busy",
    kind=ReasonKind.REFUSAL,
    why="requests wait in the server's queue, or its KV cache is more than 95 % full",
    advice="retry when the server is idle, or use --no-guard if it has no other users",
)
NO_PROMETHEUS = Reason(
    word="no_prometheus",
    kind=ReasonKind.REFUSAL,
    why="Prometheus is configured and does not answer",
    advice="fix it, or remove prometheus from the configuration",
)
ALERT_FIRING = Reason(
    word="alert_firing",
    kind=ReasonKind.REFUSAL,
    why="an alert with severity page fires for the target",
    advice="follow its runbook",
)
REFUSED_SEVERAL_SERVERS = Reason(
    word="several_servers",
    kind=ReasonKind.REFUSAL,
    why="within the last ten minutes several servers answered at the address",
    advice="give the page of each server (metrics_urls or metrics_discovery), or discover them",
    condition="within the last ten minutes several servers answered at the address ([cross-checks.md](cross-checks.md))"
    "; pages: [several replicas](engines.md#several-replicas-behind-one-address), or [discovery](discovery.md)",
)
ROLLOUT = Reason(
    word="rollout",
    kind=ReasonKind.REFUSAL,
    why="within the last five minutes a counter of the server fell, or its version changed; or discovery reports pods"
    " of two revisions, endpoints of a Service that come or go, or a server that is not ready",
    advice="nothing: the next run starts when the rollout is over",
)
BURN_RATE = Reason(
    word="burn_rate",
    kind=ReasonKind.REFUSAL,
    why="the canaries of the last hour spent an error budget faster than its objective allows, with at least three bad"
    " ones",
    advice="find out what is slow first",
)
LIVE_LOAD = Reason(
    word="live_load",
    kind=ReasonKind.REFUSAL,
    why="over the last five minutes, users' requests or output tokens were more than 60 % of the last known capacity"
    " (probe traffic excluded). Not checked where that capacity has no upper bound, or where user traffic is unknown:"
    " in the first seconds, or with several servers at one address",
    advice="choose a quieter hour",
)
NO_USER_LENGTHS = Reason(
    word="no_user_lengths",
    kind=ReasonKind.REFUSAL,
    why="capacity.workload is users, and the server's metrics show the lengths of fewer than 200 requests of users"
    " in the last day, or none",
    advice="wait for users, or choose another workload",
)

# Budgets: what a run may cost.

TOKENS_PER_RUN = Reason(
    word="tokens_per_run",
    kind=ReasonKind.BUDGET,
    why="the run's tokens were spent",
    advice="raise --max-tokens, or budget.tokens_per_run in the configuration",
)
TOKENS_PER_DAY = Reason(
    word="tokens_per_day",
    kind=ReasonKind.BUDGET,
    why="the tokens of the day were spent",
    advice="raise tokens_per_day, or measure less often",
)
SECONDS = Reason(
    word="seconds",
    kind=ReasonKind.BUDGET,
    why="the run's time was spent",
    advice="raise --max-seconds, or budget.seconds in the configuration",
)
# The only budget that means a slow server rather than a long run.
OVER_OBJECTIVE_SECONDS = Reason(
    word="over_objective_seconds",
    kind=ReasonKind.BUDGET,
    why="requests were over an objective for as long as the budget allows",
    advice="measure less load, or raise budget.over_objective_seconds in the configuration",
)
WINDOW = Reason(
    word="window",
    kind=ReasonKind.BUDGET,
    why="the window of the schedule closed",
    advice="let the run begin earlier, or make it shorter",
)

# Errors of the load generator, and steps that are not judged. A lost worker is both.

WORKER_LOST = Reason(
    word="worker_lost",
    kind=ReasonKind.ERROR,
    why="a load worker died, or did not run for seconds, in a step",
    advice="look in this machine's log for a kill for memory or a stop",
    condition="a load worker died, or was silent for 2.5 s",
    verdict="lost",
)
CLIENT_LATE = Reason(
    word="client_late",
    kind=ReasonKind.ERROR,
    why="requests were reported too late for the guard",
    advice="use a quieter machine or, with Ray, dedicated nodes",
    condition="reports of the workers on their requests arrived more than 0.5 s late, for more than two seconds."
    " Meanwhile `no_first_token` is not checked, as the answers may have arrived"
    " ([Ray](integrations.md#load-from-a-ray-cluster))",
)
HELPER_ERROR = Reason(
    word="HelperError",
    kind=ReasonKind.ERROR,
    why="the process in which a search computes was killed, or took five minutes",
    advice="look in this machine's log for a kill for memory",
)
TOO_FEW = Reason(
    word="too_few_requests",
    kind=ReasonKind.UNJUDGED,
    why=f"fewer than {MIN_REQUESTS} requests were answered in a step",
    advice="give it more time or requests",
    verdict="too_few",
)
CLIENT_BOUND = Reason(
    word="client_bound",
    kind=ReasonKind.UNJUDGED,
    why="this machine was too late to judge a step",
    advice="use a quieter machine, more --workers or a looser objective",
    verdict="client_bound",
)
HELD_BACK = Reason(
    word="held_back",
    kind=ReasonKind.UNJUDGED,
    why="most answers do not show when their tokens came, so TPOT and ITL cannot be judged",
    advice="let the proxy pass streams on (nginx: proxy_buffering off) and the running usage with them, measure behind"
    " it, or remove the tpot and itl objectives",
    verdict="held_back",
)
CUT_SHORT = Reason(
    word="cut_short",
    kind=ReasonKind.UNJUDGED,
    why="guard, budget or caller ended a step early",
    advice="see what ended the run",
    verdict="cut_short",
)

# What kind of thing ended a run: `Stopped.by`.

ENDED_BY_PLAN = Reason(
    word="done",
    kind=ReasonKind.END,
    why="no step was complete",
    advice="measure steps of your choice with --concurrency or --rates",
)
ENDED_BY_GUARD = Reason(
    word="guard",
    kind=ReasonKind.END,
    why="the guard ended the run",
    advice="retry when the server is idle, or measure less load",
)
ENDED_BY_BUDGET = Reason(
    word="budget",
    kind=ReasonKind.END,
    why="the budget ran out",
    advice="raise the budget that ran out: --max-seconds, --max-tokens, or budget in the configuration",
)
ENDED_BY_INTERRUPT = Reason(
    word="interrupt",
    kind=ReasonKind.END,
    why="the run was interrupted",
    advice="let the next one finish",
)
ENDED_BY_ERROR = Reason(
    word="error",
    kind=ReasonKind.END,
    why="an error ended the run",
    advice="run kneewatch check to see whether the server answers, then measure again",
)

TRIPS = (
    SERVER_ERRORS, TIME_LIMIT, RATE_LIMITED, FAILED_REQUESTS, SERVER_UNREADABLE, OTHER_SERVER, SERVER_RESTARTED,
    SEVERAL_SERVERS, REPLICAS_CHANGED, ASLEEP, REJECTIONS, PREEMPTIONS, QUEUE, KV_CACHE, NO_FIRST_TOKEN, USERS_LATENCY,
    SLOW_ANSWERS, SLOW_UNLOADED, IN_FLIGHT_CAP, OBJECTIVE_BROKEN, USERS_CHANGED,
)  # fmt: skip
REFUSALS = (
    LOCKED, NO_LOCK, OUTSIDE_WINDOW, LATE, BUDGET_SPENT, CANARY_FAILED, NO_SERVER_METRICS, REFUSED_ASLEEP, BUSY,
    NO_PROMETHEUS, ALERT_FIRING, REFUSED_SEVERAL_SERVERS, ROLLOUT, BURN_RATE, LIVE_LOAD, NO_USER_LENGTHS,
)  # fmt: skip
BUDGETS = (TOKENS_PER_RUN, TOKENS_PER_DAY, SECONDS, OVER_OBJECTIVE_SECONDS, WINDOW)
ERRORS = (WORKER_LOST, CLIENT_LATE, HELPER_ERROR)
UNJUDGED = (CLIENT_BOUND, TOO_FEW, HELD_BACK, CUT_SHORT, WORKER_LOST)
ENDS = (ENDED_BY_PLAN, ENDED_BY_GUARD, ENDED_BY_BUDGET, ENDED_BY_INTERRUPT, ENDED_BY_ERROR)

_OF_END = {ENDED_BY_GUARD.word: TRIPS, ENDED_BY_BUDGET.word: BUDGETS, ENDED_BY_ERROR.word: ERRORS}


def find(rows: Sequence[Reason], word: str | None) -> Reason | None:
    """Return the row with this word, or None."""
    return next((row for row in rows if row.word == word), None)


def find_end(stopped: Stopped) -> Reason:
    """Return why a run ended: the kind of its end where the reason is free text, or of another version."""
    return find(_OF_END.get(stopped.by, ()), stopped.reason) or find(ENDS, stopped.by) or ENDED_BY_PLAN


def is_overload(trip: str | None) -> bool:
    """Return whether the guard stopped load because it was too much."""
    return (row := find(TRIPS, trip)) is not None and row.is_overload


def ends_step(trip: str | None) -> bool:
    """Return whether the guard stopped a step that a search goes on after."""
    return is_overload(trip) or ((row := find(TRIPS, trip)) is not None and row.kind is ReasonKind.TRAFFIC)


def is_precaution(trip: str | None) -> bool:
    """Return whether the guard stopped load before it broke an objective."""
    return (row := find(TRIPS, trip)) is not None and row.kind is ReasonKind.PRECAUTION
