"""The plan of replicas as a decision record in Markdown. Pure."""

from probe.capacity.model.knobs import TIMES
from probe.report.figures import number
from probe.report.markdown import cell, table
from probe.report.replica_plan import ReplicaPlan, condition_lines, gain_words, knob_setting, plan_lines, replica_words


def plan_markdown(plan: ReplicaPlan) -> str:
    """Return the decision record of one plan."""
    rate = number(plan.demand.requests_per_second)
    conditions = list(condition_lines(plan))
    decision = [line for line in plan_lines(plan) if line not in conditions]
    return "\n".join(
        [
            f"# Replicas of {cell(plan.result.model)} for {rate} requests/s",
            "",
            f"**{cell(replica_words(plan))}.**",
            "",
            *table(("", "value"), decision),
            "",
            f"## A setting {TIMES} times as large",
            "",
            "By the simulated copy of the server; intervals hold in nine cases of ten.",
            "",
            *table(("setting", "capacity"), [(knob_setting(knob), gain_words(knob)) for knob in plan.knobs]),
            "",
            "## Conditions",
            "",
            *table(("", "value"), conditions),
            "",
        ]
    )
