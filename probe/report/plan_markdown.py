"""The plan of replicas as a decision record in Markdown. Pure."""

from collections.abc import Iterable, Sequence

from probe.capacity.model.knobs import TIMES
from probe.core.text import one_line
from probe.report.figures import MISSING, number
from probe.report.replica_plan import ReplicaPlan, condition_lines, gain_words, knob_setting, plan_lines, replica_words

_CELL = 500


def plan_markdown(plan: ReplicaPlan) -> str:
    """Return the decision record of one plan."""
    rate = number(plan.demand.requests_per_second)
    conditions = list(condition_lines(plan))
    decision = [line for line in plan_lines(plan) if line not in conditions]
    return "\n".join(
        [
            f"# Replicas of {_cell(plan.result.model)} for {rate} requests/s",
            "",
            f"**{_cell(replica_words(plan))}.**",
            "",
            *_table(("", "value"), decision),
            "",
            f"## A setting {TIMES} times as large",
            "",
            "By the simulated copy of the server; intervals hold in nine cases of ten.",
            "",
            *_table(("setting", "capacity"), [(knob_setting(knob), gain_words(knob)) for knob in plan.knobs]),
            "",
            "## Conditions",
            "",
            *_table(("", "value"), conditions),
            "",
        ]
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(text: str) -> str:
    """Return text for a cell: it may come from a server."""
    return one_line(text, _CELL).replace("|", "\\|").replace("<", "&lt;") or MISSING
