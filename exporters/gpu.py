"""The GPUs of each target, in base units."""

from exporters import names
from exporters.rendered_samples import RenderedSamples, SampleLines
from probe.core.mig import computing
from probe.core.snapshot import GpuSnapshot
from probe.gpu.fields import FIELDS, LABELS

_FACTORS = {field.name: field.factor for field in FIELDS}
_DIGITS = 9  # 57 * 0.01 is 0.5700000000000001


class GpuExporter:
    """The last GPU snapshot of each target; targets without configured GPUs have no series."""

    def __init__(self, targets: tuple[str, ...]) -> None:
        self.relay = RenderedSamples((names.GPU_UP, names.GPU_COUNT, names.GPU_SCRAPE_ERRORS, *names.GPU))
        self._errors: dict[str, int] = {}
        for target in targets:
            self.add(target)

    def add(self, target: str) -> None:
        """Start the counter of a target with configured GPUs at zero."""
        self._errors[target] = 0
        self.relay.put(target, self._state(target))

    def forget(self, target: str) -> None:
        """Remove the series of a target that is no longer watched."""
        self._errors.pop(target, None)
        self.relay.forget(target)

    def observe(self, target: str, snapshot: GpuSnapshot) -> None:
        """Publish a snapshot. A label that a GPU does not have is empty, which Prometheus treats as absent."""
        lines = self._state(target)
        lines.value(names.GPU_UP, [target], 1.0)
        lines.value(names.GPU_COUNT, [target], len(computing(snapshot.gpus)))
        for gpu in snapshot.gpus:
            labels = [target, *(gpu.labels.get(name, "") for name in LABELS)]
            for name, value in gpu.values.items():
                lines.value(names.gpu(name), labels, round(value * _FACTORS[name], _DIGITS))
        self.relay.put(target, lines)

    def count_failure(self, target: str) -> None:
        """Count a failed scrape, and remove the previous snapshot."""
        self._errors[target] += 1
        lines = self._state(target)
        lines.value(names.GPU_UP, [target], 0.0)
        self.relay.put(target, lines)

    def _state(self, target: str) -> SampleLines:
        lines = SampleLines()
        lines.value(names.GPU_SCRAPE_ERRORS, [target], self._errors[target])
        return lines
