"""The probe requests since the last settlement of user traffic. Pure."""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from probe.core.request import Outcome, RequestRecord, tokens_spent

# The server's length histograms, by which a request that ended is counted.
LENGTHS = ("prompt_length", "output_length")
# What is known of users. A gap between tokens belongs to no request that the server names, so ITL is not.
KEYS = ("ttft", "tpot", "e2e", *LENGTHS)
_ENDED = (Outcome.OK, Outcome.CLIENT_BOUND, Outcome.WRONG_ANSWER, Outcome.CORRUPT)
# How a server counts a probe request. It counts neither one that did not reach it nor one that it refused by the
# client's fault.
_COUNTED_AS = {
    **dict.fromkeys(_ENDED, "ok"),
    **dict.fromkeys((Outcome.SERVER_ERROR, Outcome.REJECTED), "failed"),
    **dict.fromkeys((Outcome.ABORTED, Outcome.TIMEOUT, Outcome.BROKEN_STREAM), "aborted"),
}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a request that is in flight, at most."""

    prompt: int = 0
    output: int = 0


NO_TOKENS = Tokens()


@dataclass(slots=True)
class ProbeTraffic:
    """Counts, latencies (s) and lengths (tokens) of probe requests. A latency begins with the sending, as the server
    measures it, and not when the request was due.
    """

    begun: int = 0  # requests with at least one token
    ended: int = 0  # requests that ran to their end
    cancelled: int = 0  # of `begun`, cancelled by the client: their TTFT was not kept
    have_all_ended: bool = True
    prompt_tokens: int = 0
    output_tokens: int = 0
    samples: Mapping[str, "array[float]"] = field(default_factory=lambda: {key: array("d") for key in KEYS})
    outcomes: Counter[str] = field(default_factory=Counter)  # as the server counts them

    def add(self, record: RequestRecord) -> None:
        """Add a request that has ended."""
        is_cut = record.is_up is None
        has_ended = record.outcome in _ENDED and not is_cut
        self.ended += has_ended
        if record.outcome in _COUNTED_AS:
            self.outcomes["aborted" if is_cut else _COUNTED_AS[record.outcome]] += 1
        self.have_all_ended &= has_ended
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
        if has_ended:
            for key, tokens in zip(LENGTHS, (prompt, output), strict=True):
                self.samples[key].append(tokens)
            self.samples["e2e"].append((record.events.at_ns[-1] - record.sent_ns) * 1e-9)
        if has_ended and output > 1:
            decoding = (record.events.at_ns[-1] - record.events.at_ns[0]) * 1e-9
            self.samples["tpot"].append(decoding / (output - 1))

    def samples_of(self, key: str) -> list[float]:
        """Return the samples of one histogram; cancelled requests count with the median TTFT."""
        samples = list(self.samples[key])
        return samples + [median(samples)] * self.cancelled if key == "ttft" and samples else samples
