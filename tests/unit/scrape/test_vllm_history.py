"""vLLM's metrics as Prometheus remembers them, to snapshots."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from probe.core.snapshot import EngineSnapshot
from probe.scrape import vllm_history

Series = tuple[Mapping[str, str], Sequence[tuple[float, float]]]
# Scraped every 20 s and asked for every 15 s: what was scraped at 100, 120 and 140.
STEPS = (105.0, 120.0, 135.0, 150.0)
SCRAPES = (100.0, 120.0, 120.0, 140.0)


def _one(name: str, *values: float, steps: Sequence[float] = STEPS, **labels: str) -> Series:
    own = {"instance": "a:8000", "engine": "0", **labels}
    return {"__name__": f"vllm:{name}", **own}, list(zip(steps, values, strict=True))


def _scraped(*values: float, steps: Sequence[float] = STEPS, **labels: str) -> Series:
    own = {"instance": "a:8000", "engine": "0", "kneewatch_scraped": "at", **labels}
    return own, list(zip(steps, values, strict=True))


def test_there_is_a_snapshot_for_each_scrape_at_its_own_time() -> None:
    """Steps of the query are not scrapes: at two of them nothing new was there."""
    series = [
        _one("num_requests_running", 3, 4, 4, 5),
        _one("generation_tokens_total", 1000, 1400, 1400, 1800),
        _scraped(*SCRAPES),
    ]
    found = vllm_history.from_history(series)
    assert [one.wall_s for one in found] == [100.0, 120.0, 140.0]
    assert [one.at_ns for one in found] == [100 * 10**9, 120 * 10**9, 140 * 10**9]
    assert [one.running for one in found] == [3, 4, 5]
    assert [one.generation_tokens for one in found] == [1000, 1400, 1800]


def test_histograms_have_their_sums_and_counts_and_the_cache_its_size() -> None:
    series = [
        _one("num_requests_running", 1, 1, 1, 1),
        _one("inter_token_latency_seconds_sum", 1.0, 2.0, 2.0, 3.0),
        _one("inter_token_latency_seconds_count", 10, 20, 20, 30),
        _one("iteration_tokens_total_sum", 7, 8, 8, 9),
        _one("iteration_tokens_total_count", 5, 6, 6, 7),
        _one("cache_config_info", 1, 1, 1, 1, block_size="16", num_gpu_blocks="100"),
        _scraped(*SCRAPES),
    ]
    last = vllm_history.from_history(series)[-1]
    assert (last.histograms["itl"].sum, last.histograms["itl"].count) == (3.0, 30)
    assert (last.histograms["iteration_tokens"].sum, last.histograms["iteration_tokens"].count) == (9.0, 7)
    assert last.kv_cache_tokens == 1600


def test_engines_of_one_server_add_up() -> None:
    series = [
        _one("num_requests_running", 3, 4, 4, 5),
        _one("num_requests_running", 1, 1, 1, 2, engine="1"),
        _scraped(*SCRAPES),
        _scraped(*SCRAPES, engine="1"),
    ]
    assert vllm_history.differing_labels(series) == {}
    found = vllm_history.from_history(series)
    assert [(one.running, one.engines) for one in found] == [(4, 2), (5, 2), (7, 2)]


def test_engines_in_history_are_distinguished_and_processes_are_not_servers() -> None:
    series = [
        _one("num_requests_running", 3, 4, 4, 5),
        _one("num_requests_running", 1, 1, 1, 2, engine="1", pid="7"),
        _one("num_requests_running", 0, 0, 0, 1, engine="1", pid="8"),
        _one("generation_tokens_total", 10, 20, 20, 30, engine="1"),
    ]
    assert vllm_history.differing_labels(series) == {}
    last = vllm_history.from_history(series)[-1]
    assert last.by_engine == {"0": EngineSnapshot(running=5), "1": EngineSnapshot(running=2, generation_tokens=30)}


def test_a_moment_without_the_server_and_a_value_that_is_none_are_left_out() -> None:
    """While it was down, Prometheus has nothing of it."""
    series = [
        _one("num_requests_running", 3, 5, steps=(105.0, 150.0)),
        _one("generation_tokens_total", 1000, 1400, 1400, float("nan")),
        _scraped(100.0, 140.0, steps=(105.0, 150.0)),
    ]
    found = vllm_history.from_history(series)
    assert [one.wall_s for one in found] == [100.0, 140.0]
    assert [one.generation_tokens for one in found] == [1000, None]
    assert vllm_history.from_history([]) == []


def test_series_of_two_servers_differ_in_their_distinguishing_label() -> None:
    series = [
        _one("num_requests_running", 3, 4, 4, 5, pod="llama-0"),
        _one("num_requests_running", 1, 1, 1, 2, pod="llama-1", instance="b:8000"),
        _one("num_requests_waiting", 0, 0, 0, 0, pod="llama-2"),
    ]
    assert vllm_history.differing_labels(series) == {"instance": ["a:8000", "b:8000"], "pod": ["llama-0", "llama-1"]}


def test_a_server_that_took_the_place_of_another_is_not_beside_it() -> None:
    series = [
        _one("num_requests_running", 3, 4, steps=STEPS[:2], pod="llama-0"),
        _one("num_requests_running", 1, 1, steps=STEPS[2:], pod="llama-1"),
    ]
    assert vllm_history.differing_labels(series) == {}


def test_the_questions_ask_for_this_server_by_exact_names_in_lines_that_proxies_take() -> None:
    """Google's Managed Prometheus takes exact names alone; a line of a request may have 8 kB at nginx."""
    queries = vllm_history.history_queries('pod="llama-0"', "ray_vllm_")
    whole = " or ".join(queries)
    assert "__name__" not in whole
    assert max(len(quote(query)) for query in queries) < 6000
    assert 'label_replace(timestamp(ray_vllm_num_requests_running{pod="llama-0"}), "kneewatch_scraped"' in whole
    for name in ("kv_cache_usage_perc", "iteration_tokens_total_count", "time_to_first_token_seconds_sum"):
        assert f'label_replace(ray_vllm_{name}{{pod="llama-0"}}, "kneewatch_of"' in whole
    assert "_bucket" not in whole
    marks = re.findall(r'"kneewatch_of", "([0-9]+)"', whole)
    assert len(marks) == len(set(marks)) == len(vllm_history.HISTORY), "`or` would drop all but the first"


def test_names_of_ray_are_read_as_vllm_s_own() -> None:
    labels, values = _one("num_requests_running", 3, 4, 4, 5, kneewatch_of="0")
    series = [({**labels, "__name__": "ray_vllm_num_requests_running"}, values)]
    assert [one.running for one in vllm_history.from_history(series, "ray_vllm_")] == [3, 4, 4, 5]
