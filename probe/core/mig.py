"""GPUs that are divided into instances (MIG): boards and instances, by dcgm-exporter's labels. Pure."""

from collections.abc import Mapping, Sequence

from probe.core.snapshot import Gpu


def board_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return what identifies the board of a GPU or an instance. The first exporters had no UUID for some."""
    uuid = labels.get("UUID", "")
    if uuid and not uuid.startswith("MIG-"):
        return (uuid,)
    return tuple(labels.get(name, "") for name in ("Hostname", "gpu", "device"))


def is_instance(labels: Mapping[str, str]) -> bool:
    """Return whether the labels are of a MIG instance."""
    return bool(labels.get("GPU_I_ID")) or labels.get("UUID", "").startswith("MIG-")


def computing(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs and instances that compute: all but the boards of instances."""
    divided = {board_of(gpu.labels) for gpu in gpus if is_instance(gpu.labels)}
    return tuple(gpu for gpu in gpus if is_instance(gpu.labels) or board_of(gpu.labels) not in divided)


def model_of(labels: Mapping[str, str]) -> str:
    """Return the model of a GPU, or of an instance, which is a part of it; "" if it is not known."""
    model, profile = labels.get("modelName", ""), labels.get("GPU_I_PROFILE", "")
    return f"{model} MIG {profile}" if model and profile and profile not in model else model
