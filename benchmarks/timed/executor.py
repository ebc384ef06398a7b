"""A GPU that keeps time and computes nothing, for a real vLLM: API server, scheduler, KV cache and metrics are vLLM's.

Loaded by vLLM (`--distributed-executor-backend benchmarks.timed.executor.TimedExecutor`), with the repository on
PYTHONPATH and the case's name in KNEEWATCH_TIMED_CASE. Each step takes as long as the case's law says, so what the
server can serve does not depend on the machine, while the engine's own work fits into a step (1 to 3 ms on one core).
Steps are scheduled asynchronously, as is vLLM's default on a GPU: the next one is planned while one runs, so that the
engine's work does not lengthen it. vLLM switches that off on a CPU. Tokens are drawn at random.
"""

import os
import time
from concurrent.futures import Future
from random import Random
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput  # type: ignore[import-not-found]
from vllm.v1.executor.uniproc_executor import UniProcExecutor  # type: ignore[import-not-found]
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput  # type: ignore[import-not-found]

from benchmarks.timed.cases import ALL

_FIRST_TOKEN, _TOKENS = 5, 1000  # tokens that no tokenizer treats as special


class _Due(Future):  # type: ignore[type-arg]
    """The output of a step, which is there when the step has ended."""

    def __init__(self, due_s: float, output: object) -> None:
        super().__init__()
        self._due_s, self._output = due_s, output

    def done(self) -> bool:
        return time.perf_counter() >= self._due_s

    def result(self, timeout: float | None = None) -> Any:  # noqa: ARG002
        left_s = self._due_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        return self._output


class TimedExecutor(UniProcExecutor):  # type: ignore[misc]
    """Executes steps by waiting."""

    def _init_executor(self) -> None:
        super()._init_executor()
        # Before the engine chooses its scheduler, which it does when it has its executor.
        self.vllm_config.scheduler_config.async_scheduling = True
        self._law = ALL[os.environ["KNEEWATCH_TIMED_CASE"]].law
        self._random = Random(5)
        self._clock = self._law.clock(Random(6))
        self._began_s = self._free_s = time.perf_counter()
        self._prompts: dict[str, int] = {}
        self._known: dict[str, int] = {}  # each request's tokens when all steps so far have ended
        self._pending: _Due | None = None

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """Begin a step: it starts when the one before it has ended."""
        for name in scheduler_output.finished_req_ids:
            self._known.pop(name, None)
            self._prompts.pop(name, None)
        if not scheduler_output.total_num_scheduled_tokens:
            return _Due(0.0, EMPTY_MODEL_RUNNER_OUTPUT) if non_block else EMPTY_MODEL_RUNNER_OUTPUT
        computed = self._computed(scheduler_output)
        names, sampled, cached, pairs = [], [], 0, 0.0
        for name, count in scheduler_output.num_scheduled_tokens.items():
            before = computed[name]
            cached += before
            pairs += count * (before + count / 2) if count > 1 else 0
            names.append(name)
            is_sampling = before + count >= self._known[name]
            self._known[name] += is_sampling
            sampled.append([_FIRST_TOKEN + self._random.randrange(_TOKENS)] if is_sampling else [])
        mean_s = self._law.mean_s(len(names), scheduler_output.total_num_scheduled_tokens, cached, pairs)
        begin_s = max(time.perf_counter(), self._free_s)
        self._free_s = begin_s + self._clock(mean_s, begin_s - self._began_s)
        output = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled
        )
        self._pending = _Due(self._free_s, output)
        return _Due(self._free_s, None) if non_block else None

    def sample_tokens(self, grammar_output: object, non_block: bool = False) -> Any:  # noqa: ARG002
        """Return the output of the step that began last."""
        due, self._pending = self._pending, None
        if due is None:
            raise RuntimeError("sample_tokens() must come after execute_model()")
        return due if non_block else due.result()

    def take_draft_token_ids(self) -> None:
        """Return None: there is no speculation."""

    def _computed(self, scheduler_output: SchedulerOutput) -> dict[str, int]:
        """Return the computed tokens of each request, and learn its length where it is new or resumed."""
        computed = {}
        for new in scheduler_output.scheduled_new_reqs:
            self._known[new.req_id] = len(new.prompt_token_ids)
            self._prompts[new.req_id] = len(new.prompt_token_ids)
            computed[new.req_id] = new.num_computed_tokens
        running = scheduler_output.scheduled_cached_reqs
        for i, name in enumerate(running.req_ids):
            computed[name] = running.num_computed_tokens[i]
            if name in running.resumed_req_ids:
                self._known[name] = self._prompts[name] + running.num_output_tokens[i]
        return computed
