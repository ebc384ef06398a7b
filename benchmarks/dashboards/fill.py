"""Thirty days of fifty targets, in blocks as a Prometheus that keeps 30 days has them: 54 hours each.

The samples of a few targets are generated and encoded, in a process for each; the other targets are copies of these.
"""

import pickle
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from alerts.windows import DAY_S, HOUR_S
from benchmarks.backfill import Floats
from benchmarks.blocks import Chunks, encode, write_block
from benchmarks.dashboards.pages import Row, labels_of, rows, values

BLOCK_S = 54 * HOUR_S
END_S = 1_795_500_000 // BLOCK_S * BLOCK_S  # November 2026


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of the folder."""

    series: int
    samples: int
    blocks: int
    bytes: int


def fill(folder: Path, targets: Sequence[str], *, days: float, step_s: float, originals: int = 2) -> Stored:
    """Write the blocks into `folder`. `originals` is the number of targets with samples of their own."""
    every = rows()
    starts = [END_S - BLOCK_S * i for i in range(int(np.ceil(days * DAY_S / BLOCK_S)), 0, -1)]
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(partial(_encode, every, starts, step_s, scratch), range(originals)))
        size = sum(pool.map(partial(_write, folder, every, targets, originals), enumerate(starts)))
    shutil.rmtree(scratch)
    own = sum(not row.of_target for row in every)
    series = (len(every) - own) * len(targets) + own
    return Stored(series, series * round(BLOCK_S / step_s) * len(starts), len(starts), size)


def _encode(every: Sequence[Row], starts: Sequence[float], step_s: float, scratch: Path, original: int) -> None:
    rng = np.random.default_rng(original)
    carry = np.zeros(len(every))
    for number, start_s in enumerate(starts):
        times: Floats = start_s + step_s * np.arange(round(BLOCK_S / step_s), dtype=np.float64)
        made = encode((times * 1000).astype(np.int64), values(every, times, rng, carry))
        _scratch(scratch, original, number).write_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))


def _write(folder: Path, every: Sequence[Row], targets: Sequence[str], originals: int, block: tuple[int, float]) -> int:
    number, start_s = block
    made = [pickle.loads(_scratch(folder / "scratch", i, number).read_bytes()) for i in range(originals)]  # noqa: S301 - ours
    start_ms = round(start_s * 1000)
    return write_block(folder, number, (start_ms, start_ms + round(BLOCK_S * 1000)), _groups(every, targets, made))


def _groups(
    every: Sequence[Row], targets: Sequence[str], made: Sequence[Sequence[Chunks]]
) -> Iterator[list[tuple[Mapping[str, str], Chunks]]]:
    """Yield the series target by target; those without a target come with the first."""
    for i, target in enumerate(targets):
        pairs = zip(every, made[i % len(made)], strict=True)
        yield [(labels_of(row, target), chunks) for row, chunks in pairs if row.of_target or i == 0]


def _scratch(folder: Path, original: int, number: int) -> Path:
    return folder / f"{original}-{number}"
