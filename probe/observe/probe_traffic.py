"""The probe requests since the last settlement of user traffic. Pure."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from probe.core.request import Outcome, RequestRecord
from probe.core.request_cost import tokens_spent

# The latencies that are exported for users. ITL and E2E would be twenty series more each, and add nothing to these and
# the lengths.
KEYS = ("ttft", "tpot")
_ENDED = (Outcome.OK, Outcome.CLIENT_BOUND, Outcome.WRONG_ANSWER)


@dataclass(slots=True)
class ProbeTraffic:
    """Counts and latencies (s) of probe requests. A latency begins with the sending, as the server measures it, and not
    when the request was due.
    """

    begun: int = 0  # requests with at least one token
    ended: int = 0  # requests that ran to their end
    cancelled: int = 0  # those of `begun` that the client cancelled: their TTFT was not kept
    all_ended_well: bool = True
    prompt_tokens: int = 0
    output_tokens: int = 0
    samples: Mapping[str, "array[float]"] = field(default_factory=lambda: {key: array("d") for key in KEYS})
    # Samples that the server had counted before the last settlement, where they passed for users'. Still to subtract.
    counted_before: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def add(self, record: RequestRecord) -> None:
        """Add a request that has ended."""
        has_ended = record.outcome in _ENDED
        self.ended += has_ended
        self.all_ended_well &= has_ended
        if record.outcome is Outcome.ABORTED and record.reads:
            self.begun += 1
            self.cancelled += 1
            self.prompt_tokens += record.spec.prompt_tokens
            self.output_tokens += min(record.reads, record.spec.output_tokens)  # about one token a read
        if not record.events:
            return
        self.begun += 1
        prompt, output = tokens_spent(record)
        self.prompt_tokens += prompt
        self.output_tokens += output
        ttft = (record.events.at_ns[0] - record.sent_ns) * 1e-9
        self.samples["ttft"].append(ttft)
        if has_ended and output > 1:
            decoding = (record.events.at_ns[-1] - record.events.at_ns[0]) * 1e-9
            self.samples["tpot"].append(decoding / (output - 1))

    def samples_of(self, key: str) -> list[float]:
        """Return the samples of one latency; cancelled requests count with the median TTFT."""
        samples = list(self.samples[key])
        return samples + [median(samples)] * self.cancelled if key == "ttft" and samples else samples
