"""A row of the Server dashboard: whether client and server agree, and whether scrapes can be trusted."""

from dashboards import panels
from dashboards.pieces import GREEN, RED, YELLOW, PlacedPanel, Query
from dashboards.queries import CANARY, MODEL, RATE, TARGET, largest, pace, percentiles
from exporters import names

_NOT_EXPORTED = "the server does not export it"


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
            " Good: 100 %. Otherwise the metrics are another server's, or those of one replica of several.",
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
    server_tokens = " + ".join(pace(series) for series in (names.SERVER_PROMPT_TOKENS, names.SERVER_GENERATION_TOKENS))
    return [
        panels.timeseries(
            "TTFT, server and client",
            "TTFT of all requests as the server measures it, and of canaries. Good: close together. Only the canary's"
            " high: network, proxy or front end. Only the server's high: users send longer prompts than the canary.",
            unit="s",
            queries=[*percentiles(names.SERVER_TTFT, who="server "), *percentiles(names.TTFT, CANARY, "canary ")],
        ),
        panels.timeseries(
            "Network and gateway",
            "The TTFT of canaries that ran alone on the server, minus the server's own of the same requests. Good:"
            " flat, at a few milliseconds.",
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
