"""The variables of dashboards about one target: the target, its model and its workload."""

from typing import Any

from dashboards import layout
from dashboards.queries import MODEL, TARGET
from exporters import names


def target() -> Any:  # noqa: ANN401 - grafanalib has no types
    """Return the variable of the target, which has one value at a time."""
    return layout.variable("target", "Target", f"label_values({names.TASK_INTERVAL.name}, target)")


def chosen() -> list[Any]:
    """Return the variables target, model and workload; the latter two include all unless one is chosen."""
    requests = names.REQUESTS.name
    return [
        target(),
        layout.variable("model", "Model", f"label_values({requests}{{{TARGET}}}, model)", every=True),
        layout.variable("workload", "Workload", f"label_values({requests}{{{MODEL}}}, workload)", every=True),
    ]
