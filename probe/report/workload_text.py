"""A workload that was learnt from users as text."""

from collections.abc import Mapping

from probe.core.measured_length import stored_length


def workload_lines(workload: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return label and text of the lengths of a workload that was learnt from users; none for another workload."""
    parts = []
    for key, name in (("prompt_tokens", "prompts"), ("output_tokens", "answers")):
        value = workload.get(key)
        length = stored_length(value) if isinstance(value, Mapping) else None
        if length is None:
            return []
        parts.append(f"{name} of {length} tokens")
    return [("Workload", f"as users send: {'; '.join(parts)}")]
