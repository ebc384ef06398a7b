"""A past for Prometheus, made in virtual time: what it would remember of a server that it had scraped."""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from probe.core.snapshot import ServerSnapshot
from probe.scrape import vllm
from probe.scrape.reads import names

_PLAIN = (
    *("running", "waiting", "kv_cache_usage", "preemptions", "prompt_tokens", "generation_tokens"),
    "prefix_cache_hits",
)
_COUNTED = ("ttft", "itl", "prefill", "prompt_length", "iteration_tokens")


def make_blocks(promtool: str, folder: Path, remembered: Iterable[tuple[str, Sequence[ServerSnapshot]]]) -> None:
    """Write blocks of Prometheus' storage into `folder`: each `instance`'s metrics at the times of its snapshots."""
    folder.mkdir(parents=True)
    text = folder.with_suffix(".txt")
    lines = [line for instance, scrapes in remembered for line in _lines(instance, scrapes)]
    text.write_text("\n".join([*lines, "# EOF", ""]))
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]


def _lines(instance: str, scrapes: Sequence[ServerSnapshot]) -> Iterator[str]:
    for scrape in scrapes:
        for name, value, labels in _samples(scrape):
            reported = "".join(f',{label}="{text}"' for label, text in labels.items())
            where = f'instance="{instance}",job="vllm",engine="0"'
            yield f"{name}{{{where}{reported}}} {value:.17g} {scrape.wall_s:.3f}"


def _samples(scrape: ServerSnapshot) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Return the samples under vLLM's names."""
    for key in _PLAIN:
        if (value := scrape.value(key)) is not None:
            yield names(vllm.READS, key)[0], value, {}
    for key in _COUNTED:
        name, histogram = names(vllm.READS, key)[0], scrape.histograms[key]
        yield f"{name}_sum", histogram.sum, {}
        yield f"{name}_count", histogram.count, {}
    blocks = round((scrape.kv_cache_tokens or 0) / 16)
    yield vllm.CACHE_CONFIG[0], 1.0, {"block_size": "16", "num_gpu_blocks": str(blocks)}
