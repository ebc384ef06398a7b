"""Short episodes of a server's snapshots, kept by regime, so that forecasts know last night's peak. Pure.

A regime is how many requests ran, how full the KV cache was, and how much of the work was prompts. A server spends most
hours in one or two of them, and shows in the others what its capacity depends on.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from probe.core.snapshot import ServerSnapshot

EPISODE_NS = 120 * 10**9  # some residences of usual requests, and a dozen windows
_KEEP = 24
_KEEP_OF_REGIME = 4
_KEEP_NS = 72 * 3600 * 10**9  # Friday's peak is known on Monday morning
_LEVELS_PER_DOUBLING = 2  # of the running requests
_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Regime:
    """The conditions of an episode, in classes. `level`: of the requests that ran."""

    level: int
    kv_quarter: int
    prefill_quarter: int


@dataclass(frozen=True, slots=True)
class Episode:
    """Two minutes of snapshots, each packed. `number`: counts all episodes of the server, kept or not."""

    number: int
    ended_ns: int
    regime: Regime
    packed: tuple[bytes, ...]


class Episodes:
    """The newest episodes of each regime: at most four of one, and 24 together, none older than three days."""

    def __init__(self) -> None:
        self.kept: list[Episode] = []  # oldest first

    def add(self, episode: Episode) -> None:
        """Keep an episode; the ones that it replaces are dropped."""
        self.kept.append(episode)
        self.drop_old(episode.ended_ns)
        of_regime = [each for each in self.kept if each.regime == episode.regime]
        if len(of_regime) > _KEEP_OF_REGIME:
            self.kept.remove(of_regime[0])
        if len(self.kept) > _KEEP:
            self.kept.remove(self._most_redundant())

    def drop_old(self, now_ns: int) -> None:
        """Drop the episodes that are older than three days."""
        while self.kept and self.kept[0].ended_ns < now_ns - _KEEP_NS:
            del self.kept[0]

    def clear(self) -> None:
        self.kept.clear()

    def _most_redundant(self) -> Episode:
        """Return the oldest episode of the most frequent regime at the most frequent level.

        Levels come first: how many requests ran matters more to a forecast than the rest, so the highest level stays.
        """
        levels = Counter(each.regime.level for each in self.kept)
        regimes = Counter(each.regime for each in self.kept)
        return max(self.kept, key=lambda each: (levels[each.regime.level], regimes[each.regime], -each.ended_ns))


def regime_of(snapshots: Sequence[ServerSnapshot]) -> Regime | None:
    """Return the regime of an episode; None if it shows nothing: the server was idle, or does not count tokens."""
    running = fmean(each.running or 0.0 for each in snapshots)
    first, last = snapshots[0], snapshots[-1]
    if None in (first.prompt_tokens, first.generation_tokens, last.prompt_tokens, last.generation_tokens):
        return None
    prompt = (last.prompt_tokens or 0.0) - (first.prompt_tokens or 0.0)
    generated = (last.generation_tokens or 0.0) - (first.generation_tokens or 0.0)
    if not (1 <= running < math.inf and 0 < prompt + generated < math.inf):
        return None
    return Regime(
        level=round(_LEVELS_PER_DOUBLING * math.log2(running)),
        kv_quarter=_quarter(fmean(each.kv_cache_usage or 0.0 for each in snapshots)),
        prefill_quarter=_quarter(prompt / (prompt + generated)),
    )


def _quarter(share: float) -> int:
    return min(max(int(_QUARTERS * share), 0), _QUARTERS - 1) if math.isfinite(share) else 0
