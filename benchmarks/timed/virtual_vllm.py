"""vLLM's own scheduler and KV cache manager in virtual time: a case's truth, without a server. Runs in vLLM's Python.

In: a case and its requests' arrivals. Out: what each step held, and when each request got its first and last token.

`depth` is the number of steps that the engine has in flight. 1 is synchronous scheduling: a step is planned when the
one before it has ended. 2 is vLLM's default, asynchronous scheduling: a step is planned when the one before it begins,
so a request waits for up to one step more and keeps its place for one step longer.
HTTP, tokenizing and detokenizing take no time here; served_cost.py has what they cost a served vLLM.

As a program, for Python without vLLM: `python -m benchmarks.timed.virtual_vllm MODEL CASE SEED` reads arrivals from
stdin as JSON, and writes when each request's first and last token came (s), served asynchronously.
"""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch  # type: ignore[import-not-found]
from vllm.config import (  # type: ignore[import-not-found]
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # type: ignore[import-not-found]
from vllm.v1.core.sched.output import SchedulerOutput  # type: ignore[import-not-found]
from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]
from vllm.v1.engine import EngineCoreOutputs  # type: ignore[import-not-found]
from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found]
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found]
from vllm.v1.request import Request, RequestStatus  # type: ignore[import-not-found]
from vllm.v1.structured_output import StructuredOutputManager  # type: ignore[import-not-found]

from benchmarks.timed.arrivals import Arrival, Timed
from benchmarks.timed.cases import ALL, BLOCK_SIZE, MAX_MODEL_LEN, Case


@dataclass(frozen=True, slots=True)
class Step:
    """What vLLM scheduled. `tokens`: by request, in its order; `cached`: all tokens in their caches before."""

    tokens: dict[int, int]
    preempted: frozenset[int]
    cached: int
    pairs: float
    sampling: frozenset[int]  # the requests that get a token from it
    output: SchedulerOutput

    @property
    def total(self) -> int:
        """All tokens that it computes."""
        return sum(self.tokens.values())


class VirtualVllm:
    """One scheduler. Requests are integers."""

    def __init__(self, model: Path, case: Case, depth: int = 1, *, log_stats: bool = False) -> None:
        """`model`: the folder of any small model's configuration; its weights are not read."""
        self.depth = depth
        self.config = _config(model, case, is_async=depth > 1)
        self.outputs = EngineCoreOutputs()  # of the step that was completed last
        self._requests: dict[int, Request] = {}
        self._known: dict[int, int] = {}  # tokens of each request when all planned steps have ended
        self._scheduler = _scheduler(self.config, case, log_stats=log_stats)

    @property
    def has_requests(self) -> bool:
        """Whether there is a step to plan; in between steps vLLM also has to report what has finished."""
        return bool(self._scheduler.has_requests())

    def submit(self, number: int, prompt_tokens: int, output_tokens: int) -> None:
        """Queue a request."""
        request = Request(
            request_id=str(number),
            prompt_token_ids=[1] * prompt_tokens,
            sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.0),
            pooling_params=None,
        )
        self._requests[number] = request
        self._known[number] = prompt_tokens
        self._scheduler.add_request(request)

    @property
    def state(self) -> tuple[float, int, int]:
        """Return the share of the KV cache in use, and how many requests run and wait."""
        scheduler = self._scheduler
        return scheduler.kv_cache_manager.usage, len(scheduler.running), len(scheduler.waiting)

    def abort(self, numbers: Sequence[int]) -> None:
        """Drop requests whose clients are gone."""
        for number in numbers:
            if self._requests.pop(number, None) is not None:
                self._scheduler.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)

    def plan(self) -> Step:
        """Schedule a step."""
        output = self._scheduler.schedule()
        for name in output.scheduled_cached_reqs.resumed_req_ids:
            self._known[int(name)] = self._requests[int(name)].num_tokens
        cached, pairs = 0, 0.0
        sampling = set()
        tokens = {int(name): count for name, count in output.num_scheduled_tokens.items()}
        for number, count in tokens.items():
            before = self._requests[number].num_computed_tokens - count  # which schedule() has counted already
            cached += before
            pairs += count * (before + count / 2) if count > 1 else 0
            if before + count >= self._known[number]:
                sampling.add(number)
                self._known[number] += 1
        preempted = frozenset(int(name) for name in output.preempted_req_ids or ())
        return Step(tokens, preempted, cached, pairs, frozenset(sampling), output)

    def complete(self, step: Step) -> Iterator[tuple[int, int, bool]]:
        """End the oldest planned step. Yield the requests that got tokens, how many, and whether they have ended."""
        names = list(step.output.num_scheduled_tokens)
        sampled = [[7] if int(name) in step.sampling else [] for name in names]
        outputs = self._scheduler.update_from_output(
            step.output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        for client in outputs.values():
            self.outputs = client
            for one in client.outputs:
                if one.finish_reason is not None:
                    self._requests.pop(int(one.request_id), None)
                yield int(one.request_id), len(one.new_token_ids), one.finish_reason is not None


def serve(
    model: Path,
    case: Case,
    arrivals: Sequence[Arrival],
    *,
    depth: int = 1,
    seed: int = 1,
    watch: Callable[[VirtualVllm, Step, float], None] | None = None,
) -> list[Timed]:
    """Serve all arrivals, which are in the order of their times, and return when their tokens came.

    The loop is vLLM's (EngineCore.step_with_batch_queue): plan while fewer than `depth` steps are in flight, else wait
    for the oldest one. `watch` is called after each step, with its end; vLLM then keeps statistics.
    """
    engine = VirtualVllm(model, case, depth, log_stats=watch is not None)
    clock = case.law.clock(Random(seed))
    served = [Timed(one) for one in arrivals]
    in_flight: deque[tuple[float, Step]] = deque()
    now_s = free_s = 0.0
    submitted = 0
    while True:
        while submitted < len(served) and (one := served[submitted].arrival).at_s <= now_s:
            engine.submit(submitted, one.prompt_tokens, one.output_tokens)
            submitted += 1
        if engine.has_requests:
            step = engine.plan()
            free_s = _ends_s(case, clock, step, max(now_s, free_s)) if step.tokens else free_s
            in_flight.append((free_s if step.tokens else now_s, step))
            if len(in_flight) < depth and (step.tokens or engine.has_requests):
                continue
        if in_flight:
            due_s, step = in_flight.popleft()
            now_s = max(now_s, due_s)
            for number, tokens, has_ended in engine.complete(step):
                served[number].add(now_s, tokens, has_ended=has_ended)
            if watch is not None:
                watch(engine, step, now_s)
        elif submitted < len(served):
            now_s = served[submitted].arrival.at_s
        else:
            return served


def _ends_s(case: Case, clock: Callable[[float, float], float], step: Step, begin_s: float) -> float:
    return begin_s + clock(case.law.mean_s(len(step.tokens), step.total, step.cached, step.pairs), begin_s)


def _config(model: Path, case: Case, *, is_async: bool) -> VllmConfig:
    cache = CacheConfig(
        block_size=BLOCK_SIZE, gpu_memory_utilization=0.9, cache_dtype="auto", enable_prefix_caching=False
    )
    cache.num_gpu_blocks = case.num_blocks
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(model),
            tokenizer=str(model),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=MAX_MODEL_LEN,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=case.max_num_seqs,
            max_num_batched_tokens=case.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            async_scheduling=is_async,
            is_encoder_decoder=False,
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    config.scheduler_config.async_scheduling = is_async  # which VllmConfig switches off without a worker that can
    return config


def kv_cache(case: Case) -> KVCacheConfig:
    """Return the KV cache, with a group of layers for each kind of attention."""
    shape = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**shape))]
    groups += [
        KVCacheGroupSpec([f"sliding-{i}"], SlidingWindowSpec(**shape, sliding_window=case.window))
        for i in range(case.sliding_groups)
    ]
    return KVCacheConfig(num_blocks=case.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def _scheduler(config: VllmConfig, case: Case, *, log_stats: bool) -> Scheduler:
    return (AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler)(
        vllm_config=config,
        kv_cache_config=kv_cache(case),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=log_stats,
    )


def main() -> None:
    model, name, seed = sys.argv[1:]
    arrivals = [Arrival(**one) for one in json.load(sys.stdin)]
    answers = serve(Path(model), ALL[name], arrivals, depth=2, seed=int(seed))
    print(json.dumps([(one.first_s, one.last_s) for one in answers]))


if __name__ == "__main__":
    main()
