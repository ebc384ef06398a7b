"""The load of a step in words. Pure."""

from probe.core.step import Pattern, StepPlan


def describe_load(plan: StepPlan) -> str:
    """Return a step's load as text: "concurrency 8", "4 requests at once", or "12.5 requests/s"."""
    if plan.is_pulse:
        return f"{plan.concurrency} request{'s' if plan.concurrency != 1 else ''} at once"
    if plan.arrivals is None:
        return f"concurrency {plan.concurrency}"
    speed = f" (the trace at speed {plan.arrivals.speed:g})" if plan.arrivals.pattern is Pattern.REPLAY else ""
    return f"{plan.arrivals.rate_rps:.4g} requests/s{speed}"


def option_of(plan: StepPlan) -> str:
    """Return the option that sets such a load."""
    if plan.arrivals is None:
        return "--concurrency"
    return "--speeds" if plan.arrivals.pattern is Pattern.REPLAY else "--rates"
