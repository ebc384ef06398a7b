"""What is known of a server that its metrics do not say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hints:
    """Flags that it was started with. The default of `max_num_batched_tokens` is vLLM's for most GPUs."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int = 2048


NO_HINTS = Hints()
