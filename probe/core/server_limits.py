"""How many requests and tokens a vLLM engine takes at once, by its startup flags. Pure."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from probe.core.vllm_command import DEFAULT, count
from probe.core.vllm_flags import (
    MAX_NUM_ACTIVE_SEQS,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SCHEDULED_TOKENS,
    MAX_NUM_SEQS,
    SPECULATIVE,
)


@dataclass(frozen=True, slots=True)
class Default:
    """vLLM's defaults of max_num_seqs and max_num_batched_tokens on some hardware."""

    hardware: str
    max_num_seqs: int
    max_num_batched_tokens: int


# As the API server has them (vllm/engine/arg_utils.py, get_batch_defaults). In 0.32 a GB10 was among the large GPUs.
HUGE_GPU = Default("GPUs of 160 GiB and more", 1024, 16384)
LARGE_GPU = Default("GPUs of 70 GiB and more except A100 and GB10", 1024, 8192)
SMALL_GPU = Default("other GPUs", 256, 2048)
DEFAULTS = (HUGE_GPU, LARGE_GPU, SMALL_GPU, Default("CPUs", 128, 2048))
LEAST_DEFAULT = min(each.max_num_seqs for each in DEFAULTS)
USUAL_STEP_TOKENS = tuple(sorted({each.max_num_batched_tokens for each in DEFAULTS}))
SMALLER = {MAX_NUM_ACTIVE_SEQS: MAX_NUM_SEQS, MAX_NUM_SCHEDULED_TOKENS: MAX_NUM_BATCHED_TOKENS}  # below which one
_BLOCK_DRAFTS = ("dflash", "dspark")  # methods whose draft pass has a row for each draft token of each request


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one engine. `running`: the most requests that run at once; `step_tokens`: of a step.

    None: unknown. `least_running`: a lower bound of the first, at least 1. `named`: the flag that sets the first.
    """

    running: int | None = None
    step_tokens: int | None = None
    least_running: int = 1
    named: str = MAX_NUM_SEQS


def limits_of(flags: Mapping[str, str]) -> Limits:
    """Return the limits that these flags set.

    The smaller of max_num_seqs and max_num_active_seqs counts. Where a command line does not state max_num_seqs, it is
    vLLM's default, but never more than max_num_batched_tokens.
    """
    batched, seqs = (count(flags.get(name, "")) or None for name in (MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS))
    least = seqs or 1
    if flags.get(MAX_NUM_SEQS) == DEFAULT:
        least = LEAST_DEFAULT if batched is None else min(LEAST_DEFAULT, batched)
        if flags.get(MAX_NUM_BATCHED_TOKENS, DEFAULT) != DEFAULT and batched is None:
            least = 1  # the value is not readable, such as those of replicas that differ
        seqs = batched if batched is not None and batched <= LEAST_DEFAULT else None
    active, named = seqs, MAX_NUM_SEQS
    if (stated := flags.get(MAX_NUM_ACTIVE_SEQS)) is not None:
        active, named = count(stated) or None, MAX_NUM_ACTIVE_SEQS  # vLLM refuses more than max_num_seqs
        least = active or 1
        if active is not None and seqs is not None and seqs <= active:
            active, least, named = seqs, seqs, MAX_NUM_SEQS
    least_drafted, most_drafted = _drafted(flags.get(SPECULATIVE, ""), batched)
    is_lowered = named == MAX_NUM_ACTIVE_SEQS and active == most_drafted  # as vLLM itself has lowered it
    if least_drafted < (active or math.inf) and not is_lowered:
        active, least = None, max(min(least, int(least_drafted)), 1)
    return Limits(active, _step_tokens(flags, batched), least, named)


def _step_tokens(flags: Mapping[str, str], batched: int | None) -> int | None:
    scheduled = flags.get(MAX_NUM_SCHEDULED_TOKENS)
    if batched is None or scheduled is None:
        return batched
    stated = count(scheduled) or None
    return None if stated is None else min(batched, stated)


def _drafted(speculative: str, batched: int | None) -> tuple[float, float]:
    """Return the requests that drafts leave room for, at least and at most: 0 if that is unknown, infinite where they
    need none.

    From 0.33 on vLLM lowers max_num_active_seqs for DFlash and DSpark to max_num_batched_tokens over the rows that a
    request has in the draft pass: its draft tokens, and for most such models one more (vllm/config/vllm.py).
    """
    if not any(method in speculative.lower() for method in _BLOCK_DRAFTS):
        return math.inf, math.inf
    try:
        config = json.loads(speculative)
    except ValueError:
        config = None  # such as those of replicas that differ
    if not isinstance(config, dict):
        return 0, 0
    tokens = config.get("num_speculative_tokens")
    if batched is None or not isinstance(tokens, int) or tokens < 1:
        return 0, 0
    return batched // (tokens + 1), batched // tokens
