"""The servers of known timing (benchmarks/timed/cases.py) as deployments for virtual time.

Their scheduler is the simulator's, which plans every step as vLLM's does. The length of a step is the law's: memory or
compute, whichever takes longer, without the smooth maximum of the model.

`NAME-tight` is a deployment whose TPOT objective is so near the TPOT of a single request that no pulse is safe.
"""

from dataclasses import dataclass, replace

from benchmarks.capacity.cases import Case
from benchmarks.timed import cases as timed
from probe.core.objectives import Objective, Objectives
from probe.core.request import Api
from probe.core.workload import LognormalLength, Part, Workload, mixed
from probe.simulator.cost import Batch, FrontEnd, Jitter, Profile, StepCost

PREFIX = "timed-"
TIGHT = "-tight"
_TIGHT_RATIO = 1.3  # of the TPOT of a single request
_FRONT_END_S = 0.005  # of vLLM's API server, for a request
_RATIO = 0.95  # of requests that have to meet an objective


@dataclass(frozen=True, slots=True)
class LawCost(StepCost):
    """A step that takes as long as a law says."""

    def step_seconds(self, batch: Batch) -> float:
        longer = max(self.weights_s + self.per_kv_token_s * batch.kv_tokens, self.per_token_s * batch.tokens)
        return self.host_s + self.per_sequence_s * batch.sequences + longer + self.per_pair_s * batch.pairs


def timed_case(name: str) -> Case:
    """Return the deployment of that name in benchmarks/timed/cases.py. KeyError if there is none."""
    case = timed.ALL[name.removesuffix(TIGHT)]
    if name.endswith(TIGHT):
        alone_s = case.law.mean_s(1, 1, case.prompt_tokens + case.output_tokens // 2)
        case = replace(case, tpot_ms=_TIGHT_RATIO * 1e3 * alone_s)
    return Case(
        PREFIX + name,
        _profile(case),
        workload_of("bench", case),
        Objectives(
            name="bench", ttft=Objective(_RATIO, case.ttft_ms / 1e3), tpot=Objective(_RATIO, case.tpot_ms / 1e3)
        ),
    )


def planned_ahead(case: Case) -> Case:
    """Return the deployment with vLLM's asynchronous scheduling, its default on GPUs."""
    return replace(case, profile=replace(case.profile, plans_ahead=True))


def workload_of(name: str, case: timed.Case) -> Workload:
    """Return the case's requests as a workload of Kneewatch."""
    whole = sum(kind.weight for kind in case.kinds)
    parts = tuple(
        Part(
            f"kind-{i}",
            _length(kind.prompt_tokens, kind.sigma),
            _length(kind.output_tokens, kind.sigma),
            share=kind.weight / whole,
        )
        for i, kind in enumerate(case.kinds)
    )
    if case.mixture:
        return mixed(name, Api.COMPLETIONS, parts)
    return Workload(name, Api.COMPLETIONS, parts[0].prompt_tokens, parts[0].output_tokens)


def _profile(case: timed.Case) -> Profile:
    law = case.law
    return Profile(
        name=case.name,
        description=case.name,
        cost=LawCost(
            host_s=law.host / 1e3,
            per_sequence_s=law.seq / 1e3,
            per_token_s=law.tok / 1e3,
            weights_s=law.weights / 1e3,
            per_kv_token_s=law.kv / 1e6,
            per_pair_s=law.pair / 1e9,
        ),
        max_num_seqs=case.max_num_seqs,
        block_size=timed.BLOCK_SIZE,
        num_blocks=case.num_blocks,
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_model_len=timed.MAX_MODEL_LEN,
        request_blocks=case.window_blocks,
        jitter=Jitter(noise_ratio=law.noise, drift_ratio=law.drift, drift_period_s=law.period_s),
        front_end=FrontEnd(per_request_s=_FRONT_END_S),
    )


def _length(median: int, sigma: float) -> int | LognormalLength:
    return LognormalLength(median, sigma, timed.LONGEST * median) if sigma else median
