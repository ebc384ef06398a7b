"""Rows of the Target dashboard: data-parallel engines, and what only some servers tell."""

from dashboards import panels
from dashboards.pieces import GREEN, PlacedPanel, Query
from dashboards.queries import RATE, TARGET, largest, mean, pace, quantile, spread
from exporters import names
from exporters.names import Series

_ONE_ENGINE = "the server has one engine"
_OFF = "the server does not tell it, or is not asked to"


def engines() -> list[PlacedPanel]:
    """Of several engines, the one that has most and the one that has least."""
    level: tuple[tuple[str, str, Series, str], ...] = (
        ("Running", "requests that it generates for", names.ENGINE_RUNNING, "short"),
        ("Waiting", "requests in its queue", names.ENGINE_WAITING, "short"),
        ("KV cache", "share of its KV cache in use", names.ENGINE_KV, "percentunit"),
    )
    pace_: tuple[tuple[str, str, Series, str], ...] = (
        ("Preemptions", "requests pushed out of its KV cache, per second", names.ENGINE_PREEMPTIONS, "ops"),
        ("Output", "tokens per second that it generates", names.ENGINE_GENERATION_TOKENS, "short"),
    )
    told = [(title, what, f"{series.name}{{{TARGET}}}", unit) for title, what, series, unit in level]
    told += [(title, what, f"rate({series.name}{{{TARGET}}}[{RATE}])", unit) for title, what, series, unit in pace_]
    return [
        panels.timeseries(
            f"{title}, by engine",
            f"Of each engine the {what}: the one with most, and the one with least. Good: alike. Apart, requests are"
            " spread unevenly, or one engine is slow.",
            unit=unit,
            queries=spread(expr),
            no_value=_ONE_ENGINE,
        )
        for title, what, expr, unit in told
    ]


def options() -> list[PlacedPanel]:
    """What servers tell when they are asked to, or when they do such things at all."""
    accepted, drafted, drafts = (
        f"max(rate({series.name}{{{TARGET}}}[{RATE}]))"
        for series in (names.SERVER_ACCEPTED_TOKENS, names.SERVER_DRAFT_TOKENS, names.SERVER_DRAFTS)
    )
    read, written = pace(names.SERVER_READ_BYTES), pace(names.SERVER_WRITE_BYTES)
    return [
        panels.states(
            "LoRA adapters",
            "When each adapter had requests running. Good: those that you serve. Many at a time share a batch badly,"
            " and requests wait for a place among them as deferred.",
            queries=[Query(largest(names.SERVER_ADAPTER, by="adapter"), "{{adapter}}")],
            texts={"1": ("running", GREEN)},
            width=8,
            no_value="no adapter runs",
        ),
        panels.timeseries(
            "Speculation",
            "Share of the speculated tokens that were kept, on the left, and how many of a draft, on the right. Good:"
            " above a half. Below a third speculating costs more than it gives under load.",
            unit="percentunit",
            queries=[
                Query(f"{accepted} / ({drafted} > 0)", "kept"),
                Query(f"{accepted} / ({drafts} > 0)", "tokens of a draft", right=True),
            ],
            maximum=1,
            right_unit="short",
            no_value="the server does not speculate",
        ),
        panels.timeseries(
            "Estimated arithmetic",
            "Floating-point operations per second of a GPU, by the server's own estimate. Good: near what the GPU can"
            " do while prompts are read.",
            unit="flops",
            queries=[Query(pace(names.SERVER_FLOPS), "operations")],
            no_value=_OFF,
        ),
        panels.timeseries(
            "Estimated memory traffic",
            "Bytes per second read from and written to a GPU's memory, by the server's own estimate. Good: near what"
            " the memory can do while answers are generated.",
            unit="Bps",
            queries=[Query(read, "read"), Query(written, "written")],
            no_value=_OFF,
        ),
        panels.timeseries(
            "KV blocks",
            "How long a block of the KV cache lives, how long it was idle before it went, and how long between two"
            " uses. Good: lives well above the time between uses; else prefixes are evicted before they are asked for"
            " again.",
            unit="s",
            queries=[
                Query(quantile(0.5, names.SERVER_KV_LIFETIME), "life p50"),
                Query(quantile(0.5, names.SERVER_KV_IDLE), "idle p50"),
                Query(quantile(0.5, names.SERVER_KV_REUSE), "between uses p50"),
            ],
            no_value=_OFF,
        ),
        panels.timeseries(
            "Output tokens of a request",
            "Mean TPOT of all requests as the server measures it, beside users' own. Good: alike; apart, canaries are"
            " much of the traffic.",
            unit="s",
            queries=[Query(mean(names.SERVER_TPOT), "all"), Query(mean(names.USERS_TPOT), "users")],
            no_value=_OFF,
        ),
    ]
