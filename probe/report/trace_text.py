"""A trace as text: how much, how fast, how long, and what its prompts have in common."""

from probe.core.measured_length import measured_of
from probe.core.trace import Trace
from probe.report.figures import number, percent


def trace_words(trace: Trace) -> str:
    """Return a trace as labelled lines."""
    sent = trace.requests
    seconds = trace.seconds
    when = "no times: use --rates, --concurrency or a search"
    if seconds:
        when = f"{number(seconds)} s, {number(len(sent) / seconds)} requests/s"
    prompts = [request.prompt_tokens for request in sent]
    shared = sum(request.shared_tokens for request in sent) / sum(prompts)
    left_out = [f"{trace.skipped} without a prompt or an answer left out"] if trace.skipped else []
    cut = ["the file has more, which is not read"] if trace.is_cut else []
    lines = {
        "Requests": "; ".join([f"{len(sent)}", *left_out, *cut]),
        "Times": when,
        "Prompts": f"{measured_of(prompts)} tokens",
        "Answers": f"{measured_of([request.output_tokens for request in sent])} tokens",
        "Prefixes": f"{percent(shared)} of the prompt tokens are in blocks that another prompt begins with too",
    }
    return "\n".join(f"{f'{label}:':<10}{words}" for label, words in lines.items())
