"""A simulated copy of a server, as a result stores it: enough to simulate the server again with other settings."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FittedServer:
    """The step cost model that was fitted to a server, and its limits.

    `step_cost`: the model's terms in seconds, by the names of StepCost (simulator/cost.py); `step_costs_without`: the
    same, each fitted without one part of the data, which shows how sure they are. `kv_tokens`: over all engines;
    `max_num_seqs` and `max_num_batched_tokens`: of one engine. None: unknown; an unknown max_num_batched_tokens is the
    value that explains the server best, and `is_chunk_known` is false. `largest_batch`: most requests in a step of one
    engine while it was measured. `accepted_tokens`: tokens that speculation adds to the one of a step. `added_s`, and
    `front_end` by the names of FrontEnd: delays before the engine. `latency_factors`: by what the copy's latencies are
    multiplied to be the server's, by objective. `block_size`: tokens in a block of the KV cache. `plans_ahead`: whether
    a step is planned when the one before it begins. `request_tokens`: of the KV cache, what each request holds beside
    its own tokens, if it has `held_tokens` on average.
    """

    step_cost: Mapping[str, float]
    step_costs_without: tuple[Mapping[str, float], ...]
    kv_tokens: float | None
    max_num_seqs: int | None
    max_num_batched_tokens: int
    is_chunk_known: bool
    largest_batch: float
    engines: int = 1
    engine_shares: tuple[float, ...] = ()
    accepted_tokens: float = 0.0
    has_prefix_hits: bool = False
    added_s: float = 0.0
    front_end: Mapping[str, float] | None = None
    latency_factors: Mapping[str, float] | None = None
    block_size: int = 16
    plans_ahead: bool = False
    request_tokens: float = 0.0
    held_tokens: float = 0.0
