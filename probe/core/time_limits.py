"""How long Kneewatch waits for an answer: the limits follow from what was asked for, unless somebody sets one. Pure.

A request has two limits. One is for the whole answer: ROOM times what the objectives allow the longest answer of the
workload, so that a slow answer is measured and not cut off. The other is for the next sign of an answer, so that a
server that hangs is found as soon with a long answer as with a short one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from probe.core.durations import parse_duration
from probe.core.objectives import LATENCIES, Objective, Objectives

# An answer that takes up to four times what its objectives allow is still measured, and found too slow.
ROOM = 4.0
LEAST_S = 30.0
OURS = "Kneewatch's time limit"
UNFINISHED = "no full answer"
STOPPED = "nothing more"
_NOTHING_PROMISED = Objectives("")


def out_of_time(what: str, raised_by: str) -> str:
    """Return the line for a limit that has struck: `what` was missing, and what raises the limit, if anything does."""
    return f"{what}, {OURS}{f'; {raised_by} raises it' if raised_by else ''}"


def was_arriving(detail: str | None) -> bool:
    """Return whether this detail of a failed request says that its answer still arrived at the time limit."""
    return detail is not None and UNFINISHED in detail and OURS in detail and STOPPED not in detail


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The time limits of requests (s).

    `tokens`: the longest answer of the workload; 0: it generates none. `set_s`: the limit of the whole answer that
    somebody has set, which is the only one then. `most_s`: the limit is never longer. `raised_by`: the option or key
    that raises it.
    """

    objectives: Objectives = _NOTHING_PROMISED
    tokens: int = 0
    set_s: float | None = None
    most_s: float = math.inf
    raised_by: str = ""

    def answer_s(self, tokens: int = 0) -> float:
        """Return the limit of a whole answer of `tokens`, or of the longest one if that is longer."""
        if self.set_s is not None:
            return self.set_s
        parts_s = _parts_s(self.objectives, max(tokens, self.tokens), is_at_least_usual=True)
        return min(max(LEAST_S, ROOM * max(parts_s)), self.most_s)

    @property
    def silence_s(self) -> float:
        """Return the limit between two signs of an answer, and up to the first one; infinity: it has none of its own.

        Without a TTFT objective, an answer may come all at once at the end of its E2E objective.
        """
        if self.set_s is not None:
            return math.inf
        limits = self.objectives.latencies()
        waits_s = [ROOM * limits[name].within_s for name in ("ttft", "tpot", "itl") if name in limits]
        if "ttft" not in limits and "e2e" in limits:
            waits_s.append(ROOM / 2 * limits["e2e"].within_s)
        return max(LEAST_S, *waits_s) if waits_s else LEAST_S


def cannot_end(objectives: Objectives, tokens: int, limit_s: float, limit: str) -> str | None:
    """Return that an answer of `tokens`, as slow as its objectives allow, cannot end within a limit; None: it can."""
    good_s = longest_good_s(objectives, tokens)
    if limit_s >= good_s:
        return None
    named = f" of {tokens} tokens" if tokens else ""
    return f"an answer{named} may take {good_s:.3g} s by its objectives, and cannot end within {limit}; raise it"


def longest_good_s(objectives: Objectives, tokens: int) -> float:
    """Return how long an answer of `tokens` may take within its objectives; by the usual ones where none say."""
    return min(_parts_s(objectives, tokens, is_at_least_usual=False))


def _parts_s(objectives: Objectives, tokens: int, *, is_at_least_usual: bool) -> Iterator[float]:
    """Yield what each objective allows an answer, in seconds: E2E, and TTFT and TPOT together.

    `is_at_least_usual`: no TTFT and TPOT count as stricter than the usual ones.
    """
    limits = objectives.latencies()
    if "e2e" in limits:
        yield limits["e2e"].within_s
    by_token = limits.get("tpot") or limits.get("itl")
    if "e2e" not in limits or by_token is not None:
        ttft_s, tpot_s = (_within_s(limits.get("ttft"), "ttft"), _within_s(by_token, "tpot"))
        if is_at_least_usual:
            ttft_s, tpot_s = max(ttft_s, _USUAL_S["ttft"]), max(tpot_s, _USUAL_S["tpot"])
        yield ttft_s + max(tokens - 1, 0) * tpot_s


_USUAL_S = {name: parse_duration(row.usual) for name, row in LATENCIES.items() if row.usual}


def _within_s(objective: Objective | None, name: str) -> float:
    return objective.within_s if objective is not None else _USUAL_S[name]
