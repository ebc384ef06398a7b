"""A request inside the simulated engine: its lengths, its progress and the KV blocks it holds."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class EngineRequest:
    """`generated` and `computed` are as they were before step `since`; a request that decodes has moved on."""

    number: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int
    generated: int = 0
    computed: int = 0  # tokens whose keys and values are in the cache
    since: int = 0
    blocks: int = 0  # of its own, kept while it is not decoding
    shared_blocks: int = 0  # of the common prefix
    preemptions: int = 0

    @property
    def known(self) -> int:
        """Tokens so far, prompt and output; computing the last of them produces the next."""
        return self.prompt_tokens + self.generated

    @property
    def last_step(self) -> int:
        """The step in which the request gets its last token, if it decodes until then."""
        return self.since + self.output_tokens - self.generated - 1
