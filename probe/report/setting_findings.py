"""Findings on a server's startup flags: which do not fit its memory, its users' requests or its objectives. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from probe.core.objectives import Objectives
from probe.core.server_limits import limits_of
from probe.core.snapshot import GpuSnapshot, ServerSnapshot, UserTotals, differing_flags
from probe.core.vllm_command import count
from probe.core.vllm_flags import LARGEST_GRAPH, SPECULATIVE
from probe.gpu.fields import memory
from probe.observe.histogram_arithmetic import at_most
from probe.observe.kv_size import KvSize, kv_size
from probe.report.cross_check_text import Finding
from probe.report.figures import milliseconds, number, percent

# Fewer requests may all be of one kind.
_LEAST_REQUESTS = 5
# Below this share of a hit for each token looked up, requests have hardly anything in common.
_RARE_HITS = 0.01
_LONG, _ENOUGH_FOR_P99 = 0.99, 100
_USUAL_SHARE, _FREE = 0.9, 0.1
_FAR_LONGER, _MUCH_OF_CACHE = 8, 0.25
_LEAST_QUERIES = 10_000


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """The mean request of `requests`, in tokens.

    `is_recent`: of users while the server was watched; otherwise of all since its start.
    """

    requests: float
    prompt_tokens: float
    output_tokens: float
    is_recent: bool

    @property
    def held_tokens(self) -> float:
        """Return the tokens that a running request holds on average: half of its answer has been generated."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class LongRequests:
    """What 99 % of prompts, and 99 % of answers, are within, in tokens: an upper bound by the server's histograms."""

    prompt_tokens: float
    output_tokens: float

    @property
    def tokens(self) -> float:
        """Return prompt and answer together."""
        return self.prompt_tokens + self.output_tokens


def long_requests(server: ServerSnapshot) -> LongRequests | None:
    """Return the long requests since the server's start; None where it has not answered enough to know them."""
    prompts, outputs = server.histograms.get("prompt_length"), server.histograms.get("output_length")
    if prompts is None or outputs is None or min(prompts.count, outputs.count) < _ENOUGH_FOR_P99:
        return None
    prompt, output = at_most(prompts, _LONG), at_most(outputs, _LONG)
    return LongRequests(prompt, output) if prompt is not None and output is not None else None


def request_lengths(users: UserTotals, server: ServerSnapshot) -> RequestLengths | None:
    """Return the mean length of users' requests; None where the server has not answered enough of them."""
    if users.requests is not None and users.requests >= _LEAST_REQUESTS and users.prompt_tokens and users.output_tokens:
        return RequestLengths(
            users.requests, users.prompt_tokens / users.requests, users.output_tokens / users.requests, is_recent=True
        )
    prompt, output = server.histograms.get("prompt_length"), server.histograms.get("output_length")
    if prompt is None or output is None or min(prompt.count, output.count) < _LEAST_REQUESTS:
        return None
    if min(prompt.sum, output.sum) <= 0:
        return None  # no request has no tokens
    return RequestLengths(prompt.count, prompt.sum / prompt.count, output.sum / output.count, is_recent=False)


def setting_findings(
    server: ServerSnapshot,
    flags: Mapping[str, str],
    lengths: RequestLengths | None,
    objectives: Objectives,
    prefill_tokens_per_second: float | None,
    *,
    kv: KvSize | None = None,
    longest: LongRequests | None = None,
) -> Iterator[Finding]:
    """Yield what the flags cost. `flags`: by vLLM's names with underscores; an unknown one is absent.

    `kv`: the KV cache size for requests of these lengths, where traffic was seen. `longest`: nearly the longest ones.
    """
    if differing := differing_flags(flags):
        yield Finding(f"{replicas_words(differing)}: start them with the same flags", is_problem=True)
    yield from _memory(server, flags, lengths, kv)
    yield from _prefix_cache(server, flags)
    yield from _context(server, flags, longest)
    yield from _precision(flags)
    yield from _unchunked(flags, longest, objectives, prefill_tokens_per_second)
    if flags.get("enforce_eager") == "True":
        yield Finding(
            "eager mode: without CUDA graphs a decode step takes longer; remove --enforce-eager unless memory is short",
            is_problem=True,
        )
    else:
        yield from _graphs(flags)
    if flags.get("enable_log_requests") == "True":
        yield Finding(
            "vLLM logs a line for each request, and its prompt too with VLLM_LOGGING_LEVEL=DEBUG; remove"
            " --enable-log-requests unless you read these lines",
            is_problem=False,
        )
    if prefill_tokens_per_second:
        yield from _prefill(flags, lengths, objectives, prefill_tokens_per_second)


def _graphs(flags: Mapping[str, str]) -> Iterator[Finding]:
    """Yield that more requests run than the largest CUDA graph has tokens; with drafts a request has several."""
    limits, largest = limits_of(flags), count(flags.get(LARGEST_GRAPH, ""))
    if limits.running is None or not largest or limits.running <= largest or SPECULATIVE in flags:
        return
    yield Finding(
        f"{limits.named} is {limits.running}, and the largest CUDA graph is for {largest} tokens: with more requests a"
        f" step takes longer all at once; lower --{limits.named.replace('_', '-')} to {largest}, or raise"
        " --max-cudagraph-capture-size",
        is_problem=False,
    )


def replicas_words(differing: Mapping[str, str]) -> str:
    """Return the flags in which the replicas of a server differ. A capacity then holds for their mix."""
    return f"the replicas differ in {', '.join(f'{name} ({values})' for name, values in differing.items())}"


def _memory(
    server: ServerSnapshot, flags: Mapping[str, str], lengths: RequestLengths | None, kv: KvSize | None
) -> Iterator[Finding]:
    limits = limits_of(flags)
    limit = limits.running
    if limit is None or lengths is None:
        return
    kv = kv or kv_size([server], lengths.held_tokens)
    if kv is None:
        return
    tokens = max(kv.stated_tokens, kv.block_tokens) if kv.is_lower_bound else kv.tokens
    room = tokens / server.engines / lengths.held_tokens
    if room < limit:
        many = f"{'at most ' if kv.is_lower_bound else ''}{number(int(room))}"
        yield Finding(
            f"the KV cache has room for {many} requests of the mean length, and {limits.named} is {limit}:"
            " under load requests are preempted and computed again; raise --gpu-memory-utilization, or lower"
            f" --{limits.named.replace('_', '-')} to {max(int(room), 1)}",
            is_problem=bool(server.preemptions),
        )


def _context(server: ServerSnapshot, flags: Mapping[str, str], longest: LongRequests | None) -> Iterator[Finding]:
    """Yield that the server takes far longer requests than users send: one of them may fill the KV cache."""
    most = count(flags.get("max_model_len", ""))
    if most is None or longest is None or most < longest.tokens * _FAR_LONGER:
        return
    share, whole = "", server.kv_cache_tokens
    if whole is not None and (part := most * server.engines / whole) >= _MUCH_OF_CACHE:
        share = f"; one of that length takes {min(part, 1.0):.0%} of an engine's KV cache, and others are preempted"
    yield Finding(
        f"max_model_len is {most}, and 99 % of prompts are within {number(longest.prompt_tokens)} tokens, of answers"
        f" within {number(longest.output_tokens)}{share}: lower --max-model-len, unless longer requests are wanted",
        is_problem=False,
    )


def _precision(flags: Mapping[str, str]) -> Iterator[Finding]:
    """Yield that weights have 32 bits: no server needs them, and they take twice the memory and bandwidth."""
    if (dtype := flags.get("dtype", "").removeprefix("torch.")) in ("float32", "float"):
        yield Finding(
            f"dtype is {dtype}: weights and steps take twice the memory and bandwidth of bfloat16; remove --dtype",
            is_problem=True,
        )


def unused_memory(gpus: GpuSnapshot | None, flags: Mapping[str, str]) -> Iterator[Finding]:
    """Yield that memory of every GPU is free that --gpu-memory-utilization keeps from the KV cache."""
    used = [share for gpu in (gpus.gpus if gpus is not None else ()) if (share := memory(gpu)) is not None]
    try:
        asked = float(flags.get("gpu_memory_utilization", ""))
    except ValueError:
        return
    if used and asked < _USUAL_SHARE and max(used) < _USUAL_SHARE - _FREE:
        yield Finding(
            f"{percent(1 - max(used))} of the GPU's memory is free, and gpu_memory_utilization is {asked:g}: raise"
            " --gpu-memory-utilization for a larger KV cache, unless another program needs it",
            is_problem=False,
        )


def _unchunked(
    flags: Mapping[str, str], longest: LongRequests | None, objectives: Objectives, tokens_per_second: float | None
) -> Iterator[Finding]:
    """Yield that prompts are computed whole, in one step each, while all answers stand still."""
    if flags.get("enable_chunked_prefill") != "False":
        return
    how_long, is_problem = "", False
    if longest is not None and tokens_per_second:
        step_s = longest.prompt_tokens / tokens_per_second
        how_long = f", up to {milliseconds(step_s)} for 99 % of prompts"
        is_problem = objectives.itl is not None and step_s > objectives.itl.within_s
    yield Finding(
        "chunked prefill is off: a prompt is computed in one step, and all other answers stand still"
        f" meanwhile{how_long}; remove --no-enable-chunked-prefill",
        is_problem=is_problem,
    )


def _prefix_cache(server: ServerSnapshot, flags: Mapping[str, str]) -> Iterator[Finding]:
    queries, hits = server.prefix_cache_queries, server.prefix_cache_hits
    if flags.get("enable_prefix_caching") == "False":
        yield Finding(
            "prefix caching is off: a shared system prompt is computed again for each request; remove"
            " --no-enable-prefix-caching if yours share one",
            is_problem=False,
        )
    elif queries and hits is not None and queries >= _LEAST_QUERIES and hits / queries < _RARE_HITS:
        yield Finding(
            "the prefix cache is hardly ever hit: put the part that prompts share at their beginning", is_problem=False
        )


def _prefill(
    flags: Mapping[str, str], lengths: RequestLengths | None, objectives: Objectives, tokens_per_second: float
) -> Iterator[Finding]:
    ttft, itl = objectives.ttft, objectives.itl
    within_s = ttft.within_s if ttft is not None else math.inf
    if lengths is not None and (prompt_s := lengths.prompt_tokens / tokens_per_second) > within_s:
        yield Finding(
            f"computing a prompt of the mean length takes {milliseconds(prompt_s)} alone, longer than the TTFT"
            f" objective of {milliseconds(within_s)}: shorten the prompts, share a prefix, or use more GPUs a replica",
            is_problem=True,
        )
    chunk = limits_of(flags).step_tokens
    within_s = min(within_s, itl.within_s) if itl is not None else within_s
    if chunk is not None and (step_s := chunk / tokens_per_second) > within_s:
        yield Finding(
            f"a step full of prompts takes {milliseconds(step_s)}, during which all other answers stand still; lower"
            f" --max-num-batched-tokens from {chunk} to at most {max(int(within_s * tokens_per_second), 1)}",
            is_problem=True,
        )
