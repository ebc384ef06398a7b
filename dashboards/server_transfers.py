"""A row of the Server dashboard: KV caches that are fetched from other servers, where prefill and decode are apart."""

from dashboards import panels
from dashboards.pieces import GREEN, PlacedPanel, Query
from dashboards.queries import RATE, TARGET, largest, pace
from exporters import names

_NONE = "the server exports none: it has no NIXL connector"


def transfers() -> list[PlacedPanel]:
    """Return the panels on transfers, and on the prompt tokens that need not be computed."""
    seconds, count = pace(names.SERVER_KV_TRANSFER_SECONDS), pace(names.SERVER_KV_TRANSFERS)
    size = pace(names.SERVER_KV_TRANSFER_BYTES)
    found, looked_up = (
        f"max(rate({series.name}{{{TARGET}}}[{RATE}]))"
        for series in (names.SERVER_EXTERNAL_HITS, names.SERVER_EXTERNAL_QUERIES)
    )
    return [
        panels.timeseries(
            "KV transfers",
            "KV caches per second that the server fetched; transfers and handshakes that failed; caches that it"
            " computed and that were not fetched in time. Good: nothing but fetched.",
            unit="ops",
            queries=[
                Query(count, "fetched"),
                Query(pace(names.SERVER_KV_TRANSFER_FAILURES), "failed"),
                Query(pace(names.SERVER_KV_TRANSFERS_EXPIRED), "expired"),
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
        panels.states(
            "Role",
            "The part of each request that the server computes. Good: that of its pods; queues differ by it.",
            queries=[Query(largest(names.SERVER_ROLE, by="role"), "{{role}}")],
            texts={"1": ("this part", GREEN)},
            width=8,
            no_value="the server does both parts, or its role is not known",
        ),
    ]
