"""The dashboard "Kneewatch / Target": one server, in the order in which an engineer on call asks.

In: the configuration. Out: the dashboard's JSON text. Every query filters by $target and, where a
workload matters, $workload; instances of Kneewatch that watch the same server are merged.
"""

from alerts import sli
from alerts.windows import duration
from dashboards import panels
from dashboards.panels import GREEN, RED, YELLOW, Placed, Query, Row
from exporters import names
from exporters.names import Series
from probe.config import Config

UID = "kneewatch-target"
TITLE = "Kneewatch / Target"

_TARGET = 'target="$target"'
_WORKLOAD = f'{_TARGET},workload=~"$workload"'
_CANARY = f'{_WORKLOAD},traffic="canary"'
_RATE = "$__rate_interval"


def target_dashboard(config: Config) -> str:
    """The dashboard as JSON text; it depends on the configuration only by how often canaries run."""
    # Four canaries a point at least: Grafana makes $__rate_interval four of these.
    canary_step = duration(max(target.canary.every for target in config.targets))
    tasks, requests = names.TASK_INTERVAL.name, names.REQUESTS.name
    return panels.dashboard(
        TITLE,
        UID,
        "One model server: what users see, why, how much more it takes, and whether to believe it.",
        [
            panels.variable("target", "Target", f"label_values({tasks}, target)"),
            panels.variable("workload", "Workload", f"label_values({requests}{{{_TARGET}}}, workload)", every=True),
        ],
        [
            Row("Is it slow or broken, for users?", _users(canary_step)),
            Row("Why?", _causes(canary_step)),
            Row("How much more can it take?", _capacity()),
            Row("Can I trust it?", _trust(canary_step)),
        ],
    )


def _quantile(q: float, histogram: Series, selector: str) -> str:
    return f"histogram_quantile({q}, sum by (le) (rate({histogram.bucket}{{{selector}}}[{_RATE}])))"


def _p50_p95(histogram: Series, selector: str, who: str = "") -> list[Query]:
    return [Query(_quantile(q, histogram, selector), f"{who}p{q * 100:.0f}") for q in (0.5, 0.95)]


def _limit(objective: str) -> Query:
    expr = f'max({names.OBJECTIVE_SECONDS.name}{{{_TARGET},objective="{objective}"}})'
    return Query(expr, "objective")


def _age(series: Series, selector: str, by: str = "") -> str:
    return f"time() - max{f' by ({by})' if by else ''} ({series.name}{{{selector}}} > 0)"


def _users(step: str) -> list[Placed]:
    ratio = f"max by (objective) ({names.OBJECTIVE_RATIO.name}{{{_TARGET}}})"
    burn = [
        Query(
            f"max({one.error_ratio('1h', _WORKLOAD)})\n"
            f'/ (1 - max({names.OBJECTIVE_RATIO.name}{{{_TARGET},objective="{one.objective}"}}))',
            one.objective,
        )
        for one in sli.ALL
    ]
    good = [Query(f"min({one.good_ratio('15m', _WORKLOAD)})", one.objective) for one in sli.ALL]
    return [
        panels.stat(
            "Last canary",
            "Up: the last canary got every token it asked for. A server may answer /health and still fail here.",
            unit="none",
            queries=[Query(f"max({names.TARGET_UP.name}{{{_TARGET}}})", "up")],
            steps=[(None, RED), (1, GREEN)],
            texts={"0": ("DOWN", RED), "1": ("up", GREEN)},
        ),
        panels.stat(
            "Time since last success",
            "Good: not much more than the time between two canaries. No data: none has succeeded since the start.",
            unit="s",
            queries=[Query(_age(names.LAST_SUCCESS, _CANARY), "age")],
            steps=[(None, GREEN), (60, YELLOW), (300, RED)],
            no_value="never",
        ),
        panels.stat(
            "Burn rate, last hour",
            "How many times faster than allowed the error budget is spent. Good: below 1. At 14.4 someone is paged.",
            unit="short",
            queries=burn,
            steps=[(None, GREEN), (1, YELLOW), (6, RED)],
            width=8,
        ),
        panels.timeseries(
            "Canaries by outcome",
            "How canaries ended. Good: only ok. unreachable and timeout are a dead or a stuck server, rejected a full"
            " one, wrong_answer a broken one. aborted ones were ours to stop, and count for nobody.",
            unit="reqps",
            queries=[Query(f"sum by (outcome) (rate({names.REQUESTS.name}{{{_CANARY}}}[{_RATE}])) > 0", "{{outcome}}")],
            stacked=True,
            min_interval=step,
        ),
        panels.timeseries(
            "Good requests against the objective",
            "Share of canaries, over 15 minutes, that met each objective. Good: above the dashed line of the same name."
            " Latency objectives judge the requests that succeeded.",
            unit="percentunit",
            queries=[*good, Query(ratio, "objective {{objective}}")],
            width=12,
            maximum=1,
        ),
        panels.timeseries(
            "TTFT",
            "Time to the first token, from the scheduled send. Good: p95 below the dashed objective. Rising alone, with"
            " TPOT flat, means queueing or long prompts.",
            unit="s",
            queries=[*_p50_p95(names.TTFT, _CANARY), _limit("ttft")],
            width=12,
            min_interval=step,
        ),
        panels.timeseries(
            "TPOT",
            "Mean time per output token after the first. Good: p95 below the dashed objective. Rising with the number"
            " of running requests is batching; rising without is the GPU.",
            unit="s",
            queries=[*_p50_p95(names.TPOT, _CANARY), _limit("tpot")],
            min_interval=step,
        ),
        panels.timeseries(
            "ITL",
            "Gap between successive token events. Good: p95 near p50. A high p95 with a low p50 is a stream that"
            " stalls: preemption, or other requests' prompts.",
            unit="s",
            queries=_p50_p95(names.ITL, _CANARY),
            min_interval=step,
        ),
        panels.timeseries(
            "E2E",
            "From the scheduled send to the last token. Good: flat. It is TTFT plus TPOT times the output tokens.",
            unit="s",
            queries=_p50_p95(names.E2E, _CANARY),
            min_interval=step,
        ),
    ]


def _causes(step: str) -> list[Placed]:
    waiting = f"{names.SERVER_WAITING.name}{{{_TARGET}}}"
    return [
        panels.timeseries(
            "Requests in the server",
            "Running is the batch; waiting is the queue. Good: nothing waits for long. Waiting that stays above zero"
            " means more load than the server takes.",
            unit="short",
            queries=[
                Query(f"max({names.SERVER_RUNNING.name}{{{_TARGET}}})", "running"),
                Query(f"max by (reason) ({waiting})", "waiting {{reason}}"),
            ],
        ),
        panels.timeseries(
            "KV cache in use",
            "Share of the KV cache in use. Full is good use of memory as long as nothing waits and nothing is"
            " preempted.",
            unit="percentunit",
            queries=[Query(f"max({names.SERVER_KV.name}{{{_TARGET}}})", "KV cache")],
            maximum=1,
        ),
        panels.timeseries(
            "Preemptions",
            "Requests pushed out of the KV cache and computed again. Good: zero. Above, users see streams that stall.",
            unit="ops",
            queries=[Query(f"max(rate({names.SERVER_PREEMPTIONS.name}{{{_TARGET}}}[{_RATE}]))", "preemptions")],
        ),
        panels.timeseries(
            "TTFT, server and client",
            "All users' TTFT as the server measures it, beside the canary's. Good: close together. The client alone"
            " high: network, proxy or frontend. The server alone high: users send longer prompts than the canary.",
            unit="s",
            queries=[*_p50_p95(names.SERVER_TTFT, _TARGET, "server "), *_p50_p95(names.TTFT, _CANARY, "canary ")],
            width=12,
            min_interval=step,
        ),
        panels.timeseries(
            "ITL, server and client",
            "All users' gap between tokens as the server measures it, beside the canary's. Good: close together. Many"
            " servers' histograms begin at 10 ms, below which the server's lines say little.",
            unit="s",
            queries=[*_p50_p95(names.SERVER_ITL, _TARGET, "server "), *_p50_p95(names.ITL, _CANARY, "canary ")],
            width=12,
            min_interval=step,
        ),
    ]


def _bound(series: Series, bound: str) -> str:
    value = f"max by (mode, model, workload) ({series.name}{{{_WORKLOAD}}})"
    return f'label_replace({value}, "bound", "{bound}", "", "")'


def _capacity() -> list[Placed]:
    bounds = (
        (names.CAPACITY_RPS, "capacity"),
        (names.CAPACITY_RPS_LOWER, "lower bound"),
        (names.CAPACITY_RPS_UPPER, "upper bound"),
        (names.KNEE_BASELINE, "baseline"),
    )
    knee = f"max by (mode, model, workload) ({names.KNEE_CONCURRENCY.name}{{{_WORKLOAD}}})"
    runs = f"sum by (outcome) (increase({names.CAPACITY_RUNS.name}{{{_TARGET}}}[1d]))"
    trips = f"sum by (reason) (increase({names.GUARD_TRIPS.name}{{{_TARGET}}}[1d]))"
    refusals = f"sum by (reason) (increase({names.CAPACITY_REFUSALS.name}{{{_TARGET}}}[1d]))"
    over = f"sum(increase({names.OVER_OBJECTIVE.name}{{{_TARGET}}}[1d]))"
    return [
        panels.timeseries(
            "Capacity",
            "Requests per second that the server takes within every objective, with bounds. Good: at its baseline."
            " Without an upper bound no load broke an objective: the server takes at least this much.",
            unit="reqps",
            queries=[Query("\nor ".join(_bound(s, bound) for s, bound in bounds), "{{bound}} {{mode}} {{workload}}")],
            width=12,
        ),
        panels.timeseries(
            "Knee",
            "Requests in flight at the knee, where the steps were of a closed loop; no data where they were rates."
            " Good: as last week, and well above what runs by day.",
            unit="short",
            queries=[Query(knee, "{{mode}} {{workload}}")],
            width=12,
        ),
        panels.stat(
            "Age of the measurement",
            "How long ago capacity was last measured. Good: younger than the schedule's period. No data: never.",
            unit="s",
            queries=[Query(_age(names.CAPACITY_LAST_SUCCESS, _WORKLOAD, "mode"), "{{mode}}")],
            steps=[(None, GREEN), (2 * 86400, YELLOW), (8 * 86400, RED)],
            no_value="never",
        ),
        panels.stat(
            "Over objective by our load, 1 day",
            "Seconds in which our own step-up load had requests over an objective: what measuring cost. Good: below the"
            " budget of a run.",
            unit="s",
            queries=[Query(over, "over objective")],
            steps=[(None, GREEN), (20, YELLOW), (120, RED)],
        ),
        panels.timeseries(
            "Runs and guard trips, 1 day",
            "Capacity runs of the last day by how they ended, why the guard stopped our load, and why a run was not"
            " allowed to begin. Good: runs that are done; a guard trip now and then is the guard at work.",
            unit="short",
            queries=[
                Query(f"{runs} or on() vector(0)", "runs {{outcome}}"),
                Query(f"{trips} or on() vector(0)", "guard {{reason}}"),
                Query(f"{refusals} > 0 or on() vector(0)", "refused {{reason}}"),
            ],
            width=16,
        ),
    ]


def _trust(step: str) -> list[Placed]:
    failures = f"sum by (task) (rate({names.TASK_FAILURES.name}{{{_TARGET}}}[{_RATE}]))"
    unread = f"sum(rate({names.SERVER_SCRAPE_ERRORS.name}{{{_TARGET}}}[{_RATE}]))"
    ours = f"sum by (traffic) (rate({names.TOKENS.name}{{{_TARGET}}}[{_RATE}]))"
    theirs = [
        f"max(rate({s.name}{{{_TARGET}}}[{_RATE}]))"
        for s in (names.SERVER_PROMPT_TOKENS, names.SERVER_GENERATION_TOKENS)
    ]
    return [
        panels.timeseries(
            "Time since each task ran",
            "Our own heartbeat. Good: a saw tooth no higher than twice the task's interval. A line that climbs is a"
            " task that hangs, and its numbers above are old.",
            unit="s",
            queries=[Query(_age(names.TASK_LAST_SUCCESS, _TARGET, "task"), "{{task}}")],
        ),
        panels.timeseries(
            "Schedule lag",
            "From our turning to a request to its being sent. Good: p95 under 10 ms. This lag is inside the latencies;"
            " how late we turn to requests is the event loop's lag.",
            unit="s",
            queries=_p50_p95(names.SCHEDULE_LAG, _WORKLOAD),
            min_interval=step,
        ),
        panels.timeseries(
            "Event loop lag",
            "How late the monitor itself woke, for all targets. Good: p95 under 10 ms. More means that the monitor"
            " lacks CPU, and that its latencies read too high.",
            unit="s",
            queries=_p50_p95(names.LOOP_LAG, ""),
        ),
        panels.timeseries(
            "Errors of the monitor",
            "Reads of the server's metrics that failed, and tasks that failed, were late or were skipped. Good: zero.",
            unit="ops",
            queries=[
                Query(f"{unread} or on() vector(0)", "scrape errors"),
                Query(f"{failures} or on() vector(0)", "task {{task}}"),
            ],
            width=12,
        ),
        panels.timeseries(
            "Our tokens beside the server's",
            "Prompt and output tokens per second of our own requests, beside all that the server worked on. Good: a"
            " small share, outside capacity runs.",
            unit="short",
            queries=[Query(ours, "ours {{traffic}}"), Query(" + ".join(theirs), "server")],
            width=12,
            min_interval=step,
        ),
    ]
