"""A workload of varying lengths, and a trace, as text."""

from collections.abc import Mapping

from probe.core.token_length import measured_of, stored_length
from probe.core.trace import Trace
from probe.report.figures import number, percent


def workload_lines(workload: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return label and text of a workload's lengths as they were drawn; nothing if its keys state them."""
    lengths = []
    for key, name in (("prompt_tokens", "prompts"), ("output_tokens", "answers")):
        value = workload.get(key)
        length = stored_length(value) if isinstance(value, Mapping) else None
        if length is None:
            return []
        lengths.append(f"{name} of {length} tokens")
    parts, trace = workload.get("parts"), workload.get("trace")
    kind = f"the trace {workload.get('name')} ({trace})" if trace else "as users send"
    return [("Workload", f"{_mixed(parts) if isinstance(parts, list) else kind}: {'; '.join(lengths)}")]


def workload_words(workload: Mapping[str, object]) -> str:
    """Return name and lengths of a workload, as stored in a result: which one a capacity is for."""
    stated = [workload.get(key) for key in ("prompt_tokens", "output_tokens")]
    measured = [stored_length(each) for each in stated if isinstance(each, Mapping)]
    lengths = ""
    if len(measured) == len(stated) and all(measured):
        lengths = f" ({' + '.join(f'{each.mean:,.0f}' for each in measured if each)} tokens on average)"
    elif all(isinstance(each, int) or (isinstance(each, Mapping) and "median" in each) for each in stated):
        words = [f"median {each.get('median')}" if isinstance(each, Mapping) else f"{each}" for each in stated]
        lengths = f" ({' + '.join(words)} tokens)"
    return f"workload {workload.get('name')}{lengths}"


def _mixed(parts: list[Mapping[str, object]]) -> str:
    """Return the parts of a mixture, as stored in a result."""
    shares = [(str(part.get("name")), part.get("share")) for part in parts]
    words = [f"{share:.0%} {name}" if isinstance(share, float) else name for name, share in shares]
    return ", ".join(words) if len(words) > 1 else shares[0][0] if shares else "mixed"


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
    cut = ["the rest of the file is not read"] if trace.is_cut else []
    lines = {
        "Requests": "; ".join([f"{len(sent)}", *left_out, *cut]),
        "Times": when,
        "Prompts": f"{measured_of(prompts)} tokens",
        "Answers": f"{measured_of([request.output_tokens for request in sent])} tokens",
        "Prefixes": f"{percent(shared)} of the prompt tokens are in blocks that other prompts begin with",
    }
    return "\n".join(f"{f'{label}:':<10}{words}" for label, words in lines.items())
