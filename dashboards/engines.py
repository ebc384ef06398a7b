"""Rows of the Server dashboard on servers of several engines, and on prefill and decode on different servers."""

from dashboards import panels
from dashboards.pieces import GREEN, PlacedPanel, Query
from dashboards.queries import RATE, TARGET, largest, pace, spread
from exporters import names
from exporters.names import Series

_ONE_ENGINE = "the server has one engine"
_NONE = "the server exports none: it has no NIXL connector"


def engines() -> list[PlacedPanel]:
    """Return the panels that compare the engines with most and with least."""
    gauges: tuple[tuple[str, str, Series, str], ...] = (
        ("Running", "number of running requests", names.ENGINE["running"], "short"),
        ("Waiting", "number of requests in the queue", names.ENGINE["waiting"], "short"),
        ("KV cache", "share of the KV cache in use", names.ENGINE["kv_cache_usage"], "percentunit"),
    )
    counters: tuple[tuple[str, str, Series, str], ...] = (
        ("Preemptions", "number of preemptions per second", names.ENGINE["preemptions"], "ops"),
        ("Output", "number of output tokens per second", names.ENGINE["generation_tokens"], "short"),
    )
    shown = [(title, what, f"{series.name}{{{TARGET}}}", unit) for title, what, series, unit in gauges]
    shown += [(title, what, f"rate({series.name}{{{TARGET}}}[{RATE}])", unit) for title, what, series, unit in counters]
    shown += [
        (
            name.upper(),
            f"mean {name.upper()}",
            f"rate({series.name}_sum{{{TARGET}}}[{RATE}]) / (rate({series.name}_count{{{TARGET}}}[{RATE}]) > 0)",
            "s",
        )
        for name, series in names.ENGINE_LATENCIES.items()
    ]
    return [
        panels.timeseries(
            "Imbalance of engines",
            "Load, KV cache use, TTFT and ITL of the replica or engine that has most, relative to the mean of the"
            " others, over five minutes; 1 if little is at stake. Good: below 2. Otherwise a router spreads requests"
            " unevenly, or one engine is slow.",
            unit="short",
            queries=[Query(largest(names.IMBALANCE, by="reason"), "{{reason}}")],
            no_value=_ONE_ENGINE,
        ),
        *(_by_engine(*each) for each in shown),
    ]


def _by_engine(title: str, what: str, expr: str, unit: str) -> PlacedPanel:
    return panels.timeseries(
        f"{title}, by engine",
        f"The highest and the lowest {what} among the engines. Good: alike. Otherwise requests are spread"
        " unevenly, or one engine is slow.",
        unit=unit,
        queries=spread(expr),
        no_value=_ONE_ENGINE,
    )


def transfers() -> list[PlacedPanel]:
    """Return the panels on transfers, and on the prompt tokens that need not be computed."""
    seconds, count = pace(names.SERVER["kv_transfer_seconds"]), pace(names.SERVER["kv_transfers"])
    size = pace(names.SERVER["kv_transfer_bytes"])
    found, looked_up = (
        f"max(rate({series.name}{{{TARGET}}}[{RATE}]))"
        for series in (names.SERVER["external_cache_hits"], names.SERVER["external_cache_queries"])
    )
    return [
        panels.timeseries(
            "KV transfers",
            "KV caches per second that the server fetched, from another server or a store; transfers and handshakes"
            " that failed; caches that it computed and that were not fetched in time. Good: nothing but fetched.",
            unit="ops",
            queries=[
                Query(count, "fetched"),
                Query(pace(names.SERVER["kv_transfer_failures"]), "failed"),
                Query(pace(names.SERVER["kv_transfers_expired"]), "expired"),
            ],
            no_value=_NONE,
        ),
        panels.timeseries(
            "Duration of a transfer",
            "Mean time to fetch the KV cache of a request, on the left, and bytes per second on the right. It is part"
            " of each TTFT. Good: a small share of the TTFT objective; rising with equal bytes, the network is slow.",
            unit="s",
            queries=[
                Query(f"{seconds} / ({count} > 0)", "mean"),
                Query(size, "bytes", is_on_right_axis=True),
            ],
            right_unit="Bps",
            no_value=_NONE,
        ),
        panels.timeseries(
            "Prompt tokens from elsewhere",
            "Share of the prompt tokens that were looked up in other servers' KV caches, or in a store, and found."
            " Good: near 1 on a decode server. Lower: it computes prompts itself.",
            unit="percentunit",
            queries=[Query(f"{found} / ({looked_up} > 0)", "found")],
            maximum=1,
            no_value="the server looks nothing up elsewhere",
        ),
        panels.timeseries(
            "Waiting for a KV cache",
            "Requests whose KV cache is fetched, by stage. Good: few, and none that stay. Many in progress: the network"
            " or the other server is slow; many completed: this server has no room to run them.",
            unit="short",
            queries=[Query(largest(names.SERVER["kv_fetches"], by="stage"), "{{stage}}")],
            no_value=_NONE,
        ),
        panels.timeseries(
            "Origin of prompt tokens",
            "Prompt tokens per second by where their KV cache came from, and cached ones by tier. Good: as your prompts"
            " repeat. More computed at equal load: the cache lost what it had, so TTFT rises.",
            unit="short",
            queries=[
                Query(pace(names.SERVER["prompt_tokens_by_source"], by="origin"), "{{origin}}"),
                Query(pace(names.SERVER["cached_tokens_by_source"], by="tier"), "from {{tier}}"),
            ],
            no_value=_NONE,
        ),
        panels.timeseries(
            "KV cache offloading",
            "Bytes per second that came back from host memory or disk and that left for it; on the right, writes and"
            " reads that came to nothing, per second. Good: none. Full or behind: the tier is too small or slow.",
            unit="Bps",
            queries=[
                Query(pace(names.SERVER["kv_offload_read_bytes"]), "read"),
                Query(pace(names.SERVER["kv_offload_written_bytes"]), "written"),
                Query(pace(names.SERVER["kv_offload_failures"], by="reason"), "{{reason}}", is_on_right_axis=True),
            ],
            right_unit="ops",
            no_value="the server offloads nothing",
        ),
        panels.states(
            "Role",
            "The part of each request that the server computes. Good: the role of its pods. Queues differ by role.",
            queries=[Query(largest(names.SERVER_ROLE, by="role"), "{{role}}")],
            texts={"1": ("this part", GREEN)},
            width=8,
            no_value="the server does both parts, or its role is not known",
        ),
    ]
