"""The dashboard "Kneewatch / Server": what the Target dashboard leaves out, and whether server and client agree.

In: the links. Out: the dashboard's JSON text. Rows of what only some servers have are collapsed.
"""

from alerts.links import SERVER, Links
from dashboards import layout, marks, panels, queries
from dashboards.causes import causes_in_detail
from dashboards.engines import engines, transfers
from dashboards.gpus import gpu_details, gpus
from dashboards.latency import latency_in_detail
from dashboards.layout import Intervals
from dashboards.pieces import GREEN, NO_GPU, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import (
    CANARY,
    MODEL,
    RATE,
    TARGET,
    age,
    faulty_gpus,
    largest,
    mean,
    pace,
    percentiles,
    quantile,
)
from dashboards.users import users_in_detail
from dashboards.variables import chosen
from exporters import names

TITLE = "Kneewatch / Server"

_NOT_EXPORTED = "the server does not export it"
_OFF = "the server does not export it, or the option is off"


def server_dashboard(links: Links, intervals: Intervals, *, has_gpus: bool) -> str:
    """Return the dashboard as JSON text. `has_gpus`: whether any target has GPUs that are read."""
    return layout.dashboard(
        TITLE,
        SERVER,
        "One model server in detail: whether its metrics can be trusted, latency, users, GPUs and engines.",
        variables=chosen(),
        rows=[
            PanelRow("Do the client and the server agree?", agreement()),
            PanelRow("Latency in detail", latency_in_detail()),
            PanelRow("Queue, batch and KV cache in detail", causes_in_detail()),
            PanelRow("What do users send?", users_in_detail()),
            PanelRow("GPUs", gpus(), is_collapsed=not has_gpus),
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
    return [*_trust_in_scrapes(), *_server_process(), *_client_and_server(), *_state()]


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
            no_value="not known: the server's metrics are not read",
        ),
        panels.stat(
            "Targets with this metrics page",
            "Targets that read the same metrics page, this one included. Good: one. With several, such as models behind"
            " one gateway, each of them shows the traffic of all.",
            unit="none",
            queries=[Query(largest(names.SERVER_TARGETS), "targets")],
            steps=[(None, GREEN), (2, YELLOW)],
            no_value="not known: the server's metrics are not read",
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
            no_value="not known: the server's metrics are not read",
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


def _state() -> list[PlacedPanel]:
    return [
        panels.stat(
            "Time since last success",
            "Good: not much more than the canary interval. Never: no canary has succeeded since Kneewatch started.",
            unit="s",
            queries=[Query(age(names.LAST_SUCCESS, CANARY), "age")],
            steps=[(None, GREEN), (60, YELLOW), (300, RED)],
            width=12,
            no_value="never, since Kneewatch started",
        ),
        panels.stat(
            "GPU faults",
            "GPUs whose last XID error came from the GPU, not from a program; it stays until the driver reloads. Good:"
            " none. A server may answer canaries on a faulty GPU.",
            unit="none",
            queries=[Query(faulty_gpus(TARGET), "GPUs")],
            steps=[(None, GREEN), (1, RED)],
            width=12,
            no_value=NO_GPU,
        ),
    ]


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
