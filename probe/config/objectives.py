"""The `objectives` section: service level objectives by name."""

from probe.config.types import ConfigSection, Duration, Ratio, default_duration
from probe.core.objectives import Objective


class LatencyObjective(ConfigSection):
    """At least `ratio` of requests take at most `within`."""

    ratio: Ratio
    within: Duration

    def objective(self) -> Objective:
        return Objective(ratio=self.ratio, within_s=self.within)


class ObjectivesConfig(ConfigSection):
    """Service level objectives."""

    window: Duration = default_duration("30d")
    availability: Ratio | None = 0.999
    ttft: LatencyObjective | None = None
    tpot: LatencyObjective | None = None


# The objectives of `--base-url`, and of targets without `objectives`: an interactive chat.
DEFAULT_OBJECTIVES = ObjectivesConfig(
    ttft=LatencyObjective.model_validate({"ratio": 0.95, "within": "500ms"}),
    tpot=LatencyObjective.model_validate({"ratio": 0.95, "within": "50ms"}),
)
