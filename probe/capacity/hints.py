"""What is known of a server that its metrics do not say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hints:
    """Flags that it was started with; None: it has to be seen."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


NO_HINTS = Hints()
