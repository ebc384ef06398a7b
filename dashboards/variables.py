"""The variables of dashboards: cluster, namespace and group of targets, one target, its model and its workload."""

from typing import Any

from dashboards import layout
from dashboards.queries import MODEL, TARGET
from dashboards.scope import GROUP_REGEX, IN_GROUP, PLACE, scoped
from exporters import names

_TARGETS = names.TASK_INTERVAL.name
# A workload may be that of canaries, or of a capacity alone, as `users` is.
_WITH_WORKLOADS = f'__name__=~"{names.REQUESTS.name}|{names.CAPACITY_RPS.name}"'


def places() -> list[Any]:
    """Return the variables that narrow down the targets: cluster, namespace and group."""
    of_cluster = f'{_TARGETS}{{cluster=~"$cluster"}}'
    return [
        layout.variable("cluster", "Cluster", f"label_values({_TARGETS}, cluster)", every=True),
        layout.variable("namespace", "Namespace", f"label_values({of_cluster}, namespace)", every=True),
        layout.variable(
            "group", "Group", f"label_values({scoped(_TARGETS, PLACE)}, target)", every=True, regex=GROUP_REGEX
        ),
    ]


def target() -> Any:  # noqa: ANN401 - grafanalib has no types
    """Return the variable of the target, which has one value at a time."""
    return layout.variable("target", "Target", f"label_values({scoped(_TARGETS, IN_GROUP)}, target)")


def chosen() -> list[Any]:
    """Return the variables of one target, its model and its workload, after those that narrow down the targets."""
    of_target, of_model = (scoped(f"{{{_WITH_WORKLOADS},{one}}}") for one in (TARGET, MODEL))
    return [
        *places(),
        target(),
        layout.variable("model", "Model", f"label_values({of_target}, model)", every=True),
        layout.variable("workload", "Workload", f"label_values({of_model}, workload)", every=True),
    ]
