"""The `objectives` section: service level objectives by name."""

from probe.config.types import ConfigSection, Duration, Ratio, default_duration
from probe.core.objectives import LATENCIES, Objective, Objectives


class LatencyObjective(ConfigSection):
    """At least `ratio` of requests take at most `within`."""

    ratio: Ratio
    """Ratio of answered requests that must be within the limit."""
    within: Duration
    """The limit."""

    def objective(self) -> Objective:
        return Objective(ratio=self.ratio, within_s=self.within)


class ObjectivesConfig(ConfigSection):
    """Service level objectives."""

    window: Duration = default_duration("30d")
    """Window of the error budget."""
    availability: Ratio | None = 0.999
    """Ratio of requests that must succeed; `null` for no such objective."""
    ttft: LatencyObjective | None = None
    """Limit of the time to first token. Not judged if left out."""
    tpot: LatencyObjective | None = None
    """Limit of the time per output token after the first. Not judged if left out."""
    e2e: LatencyObjective | None = None
    """Limit of the end-to-end latency, which depends on the length of the answer. Not judged if left out."""
    itl: LatencyObjective | None = None
    """Limit of the longest gap between tokens of a request ([numbers.md](numbers.md#objectives)). Not judged if left
    out.
    """

    def objectives(self, name: str) -> Objectives:
        """Return the objectives under this name."""
        limits = {key: one.objective() for key in LATENCIES if (one := getattr(self, key)) is not None}
        return Objectives(name, self.window, self.availability, **limits)


USUAL_RATIO = 0.95
# The objectives of `--base-url` with an API that generates no tokens.
RESULT_OBJECTIVES = ObjectivesConfig(e2e=LatencyObjective.model_validate({"ratio": USUAL_RATIO, "within": "500ms"}))
# The objectives of `--base-url`, and of targets without `objectives`: an interactive chat.
DEFAULT_OBJECTIVES = ObjectivesConfig.model_validate(
    {name: {"ratio": USUAL_RATIO, "within": row.usual} for name, row in LATENCIES.items() if row.usual}
)
