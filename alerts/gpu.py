"""The alerts on the GPUs under a target. Pure."""

from alerts.rules import Group


def gpu_group(scale: float = 1.0) -> Group:
    """Of targets whose GPUs are read."""
    return Group("kneewatch-gpu", max(1.0, 30 * scale), [])
