"""Comparisons of client, server and GPU, as series."""

from exporters import names
from exporters.rendered_samples import RenderedSamples, SampleLines
from probe.core.snapshot import CrossChecks


class CrossChecksExporter:
    """The last cross-checks of each target."""

    def __init__(self) -> None:
        self.relay = RenderedSamples(
            (
                names.TTFT_GAP,
                names.QUEUE_SHARE,
                names.COUNTED_TOKENS,
                names.HELD_BACK,
                names.GPU_NEIGHBOUR,
                names.STALLED,
                names.KV_PRESSURE,
                names.KV_TOO_SMALL,
                names.AMBIGUOUS,
            )
        )

    def observe(self, target: str, found: CrossChecks) -> None:
        lines = SampleLines()
        for method, gap_s in found.ttft_gap_s.items():
            lines.value(names.TTFT_GAP, [target, method], gap_s)
        lines.value(names.QUEUE_SHARE, [target], found.queue_share)
        for kind, ratio in found.counted.items():
            lines.value(names.COUNTED_TOKENS, [target, kind], ratio)
        lines.value(names.HELD_BACK, [target], found.held_back_ratio)
        lines.value(names.GPU_NEIGHBOUR, [target], found.neighbour_utilization)
        lines.value(names.AMBIGUOUS, [target], float(found.has_multiple_backends))
        lines.value(names.STALLED, [target], found.stalled_s)
        for sign, shows in found.pressure.items():
            lines.value(names.KV_PRESSURE, [target, sign], float(shows))
        too_small = found.is_kv_cache_too_small
        lines.value(names.KV_TOO_SMALL, [target], float(too_small) if too_small is not None else None)
        self.relay.put(target, lines)
