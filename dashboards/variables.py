"""The drop-downs of dashboards that are about one target: which, and of it which model and workload."""

from typing import Any

from dashboards import layout
from dashboards.queries import MODEL, TARGET
from exporters import names


def target() -> Any:  # noqa: ANN401 - grafanalib has no types
    """The target, one at a time."""
    return layout.variable("target", "Target", f"label_values({names.TASK_INTERVAL.name}, target)")


def chosen() -> list[Any]:
    """The target, and its models and workloads: all of them unless one is chosen."""
    requests = names.REQUESTS.name
    return [
        target(),
        layout.variable("model", "Model", f"label_values({requests}{{{TARGET}}}, model)", every=True),
        layout.variable("workload", "Workload", f"label_values({requests}{{{MODEL}}}, workload)", every=True),
    ]
