"""The table of `kneewatch sim --list`: the profiles of the mock server, and which limit each meets first. Pure.

Input: profiles. Output: text. All numbers are for one kind of request, follow from the profile alone and leave noise
out. They are not capacities, which depend on the objectives and on how requests arrive.
"""

from collections.abc import Iterable

from probe.simulator.cost import Batch, Profile

_PROMPT, _OUTPUT = 400, 150
_HEAD = ("profile", "TTFT", "TPOT", "at most running", "main cost of a step", "description")
_NOTE = f"""\
All numbers are for requests of {_PROMPT} prompt and {_OUTPUT} output tokens:
  TTFT, TPOT           latencies of a single request
  at most running      how many run at once, and which limit keeps others waiting
  main cost of a step  the largest part of a step with that many, or the front end before the engine"""


def table(profiles: Iterable[Profile]) -> str:
    """Return a line for each profile, under a heading and a note."""
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
    together, by = max_running(profile)
    return (
        profile.name,
        f"{first_s * 1e3:.0f} ms",
        f"{token_s * 1e3:.1f} ms",
        f"{together} ({by})",
        main_cost(profile, together),
        profile.description,
    )


def max_running(profile: Profile) -> tuple[int, str]:
    """Return how many such requests run at once, and whether max_num_seqs or the KV cache is the limit."""
    in_cache = profile.usable_blocks // profile.blocks_for(_PROMPT + _OUTPUT)
    return (in_cache, "KV cache") if in_cache < profile.max_num_seqs else (profile.max_num_seqs, "max_num_seqs")


def main_cost(profile: Profile, together: int) -> str:
    """Return the largest part of a step when `together` requests run, each replaced as it ends; or "front end"."""
    cost, front = profile.cost, profile.front_end
    starting = together / _OUTPUT  # requests that begin in a step
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
