"""What the workers of a run send, and where to."""

from array import array
from dataclasses import dataclass

from probe.client.endpoint import Endpoint
from probe.client.exchange import aborted
from probe.core.clock import Clock
from probe.core.request import RequestRecord, RequestSpec, Traffic
from probe.core.time_limits import TimeLimits
from probe.core.trace import Trace
from probe.core.workload import Workload
from probe.load.sent_request import unpack


@dataclass(frozen=True, slots=True)
class RequestSource:
    """What to send: the endpoint, the model, the workload, and how long to wait for an answer (`limits`; a number: s).

    `aliases`: other names of the model, under which it may answer. `trace`: the requests, where a trace has them.
    """

    endpoint: Endpoint
    model: str
    workload: Workload
    limits: TimeLimits | float
    seed: int = 0
    aliases: frozenset[str] = frozenset()
    trace: Trace | None = None

    def aborted(self, in_flight: "array[int]", clock: Clock) -> list[RequestRecord]:
        """Return the records that packed requests (sent_request.py) would get if cancelled now."""
        workload = self.workload
        return [
            aborted(
                target=self.endpoint.target,
                model=self.model,
                traffic=Traffic.CAPACITY,
                spec=RequestSpec(workload.name, workload.api, (), prompt_tokens, output_tokens),
                scheduled_ns=due_ns,
                clock=clock,
                reads=reads,
            )
            for due_ns, prompt_tokens, output_tokens, reads in unpack(in_flight)
        ]
