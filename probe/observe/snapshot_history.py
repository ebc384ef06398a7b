"""A server's snapshots in little memory, for forecasts: the last hour, and episodes of the days before it. Pure."""

import math
import zlib
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec

from probe.core.snapshot import Histogram, ServerSnapshot
from probe.observe.episodes import EPISODE_NS, Episode, Episodes, regime_of
from probe.observe.splice import spliced

_KEEP_NS = 3600 * 10**9
_KEEP = 720  # an hour at one in 5 s
_EPISODE_PACE_NS = 4.5e9  # one in 5 s, or a little sooner
_FULL_NS = 0.99 * EPISODE_NS  # scrapes come a little early at times
_EARLY_SHARE = 0.8  # of the interval; a scrape that is a little early is kept
# A snapshot takes 2.5 kB, encoded 1.1. Compressed with the first one as dictionary it has 130 bytes: for two hundred
# targets that scrape every 15 s, an hour and 24 episodes take some 18 MiB instead of a quarter of a gigabyte.
_PACK, _UNPACK = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ServerSnapshot)
# Forecasts need only sums and counts; buckets would be most of the memory.
_NEEDED = ("ttft", "itl", "iteration_tokens", "prefill", "prompt_length")


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

    def expect_every(self, interval_s: float) -> None:
        """Note a target's scrape interval. Snapshots in between, for other targets of the page, are not kept."""
        self._interval_s = min(self._interval_s, interval_s)

    def add(self, snapshot: ServerSnapshot) -> None:
        """Keep a snapshot unless it is early. Those that are older than an hour become episodes."""
        is_expected = self._recent and self._interval_s < math.inf
        if is_expected and snapshot.at_ns - self._recent[-1][0] < _EARLY_SHARE * self._interval_s * 1e9:
            return
        thin = replace(slim(snapshot, _NEEDED), waiting_by_reason={})
        data = _PACK.encode(thin)
        self._like = self._like or data
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

    @property
    def seconds(self) -> float:
        """The seconds of which snapshots are kept."""
        kept_ns = len(self._episodes.kept) * EPISODE_NS
        if self._recent:
            kept_ns += self._recent[-1][0] - (self._ending or self._recent)[0][0]
        return kept_ns * 1e-9

    @property
    def packed(self) -> PackedSnapshots:
        """The snapshots, compressed; `unpack` reverses it."""
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
        regime = regime_of(_unpacked(self._like, packed))
        if regime is not None:
            self._episodes.add(Episode(self._ended, self._ending[-1][0], regime, packed))
        self._ended += 1
        self._ending.clear()


def unpack(packed: PackedSnapshots) -> list[ServerSnapshot]:
    """Return the snapshots of a history as one series without gaps, with the fields that forecasts need."""
    return spliced([_unpacked(packed.like, each) for each in packed.series])


def _unpacked(like: bytes, packed: Sequence[bytes]) -> list[ServerSnapshot]:
    return [_UNPACK.decode(zlib.decompressobj(zdict=like).decompress(each)) for each in packed]


def slim(snapshot: ServerSnapshot, histograms: Collection[str]) -> ServerSnapshot:
    """Return the snapshot with only these histograms, reduced to sum and count, without flags and replicas."""
    kept = {name: snapshot.histograms[name] for name in histograms if name in snapshot.histograms}
    sums = {name: Histogram(((float("inf"), one.count),), one.sum) for name, one in kept.items()}
    return replace(snapshot, histograms=sums, flags={}, finished={}, outcomes={}, replicas={})
