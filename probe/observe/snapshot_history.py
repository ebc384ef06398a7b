"""A server's snapshots in little memory, for forecasts: the last hour, and episodes of the days before it, joined
without gaps. Pure.

An episode is kept by its regime: how many requests ran, how full the KV cache was, and how much of the work was
prompts. A server spends most hours in one or two regimes, and shows in the others what its capacity depends on.
"""

import math
import zlib
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

import msgspec

from probe.core.server_values import ENGINE_VALUES, plain_counters
from probe.core.snapshot import Histogram, ServerSnapshot, StepSums, as_fields

EPISODE_NS = 120 * 10**9  # some residences of usual requests, and a dozen windows
_KEEP_EPISODES = 24
_KEEP_OF_REGIME = 4
_KEEP_EPISODES_NS = 72 * 3600 * 10**9  # Friday's peak is known on Monday morning
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
    """Two minutes of snapshots, each packed. `number`: counts all episodes of the server, kept or not; `tokens`: that
    it computed.
    """

    number: int
    ended_ns: int
    regime: Regime
    packed: tuple[bytes, ...]
    tokens: float = 0.0


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
        if len(self.kept) > _KEEP_EPISODES:
            self.kept.remove(self._most_redundant())

    def drop_old(self, now_ns: int) -> None:
        """Drop the episodes that are older than three days."""
        while self.kept and self.kept[0].ended_ns < now_ns - _KEEP_EPISODES_NS:
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


_KEEP_NS = 3600 * 10**9
_KEEP = 720  # an hour at one in 5 s
_EPISODE_PACE_NS = 4.5e9  # one in 5 s, or a little sooner
_FULL_NS = 0.99 * EPISODE_NS  # scrapes come a little early at times
_EARLY_SHARE = 0.8  # of the interval; a scrape that is a little early is kept
# A snapshot takes 2.5 kB, encoded 1.1. Compressed with the first one as dictionary it has 130 bytes: for two hundred
# targets that scrape every 15 s, an hour and 24 episodes take some 18 MiB instead of a quarter of a gigabyte.
_PACK, _UNPACK = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ServerSnapshot)
# Forecasts need only sums and counts; buckets would be most of the memory.
NEEDED = ("ttft", "itl", "iteration_tokens", "prefill", "prompt_length")


_NEWS = 0.02  # of the tokens in the history: a forecast from 2 % more would be the same within chance


@dataclass(frozen=True, slots=True)
class Evidence:
    """How far a history had come: the tokens that the server had computed, and how often it was cleared before."""

    tokens: float
    cleared: int


@dataclass(frozen=True, slots=True)
class PackedSnapshots:
    """Snapshots, compressed, in series without gaps, oldest first. `like`: the dictionary, an encoded snapshot."""

    like: bytes
    series: tuple[tuple[bytes, ...], ...]

    def __len__(self) -> int:
        return sum(map(len, self.series))


class SnapshotHistory:
    """What one server process showed, compressed: at most 720 snapshots of the last hour, and 24 episodes."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, bytes]] = deque()
        self._ending: list[tuple[int, bytes]] = []  # older than recent, not yet enough for an episode
        self._episodes = Episodes()
        self._ended = 0  # episodes, kept or not
        self._like = b""
        self._interval_s = math.inf
        self._tokens = 0.0  # that the server had computed, by the newest snapshot
        self._cleared = 0

    def keep_at_interval(self, interval_s: float) -> None:
        """Note a target's scrape interval. Snapshots in between, for other targets of the page, are not kept."""
        self._interval_s = min(self._interval_s, interval_s)

    def add(self, snapshot: ServerSnapshot) -> None:
        """Keep a snapshot unless it is early. Those that are older than an hour become episodes."""
        is_expected = self._recent and self._interval_s < math.inf
        if is_expected and snapshot.at_ns - self._recent[-1][0] < _EARLY_SHARE * self._interval_s * 1e9:
            return
        thin = replace(slim(snapshot, NEEDED), waiting_by_reason={})
        data = _PACK.encode(thin)
        self._like = self._like or data
        self._tokens = _tokens(thin)
        packer = zlib.compressobj(level=1, zdict=self._like)
        self._recent.append((thin.at_ns, packer.compress(data) + packer.flush()))
        while self._recent[0][0] < thin.at_ns - _KEEP_NS or len(self._recent) > _KEEP:
            self._let_go(self._recent.popleft())
        self._episodes.drop_old(thin.at_ns)

    def clear(self) -> None:
        self._recent.clear()
        self._ending.clear()
        self._episodes.clear()
        self._like = b""
        self._tokens = 0.0
        self._cleared += 1

    @property
    def evidence(self) -> Evidence:
        """Return how far the history has come."""
        return Evidence(self._tokens, self._cleared)

    def has_news(self, since: Evidence) -> bool:
        """Return whether a forecast may differ from one that was made then: by a token in fifty, or another server."""
        if since.cleared != self._cleared or not self._recent:
            return since != self.evidence
        first = (self._ending or self._recent)[0][1]
        kept = self._tokens - _tokens(*_unpacked(self._like, (first,))) + sum(e.tokens for e in self._episodes.kept)
        return self._tokens - since.tokens > _NEWS * kept

    @property
    def seconds(self) -> float:
        """Return the time (s) that the kept snapshots cover."""
        kept_ns = len(self._episodes.kept) * EPISODE_NS
        if self._recent:
            kept_ns += self._recent[-1][0] - (self._ending or self._recent)[0][0]
        return kept_ns * 1e-9

    @property
    def packed(self) -> PackedSnapshots:
        """Return the snapshots, compressed; `unpack` reverses it."""
        series: list[tuple[bytes, ...]] = []
        number = -1
        for episode in self._episodes.kept:
            if episode.number == number + 1 and series:
                series[-1] += episode.packed
            else:
                series.append(episode.packed)
            number = episode.number
        recent = tuple(packed for _, packed in (*self._ending, *self._recent))
        if series and number == self._ended - 1:
            series[-1] += recent
        else:
            series.append(recent)
        return PackedSnapshots(self._like, tuple(series))

    def _let_go(self, snapshot: tuple[int, bytes]) -> None:
        """Take a snapshot that is no longer recent into an episode. Of those more than one in 5 s, some are dropped."""
        ending = self._ending
        if ending and snapshot[0] - ending[-1][0] < _EPISODE_PACE_NS:
            return
        ending.append(snapshot)
        if len(ending) < 2:  # noqa: PLR2004 - no window
            return
        # As if the last one had an interval, too: episodes of two minutes then take no more than two minutes did.
        if ending[-1][0] - ending[0][0] + ending[-1][0] - ending[-2][0] >= _FULL_NS:
            self._end_episode()

    def _end_episode(self) -> None:
        packed = tuple(packed for _, packed in self._ending)
        snapshots = _unpacked(self._like, packed)
        regime = regime_of(snapshots)
        if regime is not None:
            tokens = _tokens(snapshots[-1]) - _tokens(snapshots[0])
            self._episodes.add(Episode(self._ended, self._ending[-1][0], regime, packed, tokens))
        self._ended += 1
        self._ending.clear()


def unpack(packed: PackedSnapshots) -> list[ServerSnapshot]:
    """Return the snapshots of a history as one series without gaps, with the fields that forecasts need."""
    return spliced([_unpacked(packed.like, each) for each in packed.series])


def _tokens(snapshot: ServerSnapshot) -> float:
    """Return the tokens that the server had computed. They are finite: what comes next may be compared with it."""
    counted = (snapshot.prompt_tokens or 0.0) + (snapshot.generation_tokens or 0.0)
    return counted if math.isfinite(counted) else 0.0


def _unpacked(like: bytes, packed: Sequence[bytes]) -> list[ServerSnapshot]:
    return [_UNPACK.decode(zlib.decompressobj(zdict=like).decompress(each)) for each in packed]


def slim(snapshot: ServerSnapshot, histograms: Collection[str]) -> ServerSnapshot:
    """Return the snapshot with only these histograms, reduced to sum and count, without flags and replicas."""
    kept = {name: snapshot.histograms[name] for name in histograms if name in snapshot.histograms}
    sums = {name: Histogram(((float("inf"), one.count),), one.sum) for name, one in kept.items()}
    return replace(snapshot, histograms=sums, flags={}, finished={}, outcomes={}, replicas={}, counted_apart={})


_SEAM_NS = 10**6
_COUNTERS = plain_counters()
_ENGINE_COUNTERS = plain_counters(ENGINE_VALUES)
_STEP_SUMS = tuple(field.name for field in fields(StepSums))


def spliced(series: Sequence[Sequence[ServerSnapshot]]) -> list[ServerSnapshot]:
    """Return all snapshots as one series. Each series after the first continues, 1 ms later, where the last ended.

    What the server counted between two series is subtracted from all later snapshots, as is the time: a rate is never
        taken over unknown hours.
    """
    found: list[ServerSnapshot] = []
    for each in series:
        if not each:
            continue
        skipped_ns, growth = 0, dict[str, float]()
        if found:
            skipped_ns = each[0].at_ns - found[-1].at_ns - _SEAM_NS
            before = dict(_counters(found[-1]))
            growth = {name: value - before.get(name, value) for name, value in _counters(each[0])}
        found += [_without(snapshot, skipped_ns, growth) for snapshot in each]
    return found


def _counters(snapshot: ServerSnapshot) -> Iterator[tuple[str, float]]:
    for name in _COUNTERS:
        if (value := snapshot.value(name)) is not None:
            yield name, value
    for engine, one in snapshot.by_engine.items():
        for name in _ENGINE_COUNTERS:
            if (value := getattr(one, name)) is not None:
                yield f"{name}/{engine}", value
    for size, sums in snapshot.step_sums.items():
        for name in _STEP_SUMS:
            yield f"{name}/steps of {size}", getattr(sums, name)
    for name, histogram in snapshot.histograms.items():
        yield f"{name}/sum", histogram.sum
        yield f"{name}/count", histogram.count


def _without(snapshot: ServerSnapshot, skipped_ns: int, growth: Mapping[str, float]) -> ServerSnapshot:
    """Return the snapshot as if neither this time had passed nor the counters had grown by this."""
    if not growth:
        return snapshot
    own = dict(_counters(snapshot))
    left: dict[str, Any] = {name: value - growth.get(name, 0.0) for name, value in own.items()}
    engines = {
        engine: replace(one, **{name: left[key] for name in _ENGINE_COUNTERS if (key := f"{name}/{engine}") in left})
        for engine, one in snapshot.by_engine.items()
    }
    return replace(
        snapshot,
        at_ns=snapshot.at_ns - skipped_ns,
        wall_s=snapshot.wall_s - skipped_ns * 1e-9,
        by_engine=engines,
        step_sums={
            size: StepSums(**{name: left[f"{name}/steps of {size}"] for name in _STEP_SUMS})
            for size in snapshot.step_sums
        },
        **as_fields(
            {**snapshot.others}
            | {name: left[name] for name in _COUNTERS if name in left}
            | {
                name: Histogram(((float("inf"), left[f"{name}/count"]),), left[f"{name}/sum"])
                for name in snapshot.histograms
            }
        ),
    )
