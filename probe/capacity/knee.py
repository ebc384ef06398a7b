"""The knee of a series of fixed steps. Pure."""

from collections.abc import Sequence

from probe.records import Capacity, StepSummary, Stopped
from probe.summary import CUT_SHORT

MODE = "empirical"  # measured, with no model behind it


def knee(steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
    """The highest valid step that held every objective, as a capacity.

    The true knee lies between that step and the next one up that did not hold: one that broke an objective,
    or one that the guard had to stop. `lower` is the throughput held; `upper` what the broken step reached or,
    where throughput had already collapsed there, what it could have reached at most (throughput grows no faster
    than concurrency); None where nothing broke. Steps that are invalid for another reason judge nothing.
    """
    held = [step for step in steps if step.valid and not step.broken and step.throughput_rps > 0]
    best = max(held, key=_concurrency, default=None)
    guarded = [step for step in steps if stopped.by == "guard" and step.reason == CUT_SHORT]
    broke = [step for step in steps if step.valid and step.broken] + guarded
    above = min(
        (s for s in broke if best is None or _concurrency(s) > _concurrency(best)), key=_concurrency, default=None
    )
    limiting = _limiting(above, stopped)
    if best is None:
        return Capacity(mode=MODE, limiting=limiting, reason=_why_none(steps, stopped))
    return Capacity(
        mode=MODE,
        requests_per_second=best.throughput_rps,
        lower=best.throughput_rps,
        upper=_upper(best, above) if above else None,
        output_tokens_per_second=best.output_tokens_per_second,
        knee_concurrency=best.plan.concurrency,
        limiting=limiting,
        reason=_caveat(broke, best, limiting),
    )


def _concurrency(step: StepSummary) -> int:
    return step.plan.concurrency


def _limiting(above: StepSummary | None, stopped: Stopped) -> str | None:
    if above is not None and above.broken:
        return above.broken[0]
    return stopped.reason if stopped.by == "guard" else None


def _upper(best: StepSummary, above: StepSummary) -> float:
    if above.valid and above.throughput_rps >= best.throughput_rps:
        return above.throughput_rps
    return best.throughput_rps * above.plan.concurrency / best.plan.concurrency


def _why_none(steps: Sequence[StepSummary], stopped: Stopped) -> str:
    voided = sorted({step.reason for step in steps if step.reason})
    judged = [step for step in steps if step.valid]
    if judged:
        return f"the lowest step judged, concurrency {min(map(_concurrency, judged))}, already broke an objective"
    if voided:
        return f"no step was valid: {', '.join(voided)}"
    return f"no step was completed: {stopped.by}" + (f" ({stopped.reason})" if stopped.reason else "")


def _caveat(broke: Sequence[StepSummary], best: StepSummary, limiting: str | None) -> str | None:
    """What a reader has to know about the figure, or None."""
    below = [step.plan.concurrency for step in broke if _concurrency(step) <= _concurrency(best)]
    if below:
        return f"not monotone: concurrency {below[0]} broke an objective at or below the knee; measure again"
    if not broke:
        why = f"the run ended for {limiting} before a higher step" if limiting else "no step broke an objective"
        return f"{why}: the capacity is at least this"
    return None
