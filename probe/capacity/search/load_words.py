"""A step's load in words, and the option that sets it. Pure."""

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


def below(plan: StepPlan) -> str:
    """Return how to begin with less load than this step's."""
    if plan.arrivals is not None:
        now = plan.arrivals.speed if plan.arrivals.pattern is Pattern.REPLAY else plan.arrivals.rate_rps
        levels = ",".join(f"{now / by:.3g}" for by in (8, 4, 2))
        return f"the knee is below {describe_load(plan)}; begin lower, e.g. {option_of(plan)} {levels}"
    concurrency = plan.concurrency
    lower = [str(2**i) for i in range(concurrency.bit_length()) if 2**i < concurrency]
    if not lower:
        return "one request in flight is too much already; try again when the server is calm, or loosen the objective"
    return f"the knee is below {concurrency} requests in flight; begin lower, e.g. --concurrency {','.join(lower)}"
