"""A twin as a result stores it, and back. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from probe.capacity.model.server_model import ModelFit, ServerModel
from probe.capacity.model.twin import ENDLESS_KV, UNLIMITED_SEQS, Twin
from probe.core.fitted_server import FittedServer
from probe.core.workload import Workload
from probe.observe.kv_size import mean_held
from probe.simulator.cost import FrontEnd, StepCost

# More than any server has: what a damaged or foreign file may ask to be simulated.
_MOST = 1e10
_MOST_ENGINES = 1024
_MOST_DELAY = 1000.0


def fitted_server(
    twin: Twin,
    model: ServerModel,
    fit: ModelFit,
    without_parts: Iterable[Twin],
    latency_factors: Mapping[str, float],
) -> FittedServer:
    """Return the twin as a result stores it.

    `fit`: the twin's; `without_parts`: twins of the same model, each fitted without one part of the data.
    """
    return FittedServer(
        step_cost=asdict(twin.cost),
        step_costs_without=tuple(asdict(each.cost) for each in without_parts),
        kv_tokens=model.usable_kv_tokens,
        request_tokens=twin.request_tokens,
        held_tokens=mean_held(twin.workload.prompt_tokens, twin.workload.output_tokens),
        max_num_seqs=model.max_num_seqs,
        max_num_batched_tokens=twin.chunk_tokens,
        is_chunk_known=model.is_chunk_known,
        largest_batch=fit.cost_model.batches[1],
        engines=twin.engines,
        engine_shares=twin.shares,
        accepted_tokens=twin.accepted_tokens,
        has_prefix_hits=twin.prefix_caching,
        added_s=twin.added_s,
        front_end=asdict(twin.front_end),
        latency_factors=dict(latency_factors),
        block_size=twin.block_size,
        plans_ahead=twin.plans_ahead,
    )


def stored_twin(stored: FittedServer, workload: Workload) -> Twin:
    """Return the twin that a result stores, for requests of this workload.

    Raises ValueError or TypeError for one that no run can have written.
    """
    _check(stored)
    return Twin(
        cost=StepCost(**stored.step_cost),
        kv_tokens=stored.kv_tokens or ENDLESS_KV,
        workload=workload,
        max_num_seqs=stored.max_num_seqs or UNLIMITED_SEQS,
        chunk_tokens=stored.max_num_batched_tokens,
        front_end=FrontEnd(**(stored.front_end or {})),
        added_s=stored.added_s,
        engines=stored.engines,
        accepted_tokens=stored.accepted_tokens,
        prefix_caching=stored.has_prefix_hits,
        shares=stored.engine_shares,
        block_size=stored.block_size,
        plans_ahead=stored.plans_ahead,
        request_tokens=stored.request_tokens * _growth(stored, workload),
    )


def _growth(stored: FittedServer, workload: Workload) -> float:
    """Return how much more a request of this workload may hold beside its tokens: windows may not have been full."""
    held = mean_held(workload.prompt_tokens, workload.output_tokens)
    return max(held / stored.held_tokens, 1.0) if stored.held_tokens > 0 else 1.0


def _check(stored: FittedServer) -> None:
    """Raise ValueError for what is no server, or could not be simulated in a time that a person waits."""
    known = (stored.max_num_batched_tokens, stored.largest_batch, stored.block_size)
    limits = (stored.kv_tokens, stored.max_num_seqs, *known)
    if not all(1 <= limit <= _MOST for limit in limits if limit is not None):
        raise ValueError(f"a limit is not between 1 and {_MOST:g}")
    if not all(0 <= each <= _MOST for each in (stored.request_tokens, stored.held_tokens)):
        raise ValueError(f"request_tokens or held_tokens is not between 0 and {_MOST:g}")
    if not 1 <= stored.engines <= _MOST_ENGINES or len(stored.engine_shares) not in (0, stored.engines):
        raise ValueError(f"engines are not between 1 and {_MOST_ENGINES}, with a share for each")
    delays = (stored.added_s, stored.accepted_tokens, *(stored.front_end or {}).values())
    factors = (*stored.engine_shares, *(stored.latency_factors or {}).values())
    if not all(0 <= each <= _MOST_DELAY for each in delays) or not all(0 < each <= _MOST_DELAY for each in factors):
        raise ValueError("a delay or a factor is no number that a server can have")
