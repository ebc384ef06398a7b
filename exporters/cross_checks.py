"""Comparisons of client, server and GPU, as series."""

from collections.abc import Mapping

from exporters.names import CHECKS
from exporters.rendered_samples import RenderedSamples, SampleLines
from probe.core.snapshot import CrossChecks


class CrossChecksExporter:
    """The last cross-checks of each target."""

    def __init__(self) -> None:
        self.relay = RenderedSamples(check.series for check in CHECKS)

    def observe(self, target: str, found: CrossChecks) -> None:
        lines = SampleLines()
        for check in CHECKS:
            value = getattr(found, check.field)
            if isinstance(value, Mapping):
                for part, its in value.items():
                    lines.value(check.series, [target, part], float(its))
            else:
                lines.value(check.series, [target], value if value is None else float(value))
        self.relay.put(target, lines)
