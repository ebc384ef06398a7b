"""The table of `kneewatch sim --list`: what each made-up server is, and what it meets first. Pure.

Input: profiles. Output: text. All figures are for one kind of request, follow from the profile alone, and leave noise
out. They are no capacities: those depend on the objectives and on how requests arrive.
"""

from collections.abc import Iterable

from probe.simulator.cost import Batch, Profile

_PROMPT, _OUTPUT = 400, 150
_HEAD = ("profile", "first token", "each token", "together", "then mostly", "what it is")
_NOTE = (
    f"For {_PROMPT} tokens in and {_OUTPUT} out: the times of a request alone; how many run together, and what keeps"
    "\nmore of them waiting; what a step's time goes to then, or what stands before the engine."
)


def table(profiles: Iterable[Profile]) -> str:
    """A line each, under a heading and a note."""
    rows = [_HEAD, *map(_row, profiles)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join((_NOTE, "", *lines))


def _row(profile: Profile) -> tuple[str, ...]:
    front, cost = profile.front_end, profile.cost
    whole, rest = divmod(_PROMPT, profile.max_num_batched_tokens)
    chunks = [profile.max_num_batched_tokens] * whole + [rest] * (rest > 0)
    first_s = front.request_seconds(_PROMPT) + front.per_output_token_s
    computed = 0
    for tokens in chunks:
        first_s += cost.step_seconds(Batch(1, tokens, computed, tokens * (computed + tokens / 2)))
        computed += tokens
    token_s = cost.step_seconds(Batch(1, 1, _PROMPT + _OUTPUT // 2))
    together, by = most_together(profile)
    return (
        profile.name,
        f"{first_s * 1e3:.0f} ms",
        f"{token_s * 1e3:.1f} ms",
        f"{together} ({by})",
        mostly(profile, together),
        profile.description,
    )


def most_together(profile: Profile) -> tuple[int, str]:
    """How many such requests run at once, and whether seats or the KV cache allow no more."""
    in_cache = profile.usable_blocks // profile.blocks_for(_PROMPT + _OUTPUT)
    return (in_cache, "KV cache") if in_cache < profile.max_num_seqs else (profile.max_num_seqs, "seats")


def mostly(profile: Profile, together: int) -> str:
    """The largest part of a step in which so many decode and new ones come as old ones end; or the front end."""
    cost, front = profile.cost, profile.front_end
    starting = together / _OUTPUT  # a step
    prompt_tokens = min(starting * _PROMPT, profile.max_num_batched_tokens - together)
    batch = Batch(
        together,
        together + round(prompt_tokens),
        together * (_PROMPT + _OUTPUT // 2),
        prompt_tokens * _PROMPT / 2,
    )
    step_s = cost.step_seconds(batch)
    if starting * front.request_seconds(_PROMPT) + together * front.per_output_token_s > step_s:
        return "front end"
    parts = {
        "host": cost.host_s + cost.per_sequence_s * together,
        "weights": cost.weights_s,
        "KV cache": cost.per_kv_token_s * batch.kv_tokens,
        "compute": cost.per_token_s * batch.tokens,
        "attention": cost.per_pair_s * batch.pairs,
    }
    return max(parts, key=parts.__getitem__)
