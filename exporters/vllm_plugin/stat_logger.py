"""vLLM's side of the plugin: a stat logger (entry point group vllm.stat_logger_plugins) for each engine.

vLLM calls it after each step, in the event loop that also sends the answers. So an exception must not get out, and
the first one ends the plugin's work until vLLM is started again. vLLM's statistics are not a stable interface: 0.17 to
0.33 have the fields that are read here, and a version without one is served as without the plugin.
"""

import functools
import logging
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase  # type: ignore[import-not-found]

from .requests_in_flight import finder
from .step_contents import SchedulerLimits, StepContents, StepReport
from .step_series import LIMITS, StepSeries

_log = logging.getLogger("vllm.kneewatch")
# The registry is the process's, and takes a name once.
_series = functools.cache(StepSeries)


class StepStatLogger(StatLoggerBase):  # type: ignore[misc]
    """Exports the steps of one engine."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._recorder: _Recorder | None = None
        try:
            self._recorder = _Recorder(vllm_config, engine_index)
        except Exception:  # whatever is wrong here, vLLM has to start
            _log.exception("kneewatch: engine steps are not exported")
        if self._recorder is not None and self._recorder.sees_all_requests and _series().oldest is None:
            try:
                _series().oldest = finder()
            except Exception:
                _log.warning("kneewatch: the age of requests is not exported", exc_info=True)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002 - vLLM's interface
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Export a step."""
        if self._recorder is None:
            return
        try:
            self._recorder.record(scheduler_stats, iteration_stats)
        except Exception:  # in vLLM's event loop: an error would end the server
            self._recorder = None
            _log.exception("kneewatch: engine steps are no longer exported")

    def log_engine_initialized(self) -> None:
        """Do nothing; vLLM's interface has it."""


def _limits(*configs: Any) -> dict[str, int]:
    """Return the limits that are set, each from the configuration that has it; an older vLLM lacks some."""
    found = {name: getattr(config, name, None) for config in configs for name in LIMITS if hasattr(config, name)}
    return {name: value for name, value in found.items() if value is not None}


class _Recorder:
    """Passes vLLM's statistics of one engine on."""

    def __init__(self, config: Any, engine_index: int) -> None:
        scheduler, parallel = config.scheduler_config, config.parallel_config
        self._engines = parallel.data_parallel_size
        self._cache = config.cache_config
        self._series = _series().engine(engine_index, _limits(scheduler, config.model_config))
        # Each of several API servers is shown its own requests only, and a pipeline runs several steps at a time.
        self.sees_all_requests = parallel._api_process_count == 1  # noqa: SLF001
        self._can_see_steps = self.sees_all_requests and parallel.pipeline_parallel_size == 1
        has_steps_without_prompts = (getattr(scheduler, "prefill_schedule_interval", None) or 1) > 1
        is_cut_when_full = not (
            scheduler.long_prefill_token_threshold or has_steps_without_prompts or config.speculative_config is not None
        )
        step_tokens = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
        self._contents = StepContents(
            SchedulerLimits(
                step_tokens if is_cut_when_full else None, _block_tokens(self._cache), bool(scheduler.async_scheduling)
            )
        )

    def record(self, scheduler: Any, step: Any) -> None:
        if self.sees_all_requests and step is not None:
            self._add_requests(step.finished_requests)
        if not self._can_see_steps or scheduler is None:
            return
        blocks = max((self._cache.num_gpu_blocks or 0) / self._engines - 1, 0.0)  # one is no request's
        kv_tokens = scheduler.kv_cache_usage * blocks * _block_tokens(self._cache)
        if step is None:
            self._contents.no_tokens(scheduler.num_running_reqs, kv_tokens)
        else:
            report = StepReport(
                gaps_s=step.inter_token_latencies_iter,
                first_tokens=len(step.time_to_first_tokens_iter),
                prompt_tokens=step.prompt_token_stats.computed,
                finished=len(step.finished_requests),
                running=scheduler.num_running_reqs,
                kv_tokens=kv_tokens,
            )
            for known in self._contents.add(report):
                self._series.add(known)
        self._series.skipped = self._contents.skipped

    def _add_requests(self, finished: Any) -> None:
        """Count requests that ended with a token; the times of others are differences to a time that never was."""
        for request in finished:
            if request.num_generation_tokens and request.queued_time >= 0 and request.prefill_time >= 0:
                self._series.add_request(request.num_prompt_tokens, request.queued_time, request.prefill_time)


def _block_tokens(cache: Any) -> int:
    """Return the tokens in a block: with decode context parallelism those of all GPUs that share it."""
    return int(getattr(cache, "effective_attention_block_size", None) or cache.block_size)
