"""Panels on causes, by the server's own metrics: what the Target dashboard shows, and the rest for the Server one."""

from dashboards import panels
from dashboards.pieces import GREEN, YELLOW, PlacedPanel, Query
from dashboards.queries import CANARY, RATE, TARGET, largest, mean, pace, quantile
from exporters import names

_NOT_EXPORTED = "the server does not export it"


def causes() -> list[PlacedPanel]:
    """Return the panels that most often explain a slow server."""
    return [*_where(), *_kv_cache()]


def _where() -> list[PlacedPanel]:
    waiting = f"{names.SERVER['waiting_by_reason'].name}{{{TARGET}}}"
    return [
        panels.timeseries(
            "Where a request's time goes",
            "Mean seconds of queueing, prefill and decode, as the server measures them. Good: almost no queueing. More"
            " queueing: add capacity; more prefill: longer prompts; more decode: larger batches, or a slower GPU.",
            unit="s",
            queries=[
                Query(mean(names.SERVER["queue"]), "queue"),
                Query(mean(names.SERVER["prefill"]), "prefill"),
                Query(mean(names.SERVER["decode"]), "decode"),
            ],
            stacked=True,
            no_value=_NOT_EXPORTED,
        ),
        panels.timeseries(
            "Requests in the server",
            "Running is the batch; waiting is the queue. Good: no request waits for long. Waiting that stays above zero"
            " means more load than the server can serve.",
            unit="short",
            queries=[
                Query(largest(names.SERVER["running"]), "running"),
                Query(f"max by (reason) ({waiting})", "waiting {{reason}}"),
            ],
            no_value=_NOT_EXPORTED,
        ),
        panels.timeseries(
            "Stalled engine",
            "How long an engine has had requests without any progress, whatever /health says. Good: zero. A long"
            " prefill in one step looks the same while it lasts. With Kneewatch's plugin for vLLM also the age of the"
            " oldest request, and of the oldest without a token: a stuck one ends in no histogram.",
            unit="s",
            queries=[
                Query(largest(names.STALLED), "stalled"),
                Query(largest(names.SERVER["oldest_request"]), "oldest request"),
                Query(largest(names.SERVER["oldest_unanswered"]), "oldest without a token"),
            ],
            no_value="the server exports no sign of progress",
        ),
    ]


def _kv_cache() -> list[PlacedPanel]:
    hits, lookups = (
        f"max(rate({series.name}{{{TARGET}}}[{RATE}]))"
        for series in (names.SERVER["prefix_cache_hits"], names.SERVER["prefix_cache_queries"])
    )
    return [
        panels.timeseries(
            "KV cache in use",
            "Share of the KV cache in use, of the fullest engine. A full cache is good use of memory as long as no"
            " request is preempted or late.",
            unit="percentunit",
            queries=[Query(largest(names.SERVER["kv_cache_usage"]), "KV cache")],
            maximum=1,
            no_value=_NOT_EXPORTED,
        ),
        panels.timeseries(
            "Preemptions",
            "Requests pushed out of the KV cache and computed again: per request on the left, per second on the right."
            " Good: zero. Otherwise users see stalled streams.",
            unit="short",
            queries=[
                Query(mean(names.SERVER_PREEMPTIONS_PER_REQUEST), "per request"),
                Query(pace(names.SERVER["preemptions"]), "per second", is_on_right_axis=True),
            ],
            right_unit="ops",
            no_value=_NOT_EXPORTED,
        ),
        panels.timeseries(
            "Prefix hits",
            "Share of prompt tokens found in the prefix cache. Good: steady, at the share that your prompts have in"
            " common. A fall means longer prefills; its causes are evictions, restarts, or routing that scatters"
            " sessions.",
            unit="percentunit",
            queries=[Query(f"{hits} / ({lookups} > 0)", "hits")],
            maximum=1,
            no_value="no prefix cache lookups",
        ),
    ]


def causes_in_detail() -> list[PlacedPanel]:
    """Return the panels that tell more of queue, prefill, batch and KV cache, and of what the server refuses."""
    return [*_queue(), *_batch(), *_signs()]


def _queue() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Queue and prefill, p95",
            "95th percentiles of queue and prefill time; on the right the queue's share of both, by five-minute means."
            " Good: queue time well below the TTFT objective, the share near 0. Near 1: add capacity. Many servers'"
            " lowest bucket is 0.3 s; below it the lines say little. Both are counted when a request ends, so early in"
            " an overload watch the waiting requests.",
            unit="s",
            queries=[
                Query(quantile(0.95, names.SERVER["queue"]), "queue p95"),
                Query(quantile(0.95, names.SERVER["prefill"]), "prefill p95"),
                Query(largest(names.QUEUE_SHARE), "queue share", is_on_right_axis=True),
            ],
            right_unit="percentunit",
            no_value=_NOT_EXPORTED,
        ),
        panels.timeseries(
            "Slow, or long prompts?",
            "Mean wait for the first token (queue and prefill) of requests by the length of their prompts, with"
            " Kneewatch's plugin for vLLM; canaries, whose length is the same all the time; and on the right the 95th"
            " percentile of users' prompts. Good: flat lines. One that rises: the server is slower. Flat lines and"
            " longer prompts: p99 TTFT rises with what users send.",
            unit="s",
            queries=[
                Query(_wait_by_prompt(), "up to {{up_to_tokens}} tokens"),
                Query(quantile(0.5, names.TTFT, CANARY), "canaries, median"),
                Query(quantile(0.95, names.USERS_PROMPT_TOKENS), "users' prompts p95", is_on_right_axis=True),
            ],
            right_unit="short",
            no_value="no canaries, no users, and no plugin",
            width=16,
        ),
    ]


def _wait_by_prompt() -> str:
    """Return the mean of queue and prefill time by the length of prompts."""
    requests, queue, prefill = (
        pace(names.SERVER[key], by="up_to_tokens")
        for key in ("prompt_requests", "prompt_queue_seconds", "prompt_prefill_seconds")
    )
    return f"({queue} + {prefill}) / ({requests} > 0)"


def _batch() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Batch",
            "Prompt and output tokens that one engine step computes. Good: high under load, which uses the GPU well. At"
            " the server's limit for long, prefills delay the next token of every request.",
            unit="short",
            queries=[
                Query(mean(names.SERVER["iteration_tokens"]), "mean"),
                Query(quantile(0.95, names.SERVER["iteration_tokens"]), "p95"),
            ],
            no_value=_NOT_EXPORTED,
        ),
        panels.timeseries(
            "Server tokens per second",
            "Prompt and output tokens per second of all requests. Good: follows the number of requests. Requests"
            " without output tokens mean a stalled engine.",
            unit="short",
            queries=[
                Query(pace(names.SERVER["prompt_tokens"]), "prompt"),
                Query(pace(names.SERVER["generation_tokens"]), "output"),
            ],
            no_value=_NOT_EXPORTED,
        ),
    ]


def _signs() -> list[PlacedPanel]:
    return [
        panels.states(
            "Signs of KV cache pressure",
            "In the last minute: usage of 90 % or more, requests that wait for room in the cache, preemptions,"
            " rejections, and whether an objective is missed or will be (late). Too small: requests lack room and are"
            " late or rejected. Good: never too small; the other signs alone may be good use of memory.",
            queries=[
                Query(largest(names.KV_TOO_SMALL), "too small"),
                Query(largest(names.KV_PRESSURE, by="sign"), "{{sign}}"),
            ],
            texts={"0": ("no", GREEN), "1": ("yes", YELLOW)},
            width=8,
            no_value=_NOT_EXPORTED,
        ),
        panels.timeseries(
            "Rejections and corrupted requests",
            "Requests that the server refused to queue, and finished ones with NaN in their logits, per second. Good:"
            " zero. Users get an error at once, or text that makes no sense; canaries may miss it.",
            unit="reqps",
            queries=[
                Query(pace(names.SERVER["rejections_by_reason"], by="reason"), "rejected: {{reason}}"),
                Query(pace(names.SERVER["corrupted"]), "corrupted (NaN)"),
            ],
            no_value="none, or the server does not export them",
        ),
    ]
