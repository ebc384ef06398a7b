"""Rows of the Server dashboard: data-parallel engines, and metrics that only some servers export."""

from dashboards import panels
from dashboards.pieces import GREEN, PlacedPanel, Query
from dashboards.queries import RATE, TARGET, largest, mean, pace, quantile, spread
from exporters import names
from exporters.names import Series

_ONE_ENGINE = "the server has one engine"
_OFF = "the server does not export it, or the option is off"


def engines() -> list[PlacedPanel]:
    """Return the panels that compare the engines with most and with least."""
    gauges: tuple[tuple[str, str, Series, str], ...] = (
        ("Running", "running requests", names.ENGINE_RUNNING, "short"),
        ("Waiting", "requests in the queue", names.ENGINE_WAITING, "short"),
        ("KV cache", "share of the KV cache in use", names.ENGINE_KV, "percentunit"),
    )
    counters: tuple[tuple[str, str, Series, str], ...] = (
        ("Preemptions", "preempted requests per second", names.ENGINE_PREEMPTIONS, "ops"),
        ("Output", "output tokens per second", names.ENGINE_GENERATION_TOKENS, "short"),
    )
    shown = [(title, what, f"{series.name}{{{TARGET}}}", unit) for title, what, series, unit in gauges]
    shown += [(title, what, f"rate({series.name}{{{TARGET}}}[{RATE}])", unit) for title, what, series, unit in counters]
    return [
        panels.timeseries(
            f"{title}, by engine",
            f"The highest and the lowest {what} of the engines. Good: alike. Otherwise requests are spread unevenly, or"
            " one engine is slow.",
            unit=unit,
            queries=spread(expr),
            no_value=_ONE_ENGINE,
        )
        for title, what, expr, unit in shown
    ]


def options() -> list[PlacedPanel]:
    """Return the panels on metrics that depend on the server's options."""
    return [*_adapters(), *_estimates()]


def _adapters() -> list[PlacedPanel]:
    accepted, drafted, drafts = (
        f"max(rate({series.name}{{{TARGET}}}[{RATE}]))"
        for series in (names.SERVER_ACCEPTED_TOKENS, names.SERVER_DRAFT_TOKENS, names.SERVER_DRAFTS)
    )
    return [
        panels.states(
            "LoRA adapters",
            "When each adapter had running requests. Good: those that you serve. Many at a time share a batch badly,"
            " and requests wait as deferred for a free adapter slot.",
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


def _estimates() -> list[PlacedPanel]:
    read, written = pace(names.SERVER_READ_BYTES), pace(names.SERVER_WRITE_BYTES)
    return [
        panels.timeseries(
            "Estimated compute",
            "Floating-point operations per second of a GPU, by the server's own estimate. Good: near the GPU's peak"
            " during prefills.",
            unit="flops",
            queries=[Query(pace(names.SERVER_FLOPS), "operations")],
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
                Query(quantile(0.5, names.SERVER_KV_LIFETIME), "life p50"),
                Query(quantile(0.5, names.SERVER_KV_IDLE), "idle p50"),
                Query(quantile(0.5, names.SERVER_KV_REUSE), "between uses p50"),
            ],
            no_value=_OFF,
        ),
        panels.timeseries(
            "TPOT, all requests and users",
            "Mean TPOT of all requests as the server measures it, and of users. Good: alike. Otherwise canaries are a"
            " large share of the traffic.",
            unit="s",
            queries=[Query(mean(names.SERVER_TPOT), "all"), Query(mean(names.USERS_TPOT), "users")],
            no_value=_OFF,
        ),
    ]
