"""The probe requests since the last settlement of user traffic. Pure."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from probe.core.request import Outcome, RequestRecord, tokens_spent
from probe.observe import server_latencies
from probe.observe.distance import UNKNOWN
from probe.observe.histogram_arithmetic import Sample

# The server's length histograms, by which a request that ended is counted.
LENGTHS = ("prompt_length", "output_length")
# What is known of users. A gap between tokens belongs to no request that the server names, so ITL is not.
LATENCIES = ("ttft", "tpot", "e2e")
KEYS = (*LATENCIES, *LENGTHS)
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
    """Counts, latencies (s) and lengths (tokens) of probe requests.

    A latency is a range: what the server may have measured of what the client saw. It begins with the sending, and not
    when the request was due.
    """

    begun: int = 0  # requests with at least one token
    ended: int = 0  # requests that ran to their end
    have_all_ended: bool = True
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float = 0.0  # the client's, summed
    samples: Mapping[str, "array[float]"] = field(default_factory=lambda: {key: array("d") for key in KEYS})
    outcomes: Counter[str] = field(default_factory=Counter)  # as the server counts them
    firsts: dict[str, list[float]] = field(default_factory=dict)  # TTFT (s) since the request was written, by target

    def add(self, record: RequestRecord, delay_s: Sample = UNKNOWN) -> None:
        """Add a request that has ended. `delay_s`: the range of the delay between client and server."""
        is_cut = record.is_up is None
        has_ended = record.outcome in _ENDED and not is_cut
        self.ended += has_ended
        if record.outcome in _COUNTED_AS:
            self.outcomes["aborted" if is_cut else _COUNTED_AS[record.outcome]] += 1
        self.have_all_ended &= has_ended
        if record.outcome is Outcome.ABORTED and record.reads:
            self.begun += 1
            self.prompt_tokens += record.spec.prompt_tokens
            self.output_tokens += min(record.reads, record.spec.output_tokens)  # about one token a read
            self._add("ttft", server_latencies.cut_ttft(record, delay_s))
        if not record.events:
            return
        self.begun += 1
        prompt, output = tokens_spent(record)
        self.prompt_tokens += prompt
        self.output_tokens += output
        self.ttft_s += (record.events.at_ns[0] - record.sent_ns) * 1e-9
        if server_latencies.shows_first_token(record):
            first_s = server_latencies.seen_s(record, record.events.at_ns[0])
            self.firsts.setdefault(record.target, []).append(first_s)
        self._add("ttft", server_latencies.ttft(record, delay_s))
        if has_ended:
            for key, tokens in zip(LENGTHS, (prompt, output), strict=True):
                self._add(key, (tokens, tokens))
            self._add("e2e", server_latencies.e2e(record, delay_s))
        if has_ended and output > 1:
            self._add("tpot", server_latencies.tpot(record, output))

    def _add(self, key: str, sample: Sample) -> None:
        self.samples[key].extend(sample)

    def samples_of(self, key: str) -> Iterator[Sample]:
        """Yield the samples of one histogram."""
        values = iter(self.samples[key])
        return zip(values, values, strict=True)
