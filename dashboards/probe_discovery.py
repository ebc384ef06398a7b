"""A row of the Probe dashboard: discovered servers, and the shards that watch them."""

from dashboards import panels
from dashboards.pieces import GREY, PlacedPanel, Query
from exporters import names


def discovery() -> list[PlacedPanel]:
    return [*_discoveries(), *_shards()]


def _discoveries() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Discovered servers",
            "Servers that each discovery has found. Good: as many as there are replicas. Zero is an outage, or a"
            " selector without a match.",
            unit="none",
            queries=[Query(f"max by (discovery) ({names.DISCOVERED.name})", "{{discovery}}")],
            no_value="all targets have an address in the configuration",
        ),
        panels.timeseries(
            "Failing discoveries",
            "1 while a discovery fails, or cannot use some of its servers. Good: zero. Known servers are still"
            " watched.",
            unit="none",
            queries=[Query(f"max by (discovery) ({names.DISCOVERY_FAILING.name})", "{{discovery}}")],
            maximum=1,
            no_value="all targets have an address in the configuration",
        ),
    ]


def _shards() -> list[PlacedPanel]:
    running = f'count(count_values("shard", {names.SHARD.name}))'
    return [
        panels.stat(
            "Configuration loaded",
            "Time since the configuration file was last loaded, by the Kneewatch that loaded it first. Good: since its"
            " last change, or since the last restart.",
            unit="s",
            queries=[Query(f"time() - min({names.CONFIG_TAKEN_AT.name})", "ago")],
            steps=[(None, GREY)],
            no_value="Kneewatch is down",
        ),
        panels.stat(
            "Shards",
            "Running shards, and the expected number. Good: equal. The targets of a missing shard are not watched.",
            unit="none",
            queries=[Query(running, "running"), Query(f"max({names.SHARDS.name})", "expected")],
            steps=[(None, GREY)],
            no_value="no sharding",
        ),
    ]
