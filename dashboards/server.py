"""The dashboard "Kneewatch / Server": what one server says of itself, and whether it agrees with the client.

In: the links. Out: the dashboard's JSON text. Rows of what only some servers have are collapsed.
"""

from alerts.links import SERVER, Links
from dashboards import layout, marks, panels, queries
from dashboards.gpus import gpu_details
from dashboards.layout import Intervals
from dashboards.pieces import GREEN, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import CANARY, MODEL, RATE, TARGET, largest, mean, pace, percentiles, quantile, spread
from dashboards.variables import chosen
from exporters import names
from exporters.names import Series

TITLE = "Kneewatch / Server"

_NOT_EXPORTED = "the server does not export it"
_ONE_ENGINE = "the server has one engine"
_OFF = "the server does not export it, or the option is off"
_NONE = "the server exports none: it has no NIXL connector"


def server_dashboard(links: Links, intervals: Intervals, *, has_gpus: bool) -> str:
    """Return the dashboard as JSON text. `has_gpus`: whether any target has GPUs that are read."""
    return layout.dashboard(
        TITLE,
        SERVER,
        "One model server: whether its metrics can be trusted, its GPUs in detail, its engines and optional metrics.",
        variables=chosen(),
        rows=[
            PanelRow("Do the client and the server agree?", agreement()),
            PanelRow("More GPU metrics", gpu_details(), is_collapsed=not has_gpus),
            PanelRow("Engines of a data-parallel server", engines(), is_collapsed=True),
            PanelRow("Prefill and decode on different servers", transfers(), is_collapsed=True),
            PanelRow("Optional server metrics", options(), is_collapsed=True),
        ],
        annotations=marks.marks(queries.TARGET),
        links=links,
        intervals=intervals,
    )


def agreement() -> list[PlacedPanel]:
    """Return the cross-checks between client and server, and whether the server's metrics can be trusted."""
    return [*_trust_in_scrapes(), *_server_process(), *_client_and_server()]


def _trust_in_scrapes() -> list[PlacedPanel]:
    return [
        panels.stat(
            "Server's metrics",
            "Whether the last scrape of the server's metrics succeeded. Good: read. Otherwise all server values here"
            " are missing, and no capacity run may start.",
            unit="none",
            queries=[Query(largest(names.SERVER_UP), "read")],
            steps=[(None, RED), (1, GREEN)],
            texts={"0": ("UNREADABLE", RED), "1": ("read", GREEN)},
        ),
        panels.stat(
            "Servers at the address",
            "Whether scrapes come from one server. If several servers answer at this address, counters are mixed, and"
            " user traffic and cross-checks are not computed. Good: one. Otherwise set metrics_urls, or make each"
            " server its own target.",
            unit="none",
            queries=[Query(largest(names.AMBIGUOUS), "ambiguous")],
            steps=[(None, GREEN), (1, RED)],
            texts={"0": ("one", GREEN), "1": ("SEVERAL", RED)},
            no_value="not known",
        ),
        panels.stat(
            "Targets with this metrics page",
            "Targets that read the same metrics page, this one included. Good: one. With several, such as models behind"
            " one gateway, each of them shows the traffic of all.",
            unit="none",
            queries=[Query(largest(names.SERVER_TARGETS), "targets")],
            steps=[(None, GREEN), (2, YELLOW)],
            no_value="not known",
        ),
        panels.stat(
            "Token counts, server over client",
            "Tokens by the server's counters relative to the client's count, for canaries that ran alone on the server."
            " Good: 100 %. Otherwise the metrics page is another server's, or one replica's.",
            unit="percentunit",
            queries=[Query(largest(names.COUNTED_TOKENS, by="kind"), "{{kind}}")],
            steps=[(None, RED), (0.98, GREEN), (1.02, RED)],
            no_value="no canary ran alone",
        ),
    ]


def _server_process() -> list[PlacedPanel]:
    return [
        panels.stat(
            "Time since the server started",
            "Uptime by the server's metrics. Good: since the last deploy. Counters restart with the server's process.",
            unit="s",
            queries=[Query(f"time() - {largest(names.SERVER_STARTED)}", "up for")],
            steps=[(None, YELLOW), (900, GREEN)],
            no_value=_NOT_EXPORTED,
        ),
        panels.stat(
            "Server",
            "Engine and version that the server reports. Good: the version that you deployed.",
            unit="none",
            queries=[Query(largest(names.SERVER_INFO, by="engine, version"), "{{engine}} {{version}}")],
            steps=[(None, GREEN)],
            only_names=True,
            no_value="not known",
        ),
    ]


def _client_and_server() -> list[PlacedPanel]:
    probe_tokens = f"sum by (traffic) (rate({names.TOKENS.name}{{{MODEL}}}[{RATE}]))"
    server_tokens = " + ".join(
        pace(series) for series in (names.SERVER["prompt_tokens"], names.SERVER["generation_tokens"])
    )
    return [
        panels.timeseries(
            "TTFT, server and client",
            "TTFT of all requests as the server measures it, and of canaries. Good: close together. If only the"
            " canaries' is high, the network, a proxy or the front end is slow. If only the server's is high, users"
            " send longer prompts than the canary.",
            unit="s",
            queries=[*percentiles(names.SERVER["ttft"], who="server "), *percentiles(names.TTFT, CANARY, "canary ")],
        ),
        panels.timeseries(
            "Network and gateway",
            "The TTFT of canaries that ran alone on the server, minus the TTFT that the server measured for the same"
            " requests. Good: flat, at a few milliseconds.",
            unit="s",
            queries=[Query(largest(names.TTFT_GAP, f'{TARGET},method="matched"'), "canary minus server")],
            no_value="no canary ran alone",
        ),
        panels.timeseries(
            "Probe tokens and server tokens",
            "Prompt and output tokens per second of Kneewatch's requests, and of all requests. Good: a small share,"
            " except during capacity runs.",
            unit="short",
            queries=[Query(probe_tokens, "probe {{traffic}}"), Query(server_tokens, "server")],
        ),
    ]


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


def options() -> list[PlacedPanel]:
    """Return the panels on metrics that depend on the server's options."""
    return [*_kv_cache_size(), *_adapters(), *_estimates()]


def _adapters() -> list[PlacedPanel]:
    accepted, drafted, drafts = (
        f"max(rate({series.name}{{{TARGET}}}[{RATE}]))"
        for series in (names.SERVER["accepted_tokens"], names.SERVER["draft_tokens"], names.SERVER["drafts"])
    )
    return [
        panels.states(
            "LoRA adapters",
            "When each adapter had running requests. Good: the adapters that you serve. Many at once fill batches"
            " badly, and requests wait as deferred for a free adapter slot.",
            queries=[Query(largest(names.SERVER_ADAPTER, by="adapter"), "{{adapter}}")],
            texts={"1": ("running", GREEN)},
            width=8,
            no_value="no adapter is running",
        ),
        panels.timeseries(
            "Speculative decoding",
            "Accepted share of the draft tokens on the left, accepted tokens per draft on the right. Good: above a"
            " half. Below a third, speculative decoding costs more than it gains under load.",
            unit="percentunit",
            queries=[
                Query(f"{accepted} / ({drafted} > 0)", "accepted"),
                Query(f"{accepted} / ({drafts} > 0)", "tokens per draft", is_on_right_axis=True),
            ],
            maximum=1,
            right_unit="short",
            no_value="no speculative decoding",
        ),
    ]


def _kv_cache_size() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "KV cache size",
            "Tokens that the KV cache has room for, by the server's own figure. Good: the same after each start.",
            unit="short",
            queries=[Query(largest(names.SERVER["kv_cache_tokens"]), "tokens")],
            no_value=_OFF,
        ),
        panels.timeseries(
            "KV cache on each GPU",
            "Its bytes, where --kv-cache-memory-bytes sets them. Good: the same after each start.",
            unit="bytes",
            queries=[Query(largest(names.SERVER["kv_cache_bytes"]), "bytes")],
            no_value=_OFF,
        ),
    ]


def _estimates() -> list[PlacedPanel]:
    read, written = pace(names.SERVER["estimated_read_bytes"]), pace(names.SERVER["estimated_write_bytes"])
    return [
        panels.timeseries(
            "Estimated compute",
            "Floating-point operations per second of a GPU, by the server's own estimate. Good: near the GPU's peak"
            " during prefills.",
            unit="flops",
            queries=[Query(pace(names.SERVER["estimated_flops"]), "operations")],
            no_value=_OFF,
        ),
        panels.timeseries(
            "Estimated memory traffic",
            "Bytes per second read from and written to a GPU's memory, by the server's own estimate. Good: near the"
            " memory's peak during decodes.",
            unit="Bps",
            queries=[Query(read, "read"), Query(written, "written")],
            no_value=_OFF,
        ),
        panels.timeseries(
            "KV blocks",
            "Lifetime of a KV cache block, its idle time before eviction, and the time between two uses. Good: lifetime"
            " well above the time between uses; otherwise prefixes are evicted before their next use.",
            unit="s",
            queries=[
                Query(quantile(0.5, names.SERVER["kv_block_lifetime"]), "life p50"),
                Query(quantile(0.5, names.SERVER["kv_block_idle"]), "idle p50"),
                Query(quantile(0.5, names.SERVER["kv_block_reuse_gap"]), "between uses p50"),
            ],
            no_value=_OFF,
        ),
        panels.timeseries(
            "TPOT, all requests and users",
            "Mean TPOT of all requests as the server measures it, and of users. Good: alike. Otherwise canaries are a"
            " large share of the traffic.",
            unit="s",
            queries=[Query(mean(names.SERVER["tpot"]), "all"), Query(mean(names.USERS_TPOT), "users")],
            no_value=_OFF,
        ),
    ]


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
