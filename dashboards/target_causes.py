"""Rows of the Target dashboard: why it is slow, by what the server says, and whether client and server agree."""

from dashboards import panels
from dashboards.pieces import GREEN, RED, YELLOW, PlacedPanel, Query
from dashboards.queries import CANARY, MODEL, TARGET, largest, mean, pace, percentiles, quantile
from exporters import names

_UNTOLD = "the server does not tell it"


def causes(step: str) -> list[PlacedPanel]:
    """Queue, prefill and decode; then what fills them."""
    waiting = f"{names.SERVER_WAITING.name}{{{TARGET}}}"
    return [*_phases(), *_load(waiting), *_cache(), *_engine(step)]


def _phases() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Where a request's time goes",
            "Mean seconds that requests waited in the queue, had their prompt read, and were generated for, as the"
            " server counts. Good: hardly any queue. More queue: add capacity; more prefill: longer prompts; more"
            " decode: larger batches, or a slower GPU.",
            unit="s",
            queries=[
                Query(mean(names.SERVER_QUEUE), "queue"),
                Query(mean(names.SERVER_PREFILL), "prefill"),
                Query(mean(names.SERVER_DECODE), "decode"),
            ],
            stacked=True,
            no_value=_UNTOLD,
        ),
        panels.timeseries(
            "Queue's share of the wait",
            "Queue over queue and prefill, the server's means of five minutes. Good: near 0. Near 1: add capacity."
            " Both are told when a request ends, so at the beginning of an overload look at waiting requests first.",
            unit="percentunit",
            queries=[Query(largest(names.QUEUE_SHARE), "queue's share")],
            maximum=1,
            no_value=_UNTOLD,
            alerts=["KneewatchQueueGrowth"],
        ),
        panels.timeseries(
            "Queue and prefill, the slow ones",
            "The 95th percentiles of the time in the queue and of reading the prompt. Good: the queue's below what TTFT"
            " allows. Many servers' histograms begin at 0.3 s, below which they say little.",
            unit="s",
            queries=[
                Query(quantile(0.95, names.SERVER_QUEUE), "queue p95"),
                Query(quantile(0.95, names.SERVER_PREFILL), "prefill p95"),
            ],
            no_value=_UNTOLD,
            alerts=["KneewatchQueueGrowth"],
        ),
    ]


def _load(waiting: str) -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Requests in the server",
            "Running is the batch; waiting is the queue. Good: nothing waits for long. Waiting that stays above zero"
            " means more load than the server takes.",
            unit="short",
            queries=[
                Query(largest(names.SERVER_RUNNING), "running"),
                Query(f"max by (reason) ({waiting})", "waiting {{reason}}"),
            ],
            no_value=_UNTOLD,
            alerts=["KneewatchQueueGrowth", "KneewatchEngineStalled"],
        ),
        panels.timeseries(
            "Batch",
            "Tokens that a step of the engine computes, prompts' and answers'. Good: high under load, for the GPU's"
            " sake; at the server's limit for long means prompts that hold up everybody's next token.",
            unit="short",
            queries=[
                Query(mean(names.SERVER_ITERATION_TOKENS), "mean"),
                Query(quantile(0.95, names.SERVER_ITERATION_TOKENS), "p95"),
            ],
            no_value=_UNTOLD,
        ),
        panels.timeseries(
            "Tokens of the server",
            "Prompt and output tokens per second of everybody. Good: it follows the number of requests. Requests"
            " without output tokens are an engine that stands still.",
            unit="short",
            queries=[
                Query(pace(names.SERVER_PROMPT_TOKENS), "prompt"),
                Query(pace(names.SERVER_GENERATION_TOKENS), "output"),
            ],
            no_value=_UNTOLD,
            alerts=["KneewatchEngineStalled"],
        ),
    ]


def _cache() -> list[PlacedPanel]:
    preempted = names.SERVER_PREEMPTIONS_PER_REQUEST
    hits, lookups = (
        f"max(rate({series.name}{{{TARGET}}}[$__rate_interval]))"
        for series in (names.SERVER_PREFIX_HITS, names.SERVER_PREFIX_QUERIES)
    )
    return [
        panels.timeseries(
            "KV cache in use",
            "Share of the KV cache in use, of the fullest engine. Full is good use of memory as long as nothing waits"
            " and nothing is preempted.",
            unit="percentunit",
            queries=[Query(largest(names.SERVER_KV), "KV cache")],
            maximum=1,
            no_value=_UNTOLD,
            alerts=["KneewatchKVCachePressure"],
        ),
        panels.states(
            "Signs of a KV cache that is too small",
            "Usage of 90 % or more, requests that wait for room, preemptions, rejections, each in the last minute. One"
            " alone may be good use of memory. Good: never two at a time.",
            queries=[Query(largest(names.KV_PRESSURE, by="sign"), "{{sign}}")],
            texts={"0": ("no", GREEN), "1": ("yes", YELLOW)},
            width=8,
            no_value=_UNTOLD,
            alerts=["KneewatchKVCachePressure", "KneewatchPreemptionStorm"],
        ),
        panels.timeseries(
            "Preemptions",
            "Requests pushed out of the KV cache and computed again: how often a request is, on the left, and how many"
            " are each second, on the right. Good: zero. Above, users see streams that stall.",
            unit="short",
            queries=[
                Query(mean(preempted), "per request"),
                Query(pace(names.SERVER_PREEMPTIONS), "per second", right=True),
            ],
            right_unit="ops",
            no_value=_UNTOLD,
            alerts=["KneewatchPreemptionStorm"],
        ),
        panels.timeseries(
            "Prefix hits",
            "Share of the prompt tokens looked up in the prefix cache that were there. Good: steady, at what your"
            " prompts share. A fall means longer prefills, and comes of evictions, restarts, or routing that scatters"
            " sessions.",
            unit="percentunit",
            queries=[Query(f"{hits} / ({lookups} > 0)", "hits")],
            maximum=1,
            no_value="nothing is looked up in a prefix cache",
            alerts=["KneewatchPrefixHitCollapse"],
        ),
    ]


def _engine(step: str) -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Stalled",
            "For how long an engine has had requests and generated nothing, whatever /health says. Good: zero. A long"
            " prompt read in one step looks like it, for as long as that takes.",
            unit="s",
            queries=[Query(largest(names.STALLED), "stalled")],
            min_step=step,
            no_value="nothing tells progress",
            alerts=["KneewatchEngineStalled"],
        ),
        panels.timeseries(
            "Rejections",
            "Requests that the server refused to queue, per second. Good: zero. Users get an error at once, which"
            " canaries may miss.",
            unit="reqps",
            queries=[Query(pace(names.SERVER_REJECTIONS), "rejected")],
            no_value="the server rejects nothing, or does not tell it",
            alerts=["KneewatchKVCachePressure"],
        ),
    ]


def agreement(step: str) -> list[PlacedPanel]:
    """The cross-checks, and whether the server's own page can be believed."""
    ours = f"sum by (traffic) (rate({names.TOKENS.name}{{{MODEL}}}[$__rate_interval]))"
    theirs = " + ".join(pace(series) for series in (names.SERVER_PROMPT_TOKENS, names.SERVER_GENERATION_TOKENS))
    return [
        panels.stat(
            "Server's metrics",
            "Whether the server's own metrics page was read at the last attempt. Good: read. Otherwise all that says"
            " server here is missing, and no capacity run may begin.",
            unit="none",
            queries=[Query(largest(names.SERVER_UP), "read")],
            steps=[(None, RED), (1, GREEN)],
            texts={"0": ("UNREADABLE", RED), "1": ("read", GREEN)},
            alerts=["KneewatchServerMetricsUnreadable"],
        ),
        panels.stat(
            "Servers at the address",
            "Whether readings come from one server. Several behind one address have mixed counters, of which nothing"
            " follows. Good: one. Otherwise give each a target of its own.",
            unit="none",
            queries=[Query(largest(names.AMBIGUOUS), "ambiguous")],
            steps=[(None, GREEN), (1, RED)],
            texts={"0": ("one", GREEN), "1": ("SEVERAL", RED)},
            no_value="not known",
        ),
        panels.stat(
            "Counted tokens",
            "Tokens by the server's counters over ours, of canaries that were alone on it. Good: 100 %. Anything else:"
            " the page is another server's, or of one replica of several.",
            unit="percentunit",
            queries=[Query(largest(names.COUNTED_TOKENS, by="kind"), "{{kind}}")],
            steps=[(None, RED), (0.98, GREEN), (1.02, RED)],
            width=6,
            no_value="no canary was alone on it",
        ),
        panels.stat(
            "Time since the server started",
            "Where its page says so. Good: since the last deploy. Counters begin anew with the server's process.",
            unit="s",
            queries=[Query(f"time() - {largest(names.SERVER_STARTED)}", "up for")],
            steps=[(None, YELLOW), (900, GREEN)],
            width=5,
            no_value="the server does not tell it",
        ),
        panels.stat(
            "Server",
            "What the server says it is. Good: the version that you deployed.",
            unit="none",
            queries=[Query(largest(names.SERVER_INFO, by="engine, version"), "{{engine}} {{version}}")],
            steps=[(None, GREEN)],
            width=5,
            names=True,
            no_value="not known",
        ),
        panels.timeseries(
            "TTFT, server and client",
            "All users' TTFT as the server measures it, beside the canary's. Good: close together. The client alone"
            " high: network, proxy or frontend. The server alone high: users send longer prompts than the canary.",
            unit="s",
            queries=[*percentiles(names.SERVER_TTFT, who="server "), *percentiles(names.TTFT, CANARY, "canary ")],
            min_step=step,
        ),
        panels.timeseries(
            "Network and gateway",
            "A canary's TTFT less the server's own: matched, of canaries that were alone on it; mean, of all, which"
            " holds the difference between their prompts too. Good: matched is a few milliseconds, and flat.",
            unit="s",
            queries=[Query(largest(names.TTFT_GAP, by="method"), "{{method}}")],
            minimum=None,
            no_value="no canary was alone on it",
        ),
        panels.timeseries(
            "Our tokens beside the server's",
            "Prompt and output tokens per second of our own requests, beside all that the server worked on. Good: a"
            " small share, outside capacity runs.",
            unit="short",
            queries=[Query(ours, "ours {{traffic}}"), Query(theirs, "server")],
            min_step=step,
        ),
    ]
