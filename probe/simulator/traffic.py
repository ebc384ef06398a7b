"""Live users of a simulated server. Pure."""

from dataclasses import dataclass

from probe.core.workload import Workload


@dataclass(frozen=True, slots=True)
class BackgroundTraffic:
    """Requests that arrive as a Poisson process, with a workload's lengths. `is_probe`: marks them as the probe's.

    `is_mirrored`: where requests of an even seed come one soon after the other, the next seed's come late, and
    the other way round. The mean of both varies less (antithetic variates: Hammersley and Morton, 1956).
    """

    rate_rps: float
    workload: Workload
    is_probe: bool = False
    is_mirrored: bool = False
