"""What a server's flags do that its twin does not, and what a forecast says of it. Pure.

A flag that may make the capacity lower than the twin's leaves no figure: that would be too high by an unknown factor.
One whose effect is not known to be large is said. Requests that vLLM refuses at its queue limit are counted out.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from probe.core.objectives import Objectives
from probe.core.vllm_command import count
from probe.core.workload import Workload, longest

MEASURE = "measure with `kneewatch ramp`"
_DEFAULT_SCHEDULER = "vllm.v1.core.sched."
_PEAK = 3.0  # standard deviations of the requests in flight (Poisson) above their mean that are reached at times


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """A flag that the twin does not have. `applies`: by its value and what is asked. `words`: what the model has."""

    flag: str
    applies: Callable[[str, Workload, Objectives], bool]
    words: str
    is_only_said: bool = False


def _above(limit: int) -> Callable[[str, Workload, Objectives], bool]:
    """Return whether a number is larger, or cannot be read, such as those of replicas that differ."""
    return lambda value, _, __: (number := count(value)) is None or number > limit


def _cuts_prompts(value: str, workload: Workload, _: Objectives) -> bool:
    threshold = count(value)
    return threshold is None or 0 < threshold < longest(workload)[0]


def _is(wanted: str) -> Callable[[str, Workload, Objectives], bool]:
    return lambda value, _, __: wanted in value


UNMODELLED: tuple[Unmodelled, ...] = (
    Unmodelled("prefill_schedule_interval", _above(1), "prompts computed in every step, not in one of several"),
    Unmodelled("long_prefill_token_threshold", _cuts_prompts, "prompts that take all of a step's tokens"),
    Unmodelled("enable_chunked_prefill", _is("False"), "prompts computed in parts"),
    Unmodelled(
        "scheduler_cls", lambda value, _, __: not value.startswith(_DEFAULT_SCHEDULER), "vLLM's own scheduler only"
    ),
    Unmodelled(
        "stream_interval",
        lambda value, workload, objectives: objectives.itl is not None and _above(1)(value, workload, objectives),
        "an event for each token, and ITL is the gap between events",
    ),
    Unmodelled("scheduling_policy", _is("priority"), "requests of one priority", is_only_said=True),
    Unmodelled("pipeline_parallel_size", _above(1), "one step at a time", is_only_said=True),
    Unmodelled(
        "scheduler_reserve_full_isl", _is("False"), "requests that wait until all of their prompt fits in the KV cache",
        is_only_said=True,
    ),
)  # fmt: skip
QUEUED_REQS, QUEUED_TOKENS, WATERMARK = "max_num_queued_reqs", "max_num_queued_tokens", "watermark"
READ = (*(row.flag for row in UNMODELLED), QUEUED_REQS, QUEUED_TOKENS, WATERMARK)


def why_withheld(flags: Mapping[str, str], workload: Workload, objectives: Objectives) -> str | None:
    """Return why the twin cannot tell the capacity of a server with these flags, or None."""
    found = _words((row for row in UNMODELLED if not row.is_only_said), flags, workload, objectives)
    return f"the model has {found}" if found else None


def caveat(flags: Mapping[str, str], workload: Workload, objectives: Objectives) -> str:
    """Return what a forecast says of the flags that the twin does not have, after a semicolon; "" for nothing."""
    found = _words((row for row in UNMODELLED if row.is_only_said), flags, workload, objectives)
    return f"; the model has {found}" if found else ""


def _words(rows: Iterator[Unmodelled], flags: Mapping[str, str], workload: Workload, objectives: Objectives) -> str:
    applying = (row for row in rows if row.flag in flags and row.applies(flags[row.flag], workload, objectives))
    return ", and ".join(f"{row.words} ({row.flag}={flags[row.flag]})" for row in applying)


def refusals(
    flags: Mapping[str, str], rate_rps: float, in_flight: float, prompt_tokens: float, ttft_s: float
) -> str | None:
    """Return that a server would refuse requests at this rate, or None.

    `in_flight`: the mean of its engines together; `ttft_s`: of the slowest that count, the time in which a prompt is in
    prefill.
    """
    requests = in_flight + _PEAK * math.sqrt(in_flight)
    tokens = rate_rps * ttft_s * prompt_tokens
    tokens += _PEAK * math.sqrt(tokens * prompt_tokens)
    for flag, most, what in ((QUEUED_REQS, requests, "requests"), (QUEUED_TOKENS, tokens, "prompt tokens in prefill")):
        limit = flags.get(flag)
        if limit is not None and (number := count(limit) or 0) < most:
            return (
                f"at {rate_rps:.3g} requests/s up to {most:.0f} {what} would be in flight, and vLLM refuses more than"
                f" {number} ({flag}); {MEASURE}"
            )
    return None


def free_share(flags: Mapping[str, str]) -> float:
    """Return the share of the KV cache that new requests leave free (vLLM's watermark)."""
    try:
        share = max(map(float, flags.get(WATERMARK, "0").replace("default", "0").split("|")))
    except ValueError:
        return 0.0
    return share if 0 <= share < 1 else 0.0  # vLLM refuses others
