"""Two hours of a server's snapshots in little memory, for forecasts. Pure."""

import math
import zlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

import msgspec

from probe.core.snapshot import Histogram, ServerSnapshot

_KEEP_NS = 7200 * 10**9
_KEEP = 1440  # two hours at one in 5 s
_EARLY_SHARE = 0.8  # of the interval; a scrape that is a little early is kept
# A snapshot takes 2.5 kB, encoded 1.1. Compressed with the first one as dictionary it has 130 bytes: for two hundred
# targets that scrape every 15 s, two hours take some 20 MiB instead of a quarter of a gigabyte.
_PACK, _UNPACK = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ServerSnapshot)
# Forecasts need only sums and counts; buckets would be most of the memory.
_NEEDED = ("ttft", "itl", "iteration_tokens", "prefill", "prompt_length")


@dataclass(frozen=True, slots=True)
class PackedSnapshots:
    """Snapshots, compressed, oldest first. `like`: the dictionary, an encoded snapshot."""

    like: bytes
    each: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.each)


class SnapshotHistory:
    """The last two hours of one server process, at most 1440 snapshots, compressed."""

    def __init__(self) -> None:
        self._packed: deque[tuple[int, bytes]] = deque(maxlen=_KEEP)
        self._like = b""
        self._interval_s = math.inf

    def expect_every(self, interval_s: float) -> None:
        """Note a target's scrape interval. Snapshots in between, for other targets of the page, are not kept."""
        self._interval_s = min(self._interval_s, interval_s)

    def add(self, snapshot: ServerSnapshot) -> None:
        """Keep a snapshot unless it is early, and drop those that are older than two hours."""
        is_expected = self._packed and self._interval_s < math.inf
        if is_expected and snapshot.at_ns - self._packed[-1][0] < _EARLY_SHARE * self._interval_s * 1e9:
            return
        thin = replace(slim(snapshot, _NEEDED), waiting_by_reason={})
        data = _PACK.encode(thin)
        self._like = self._like or data
        packer = zlib.compressobj(level=1, zdict=self._like)
        self._packed.append((thin.at_ns, packer.compress(data) + packer.flush()))
        while self._packed[0][0] < thin.at_ns - _KEEP_NS:
            self._packed.popleft()

    def clear(self) -> None:
        self._packed.clear()
        self._like = b""

    @property
    def seconds(self) -> float:
        """The time between the oldest and the newest snapshot."""
        return (self._packed[-1][0] - self._packed[0][0]) * 1e-9 if self._packed else 0.0

    @property
    def packed(self) -> PackedSnapshots:
        """The snapshots, compressed; `unpack` reverses it."""
        return PackedSnapshots(self._like, tuple(packed for _, packed in self._packed))


def unpack(packed: PackedSnapshots) -> list[ServerSnapshot]:
    """Return the snapshots of a history, with the fields that forecasts need."""
    return [_UNPACK.decode(zlib.decompressobj(zdict=packed.like).decompress(each)) for each in packed.each]


def slim(snapshot: ServerSnapshot, histograms: Collection[str]) -> ServerSnapshot:
    """Return the snapshot with only these histograms, reduced to sum and count, and without flags."""
    kept = {name: snapshot.histograms[name] for name in histograms if name in snapshot.histograms}
    sums = {name: Histogram(((float("inf"), one.count),), one.sum) for name, one in kept.items()}
    return replace(snapshot, histograms=sums, flags={}, finished={}, outcomes={})
