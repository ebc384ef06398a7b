"""The GPUs under each target, under dcgm-exporter's own names."""

from exporters import names
from exporters.rendered_samples import RenderedSamples, SampleLines
from probe.core.snapshot import GpuSnapshot
from probe.gpu.fields import LABELS

_BY_NAME = {series.name: series for series in names.GPU}


class GpuExporter:
    """The last reading of each target that has GPUs configured; those without have no series."""

    def __init__(self, targets: tuple[str, ...]) -> None:
        self.relay = RenderedSamples((names.GPU_UP, names.GPU_COUNT, names.GPU_SCRAPE_ERRORS, *names.GPU))
        self._errors: dict[str, int] = {}
        for target in targets:
            self.add(target)

    def add(self, target: str) -> None:
        """Starts the counter of a target that has GPUs configured at zero."""
        self._errors[target] = 0
        self.relay.put(target, self._state(target))

    def forget(self, target: str) -> None:
        """The target is not watched any more."""
        self._errors.pop(target, None)
        self.relay.forget(target)

    def observe(self, target: str, snapshot: GpuSnapshot) -> None:
        """Keeps a reading. A label that a GPU lacks is empty, which to Prometheus is no label."""
        lines = self._state(target)
        lines.value(names.GPU_UP, [target], 1.0)
        lines.value(names.GPU_COUNT, [target], len(snapshot.gpus))
        for gpu in snapshot.gpus:
            labels = [target, *(gpu.labels.get(name, "") for name in LABELS)]
            for name, value in gpu.values.items():
                lines.value(_BY_NAME[name], labels, value)
        self.relay.put(target, lines)

    def failed(self, target: str) -> None:
        """Counts an attempt that failed, and forgets the reading before it."""
        self._errors[target] += 1
        lines = self._state(target)
        lines.value(names.GPU_UP, [target], 0.0)
        self.relay.put(target, lines)

    def _state(self, target: str) -> SampleLines:
        lines = SampleLines()
        lines.value(names.GPU_SCRAPE_ERRORS, [target], self._errors[target])
        return lines
