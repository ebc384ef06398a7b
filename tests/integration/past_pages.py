"""Histories of vLLM servers for a Prometheus, as text that promtool makes blocks of: pages made in virtual time."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.capacity.cases import CASES
from probe.core.snapshot import ServerSnapshot
from probe.scrape import vllm
from probe.scrape.reads import names

_GAUGES = ("running", "waiting", "kv_cache_usage")
_COUNTERS = (
    "preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
)  # fmt: skip
_WHOLE = ("ttft", "tpot", "e2e", "prompt_length", "output_length")
_SUMS = ("itl", "queue", "prefill", "iteration_tokens")


def simulated(
    case: str, rates: Sequence[float], *, minutes: float, every_s: int = 15, seed: int = 1
) -> list[ServerSnapshot]:
    """Return the scrapes of a server that got these requests/s one after another, each for so many minutes."""
    server = CASES[case].server(seed, rates[0], CASES[case].workload)
    found = []
    for number, rate in enumerate(rates):
        server.set_users(rate)
        for second in range(0, round(minutes * 60), every_s):
            server.advance(number * minutes * 60.0 + second)
            found.append(server.snapshot())
    return found


@dataclass(frozen=True)
class Page:
    """One server's scrapes in a Prometheus: its labels, when the last one was, and what is different about them.

    `times`: how often the scrapes are repeated, one after another. `prefix`: how names begin. `old`: by vLLM's older
    names. `reset_at`, `gap`: shares of the time at which its counters began anew, and without scrapes. `without`: names
    whose series were dropped.
    """

    labels: Mapping[str, str]
    scrapes: Sequence[ServerSnapshot]
    ends_s: float
    times: int = 1
    prefix: str = "vllm:"
    old: bool = False
    reset_at: float | None = None
    gap: tuple[float, float] | None = None
    without: Sequence[str] = ()
    more: Mapping[str, str] = field(default_factory=lambda: {"engine": "0"})
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        every_s = self.scrapes[1].at_ns * 1e-9 - self.scrapes[0].at_ns * 1e-9
        many = len(self.scrapes) * self.times
        first, last = self.scrapes[0], self.scrapes[-1]
        base: dict[str, float] = {}
        for i in range(many):
            share = i / many
            if self.gap is not None and self.gap[0] <= share < self.gap[1]:
                continue
            turn, scrape = i // len(self.scrapes), self.scrapes[i % len(self.scrapes)]
            at = f"{self.ends_s - (many - 1 - i) * every_s:.3f}"
            for series, value, is_counter in self._samples(scrape):
                if is_counter and (turn or self.reset_at is not None):
                    value += turn * self._grown(series, first, last)  # noqa: PLW2901
                    if self.reset_at is not None and share >= self.reset_at:
                        value -= base.setdefault(series, value)  # noqa: PLW2901
                yield f"{series} {value:.12g} {at}"

    def _grown(self, series: str, first: ServerSnapshot, last: ServerSnapshot) -> float:
        if not hasattr(self, "_growth"):
            ends = [{name: value for name, value, _ in self._samples(one)} for one in (first, last)]
            object.__setattr__(self, "_growth", {name: ends[1][name] - ends[0].get(name, 0.0) for name in ends[1]})
        return self._growth[series]  # type: ignore[attr-defined,no-any-return]

    def _samples(self, one: ServerSnapshot) -> Iterator[tuple[str, float, bool]]:
        for key in (*_GAUGES, *_COUNTERS):
            if (value := one.value(key)) is not None and not self._is_dropped(key):
                yield self._series(key), value, key in _COUNTERS
        for reason, count in one.finished.items():
            yield self._series("finished", more={"finished_reason": reason}), count, True
        for key in (*_WHOLE, *_SUMS):
            if self._is_dropped(key):
                continue
            histogram = one.histograms[key]
            yield self._series(key, "_sum"), histogram.sum, True
            yield self._series(key, "_count"), histogram.count, True
            for bound, count in histogram.buckets if key in _WHOLE else ():
                le = "+Inf" if bound == float("inf") else f"{bound}"
                yield self._bucket(key, le), count, True
        if self._is_dropped("kv_cache_tokens"):
            return
        blocks = round((one.kv_cache_tokens or 0) / 16)
        yield self._series("kv_cache_tokens", more={"block_size": "16", "num_gpu_blocks": str(blocks)}), 1.0, False

    def _bucket(self, key: str, le: str) -> str:
        known = self._known
        if (key, le) not in known:
            known[key, le] = self._series(key, "_bucket", {"le": le})
        return known[key, le]

    def _is_dropped(self, key: str) -> bool:
        return key in self.without

    def _series(self, key: str, suffix: str = "", more: Mapping[str, str] | None = None) -> str:
        name = names(vllm.READS, key)[-1 if self.old else 0].replace("vllm:", self.prefix)
        labels = {**self.labels, **self.more, **(more or {})}
        if key == "kv_cache_tokens":
            labels.pop("model_name", None)
        pairs = ",".join(f'{label}="{text}"' for label, text in labels.items())
        return f"{name}{suffix}{{{pairs}}}"


def make_blocks(promtool: str, folder: Path, pages: Sequence[Page], more: Sequence[str] = ()) -> None:
    """Write blocks of Prometheus' storage into `folder`. `more`: further lines."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder.with_suffix(".txt")
    with text.open("w") as file:
        for page in pages:
            file.writelines(f"{line}\n" for line in page.lines())
        file.writelines(f"{line}\n" for line in (*more, "# EOF"))
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "-q", str(text), str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]
    text.unlink()
