"""vLLM's metrics page, of several versions, to a snapshot."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.server_values import BY_KEY, ValueKind
from probe.core.snapshot import EngineSnapshot, Histogram, ServerSnapshot
from probe.scrape import engines, vllm, vllm_history

TESTS = Path(__file__).parents[2]
RECORDED = (TESTS / "golden/vllm-0.32/metrics.txt").read_text()

# Made up from the names each version had; only 0.32 was recorded.
OLD_0_9 = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 40.0
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 500.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 9.0
vllm:time_per_output_token_seconds_bucket{engine="0",le="0.01",model_name="m"} 4.0
vllm:time_per_output_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 6.0
vllm:time_per_output_token_seconds_count{engine="0",model_name="m"} 6.0
vllm:time_per_output_token_seconds_sum{engine="0",model_name="m"} 0.5
vllm:time_in_queue_requests_bucket{engine="0",le="+Inf",model_name="m"} 6.0
vllm:time_in_queue_requests_sum{engine="0",model_name="m"} 0.1
"""
BOTH_0_11 = (
    OLD_0_9
    + """\
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 200.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 80.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 5.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 8.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.6
vllm:request_time_per_output_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0
vllm:request_time_per_output_token_seconds_sum{engine="0",model_name="m"} 0.02
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 0.2
"""
)
TWO_ENGINES = """\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 0.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 3.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="deferred"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.9
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:num_preemptions_total{engine="1",model_name="m"} 10.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 9.0
vllm:request_success_total{engine="1",finished_reason="length",model_name="m"} 1.0
vllm:request_success_total{engine="1",finished_reason="abort",model_name="m"} 2.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="150"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="150"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.5
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1",model_name="m"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="m"} 20.0
vllm:time_to_first_token_seconds_sum{engine="1",model_name="m"} 1.5
"""
INF = float("inf")
MANY_LABELS = ",".join(f'a{i}="b"' for i in range(10_000))


def parse(page: str) -> ServerSnapshot:
    return engines.parse(page, at_ns=5, wall_s=7.0, version="v")


def test_the_recorded_page() -> None:
    page = parse(RECORDED)
    assert (page.at_ns, page.wall_s, page.engine, page.version) == (5, 7.0, "vllm", "v")
    assert (page.running, page.waiting, page.kv_cache_usage, page.preemptions) == (0, 0, 0, 0)
    assert page.waiting_by_reason == {"capacity": 0, "deferred": 0}
    assert (page.prompt_tokens, page.generation_tokens, page.rejections) == (18, 7, 0)
    assert page.finished == {"stop": 0, "length": 2, "abort": 0, "error": 0, "repetition": 0}
    assert (page.prefix_cache_queries, page.prefix_cache_hits) == (18, 0)
    assert page.kv_cache_tokens == 64 * 32
    opt_in = {"kv_block_lifetime", "kv_block_idle", "kv_block_reuse_gap"}
    assert set(page.histograms) == {key for key in vllm.READS if BY_KEY[key].kind is ValueKind.HISTOGRAM} - opt_in
    assert page.by_engine == {}, "it is one"
    assert page.models == ("tiny",)
    assert page.progress == 7 + 7, "tokens and steps"


def test_kv_caches_that_are_fetched_from_another_server_are_read() -> None:
    """Recorded from two servers with the NIXL connector, and once with servers that refuse each other's handshake."""
    prefill, decode, failing = (
        parse((TESTS / f"pages/vllm-nixl-{name}.prom").read_text()) for name in ("prefill", "decode", "failing")
    )
    assert prefill.others.items() >= {"kv_transfers": 0, "kv_transfers_expired": 1}.items(), "the last was not fetched"
    fetched = {"kv_transfers": 5, "kv_transfer_bytes": 573_440, "kv_transfer_failures": 0}
    assert decode.others.items() >= (fetched | {"external_cache_queries": 1006}).items()
    assert decode.value("kv_transfer_seconds") == pytest.approx(0.127, abs=0.001)
    assert decode.external_cache_hits == 1000
    assert failing.others.items() >= {"kv_transfers": 0, "kv_transfer_failures": 10}.items(), "five, counted twice"
    assert failing.outcomes["failed"] == 5
    assert parse(RECORDED).value("external_cache_queries") is None, "it has no connector"


def test_the_recorded_histograms_are_whole() -> None:
    histograms = parse(RECORDED).histograms
    lengths = ("prompt_length", "output_length")
    of_requests = ("ttft", "tpot", "e2e", "queue", "prefill", "decode", "preemptions_per_request", *lengths)
    requests = dict.fromkeys(of_requests, 2)
    assert {name: h.count for name, h in histograms.items()} == requests | {"itl": 5, "iteration_tokens": 7}
    for histogram in histograms.values():
        bounds, counts = zip(*histogram.buckets, strict=True)
        assert bounds[-1] == INF
        assert list(bounds) == sorted(set(bounds))
        assert list(counts) == sorted(counts)
        assert histogram.sum >= 0


def test_names_of_0_9_are_known() -> None:
    page = parse(OLD_0_9)
    assert (page.running, page.waiting, page.kv_cache_usage, page.preemptions) == (3, 2, 0.25, 7)
    assert (page.prefix_cache_queries, page.prefix_cache_hits) == (100, 40)
    assert page.histograms["itl"] == Histogram(((0.01, 4), (INF, 6)), 0.5)
    assert page.histograms["queue"].count == 6
    assert "tpot" not in page.histograms


def test_series_that_a_version_lacks_are_not_zero() -> None:
    page = parse(OLD_0_9)
    assert (page.rejections, page.kv_cache_tokens) == (None, None)
    assert page.waiting_by_reason == {}


def test_corrupted_requests_are_read_where_vllm_looks_for_nan() -> None:
    assert parse(RECORDED).value("corrupted") is None
    counted = "".join(f'vllm:corrupted_requests_total{{engine="{i}",model_name="tiny"}} {i + 1}.0\n' for i in range(2))
    assert parse(f"{RECORDED}\n{counted}").value("corrupted") == 3


def test_where_old_and_new_names_stand_side_by_side_none_counts_twice() -> None:
    page = parse(BOTH_0_11)
    assert (page.kv_cache_usage, page.prefix_cache_queries, page.prefix_cache_hits) == (0.5, 200, 80)
    assert page.histograms["itl"].count == 8
    assert page.histograms["tpot"].count == 2
    assert page.histograms["queue"].count == 5


def test_engines_are_summed_and_the_fullest_cache_counts() -> None:
    page = parse(TWO_ENGINES)
    assert (page.running, page.waiting, page.preemptions, page.kv_cache_usage) == (7, 5, 11, 0.9)
    assert page.waiting_by_reason == {"capacity": 3, "deferred": 2}
    assert page.finished == {"length": 10, "abort": 2}
    assert page.kv_cache_tokens == 150 * 16, "each line has the blocks of all engines"
    assert page.histograms["ttft"] == Histogram(((0.1, 11), (INF, 22)), 2.0)


def test_the_order_of_lines_does_not_matter() -> None:
    assert parse("\n".join(reversed(TWO_ENGINES.splitlines()))) == parse(TWO_ENGINES)


def test_other_programs_series_on_the_page_do_not_matter() -> None:
    others = 'python_gc_objects_collected_total{generation="0"} NaN\nnot a line at all {{{\nhttp_requests_total 5\n'
    assert parse(others + OLD_0_9 + others) == parse(OLD_0_9)


def test_nan_is_no_value() -> None:
    page = parse(
        'vllm:num_requests_running 1\nvllm:kv_cache_usage_perc{engine="0"} NaN\nvllm:num_requests_waiting NaN\n'
    )
    assert (page.running, page.kv_cache_usage, page.waiting) == (1, None, None)


def test_a_name_that_only_begins_alike_is_not_matched() -> None:
    page = parse("vllm:num_requests_running 1\nvllm:num_requests_running_total 5\nvllm:iteration_tokens_total_sum 5\n")
    assert page.running == 1
    assert page.histograms == {}


def test_windows_line_ends_are_line_ends() -> None:
    assert parse(OLD_0_9.replace("\n", "\r\n")) == parse(OLD_0_9)


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_model_name_may_contain_what_some_take_for_a_line_end(odd: str) -> None:
    page = f'vllm:num_requests_running{{model_name="a{odd}b"}} 4\n'
    assert parse(page).running == 4


@pytest.mark.parametrize("value", ["None", "", "many"])
def test_an_unknown_cache_size_is_not_zero(value: str) -> None:
    assert parse(f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{value}"}} 1\n').kv_cache_tokens is None


@pytest.mark.parametrize(
    "page",
    [
        "",
        "\n\n",
        "<html><body>vllm:num_requests_running</body></html>",
        "python_info 1\n",
        '{"vllm:num_requests_running": 1}',
        "vllm:num_requests_running\n",
        "vllm:num_requests_running many\n",
        'vllm:num_requests_running{engine="0 1\n',
        "vllm:num_requests_running{engine=0} 1\n",
        "vllm:num_requests_running{} \n",
        'vllm:time_to_first_token_seconds_bucket{engine="0"} 1\n',
        'vllm:time_to_first_token_seconds_bucket{le="soon"} 1\n',
        "vllm:num_requests_running NaN\n",
        "vllm:num_requests_running +Inf\n",
        pytest.param("vllm:num_requests_running " + "9" * 4000 + "\n", id="an integer beyond any float"),
        'vllm:num_requests_running{ ="a"} 1\n',
        pytest.param(f"vllm:num_requests_running{{{MANY_LABELS}}} 1\n", id="a line without end"),
        "\x00\x01\x02",
    ],
)
def test_a_page_that_is_not_vllms_is_a_value_error(page: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(page)


@pytest.mark.fault("FA91")
def test_a_label_has_few_values_and_none_is_lost() -> None:
    page = "".join(f'vllm:request_success_total{{finished_reason="r{i}"}} 1\n' for i in range(1000))
    finished = parse(page).finished
    assert len(finished) <= 21
    assert sum(finished.values()) == 1000


@pytest.mark.fault(
    "FA91",
    "A histogram with a thousand buckets, a label with a thousand values",
    area="Foreign answers",
    users_see="scrape error; at most 21 values of the label",
    stays="the number of series is bounded",
)
def test_a_histogram_has_few_buckets() -> None:
    page = "".join(f'vllm:time_to_first_token_seconds_bucket{{le="{i}"}} 1\n' for i in range(1000))
    with pytest.raises(ValueError, match="buckets"):
        parse(page)


LINES = st.builds(
    lambda name, labels, value: f"{name}{labels}{value}",
    st.sampled_from([*sorted(vllm.ENGINE.wanted), "vllm:zzz", "#", ""]),
    st.sampled_from(
        [
            "",
            "{",
            "}",
            "{}",
            '{le="0.1"}',
            '{le="+Inf"}',
            '{le="x"}',
            '{engine="0"}',
            '{engine="',
            "{=}",
            '{"a"}',
            '{a="b",}',
            '{a="b"',
            "{,}",
            '{le="nan"}',
            '{num_gpu_blocks="1",block_size="1"}',
        ]
    ),
    st.sampled_from(
        [" 1", " 1 5", "", " ", " x", "1", " NaN", " +Inf", " -1", " 1e999", "\t2", " 1 x", ' # {a="b"} 1']
    ),
)


@given(st.lists(LINES | st.text(max_size=20), max_size=8).map("\n".join))
def test_any_page_is_a_snapshot_or_a_value_error(page: str) -> None:
    try:
        snapshot = parse(page)
    except ValueError:
        return
    assert snapshot.engine == "vllm"


@examples(40)
@given(st.binary(max_size=200), st.integers(0, 100_000))
@pytest.mark.fault(
    "FA90",
    "Any damaged recorded page",
    area="Foreign answers",
    users_see="a snapshot or one error, never an exception",
    stays="canaries",
)
def test_a_damaged_page_is_a_snapshot_or_a_value_error(damage: bytes, at: int) -> None:
    page = RECORDED.encode()
    at %= len(page)
    try:
        parse((page[:at] + damage + page[at + len(damage) :]).decode("utf-8", "replace"))
    except ValueError:
        return


def test_flags_say_how_the_server_was_started_and_not_how_much_memory_was_free() -> None:
    assert parse(RECORDED).flags == {
        "block_size": "32",
        "kv_cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.92",
        "num_gpu_blocks_override": "64",
        "engines": "1",
    }


def test_engines_are_distinguished_by_their_labels_whatever_the_order_of_lines() -> None:
    page = parse(TWO_ENGINES)
    assert page.by_engine == {
        "0": EngineSnapshot(running=3, waiting=0, kv_cache_usage=0.2, preemptions=1),
        "1": EngineSnapshot(running=4, waiting=5, kv_cache_usage=0.9, preemptions=10),
    }
    turned = parse("\n".join(reversed(TWO_ENGINES.splitlines())))
    assert list(turned.by_engine) == ["0", "1"]


def _engines(count: int) -> str:
    return "".join(f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {i}\n' for i in range(count))


def test_engine_10_comes_after_engine_9() -> None:
    assert list(parse(_engines(12)).by_engine) == [str(i) for i in range(12)]


def test_one_engine_and_more_than_32_are_not_split() -> None:
    assert parse(_engines(1)).by_engine == {}
    assert len(parse(_engines(32)).by_engine) == 32
    many = parse(_engines(33))
    assert (many.by_engine, many.engines, many.running) == ({}, 33, sum(range(33)))


def test_engines_count_once_if_each_process_exports_the_same_gauge() -> None:
    page = parse(
        "".join(
            f'vllm:num_requests_running{{engine="{engine}",model_name="m",pid="{pid}"}} {running}\n'
            for engine, pid, running in (("0", 7, 3), ("0", 8, 2), ("1", 7, 4), ("1", 8, 4))
        )
    )
    assert (page.engines, page.running) == (2, 7)
    assert [one.running for one in page.by_engine.values()] == [3, 4]


def test_models_are_few_and_short() -> None:
    line = 'vllm:num_requests_running{{engine="{0}",model_name="{1}"}} 1\n'
    assert parse(line.format(0, "b") + line.format(1, "a") + line.format(2, "b")).models == ("a", "b")
    assert parse(line.format(0, "x" * 500)).models == ("x" * 64,)
    assert len(parse("".join(line.format(i, f"m{i}") for i in range(500))).models) == 20
    assert parse("vllm:num_requests_running 1\n").models == ()


def _steps(generated: int, steps: int | None) -> str:
    name = "vllm:iteration_tokens_total"
    reported = (
        f'{name}_bucket{{engine="0",le="+Inf"}} {steps}\n{name}_sum{{engine="0"}} 9\n' if steps is not None else ""
    )
    return f'vllm:generation_tokens_total{{engine="0"}} {generated}\n' + reported


def test_progress_grows_with_steps_that_generate_nothing() -> None:
    """Those of a model that embeds, and of one whose prompts end with their first token."""
    assert parse(_steps(100, 40)).progress == 140
    assert parse(_steps(100, 41)).progress == 141
    assert parse(_steps(100, None)).progress == 100
    assert parse("vllm:num_requests_running 1\n").progress is None


def test_flags_of_several_engines_are_those_of_one_and_how_many_they_are() -> None:
    line = 'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{0}",sliding_window="None",engine="{0}"}} 1\n'
    page = parse("".join(line.format(i) for i in range(3)))
    assert page.flags == {"block_size": "16", "engines": "3"}


def test_without_the_cache_config_no_flag_is_known_and_a_long_one_is_cut() -> None:
    assert parse("vllm:num_requests_running 1\n").flags == {}
    assert parse(f'vllm:cache_config_info{{cache_dtype="{"x" * 500}"}} 1\n').flags["kv_cache_dtype"] == "x" * 64


def test_vllm_s_own_estimates_of_work_are_read_where_they_are() -> None:
    """With --enable-mfu-metrics: for one GPU of each engine."""
    names = ("flops", "read_bytes", "write_bytes")
    lines = [
        f'vllm:estimated_{n}_per_gpu_total{{engine="{e}",model_name="m"}} {e + 1}e15\n' for n in names for e in (0, 1)
    ]
    found = parse(TWO_ENGINES + "".join(lines))
    assert (found.estimated_flops, found.estimated_read_bytes, found.estimated_write_bytes) == (3e15, 3e15, 3e15)
    assert "vllm:estimated_flops_per_gpu_total" in RECORDED  # at zero: it was not asked to estimate
    assert parse(RECORDED).estimated_flops is None


def test_the_estimates_are_asked_of_prometheus_too() -> None:
    names = {f"vllm:estimated_{n}_per_gpu_total" for n in ("flops", "read_bytes", "write_bytes")}
    assert names <= set(vllm_history.HISTORY)
    gauge: tuple[dict[str, str], list[tuple[float, float]]] = ({"__name__": "vllm:num_requests_running"}, [(5.0, 1.0)])
    (found,) = vllm_history.from_history(
        [gauge, *(({"__name__": name, "engine": "0"}, [(5.0, 1e15)]) for name in names)]
    )
    assert (found.estimated_flops, found.estimated_read_bytes, found.estimated_write_bytes) == (1e15, 1e15, 1e15)


@pytest.mark.parametrize("blocks", ["nan", "inf", "-5", "None"])
def test_a_cache_of_no_size_is_unknown(blocks: str) -> None:
    page = f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}"}} 1.0\n'
    assert parse(page).kv_cache_tokens is None


def _states(*awake: int, falling_asleep: int | None = None) -> str:
    """Return a page of engines that are awake (1) or not (0)."""
    labels = 'engine="{}",model_name="m"'
    lines = [f"vllm:num_requests_running{{{labels.format(i)}}} 0.0" for i in range(max(len(awake), 1))]
    for i, is_awake in enumerate(awake):
        series = f"vllm:engine_sleep_state{{{labels.format(i)},sleep_state="
        lines += [f'{series}"awake"}} {is_awake}.0', f'{series}"weights_offloaded"}} {1 - is_awake}.0']
    if falling_asleep is not None:
        lines.append(f'vllm:sleep_mode_operations_in_flight{{operation="sleep"}} {falling_asleep}.0')
        lines.append('vllm:sleep_mode_operations_in_flight{operation="wake"} 1.0')
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("page", "is_asleep"),
    [
        (_states(), None),
        (_states(1), False),
        (_states(0), True),
        (_states(0, 1), False),
        (_states(0, 0), True),
        (_states(1, falling_asleep=1), True),
        (_states(1, falling_asleep=0), False),
        (OLD_0_9, None),
        (RECORDED, False),
    ],
)
def test_a_server_sleeps_if_all_its_engines_do_or_begin_to(page: str, is_asleep: object) -> None:
    assert engines.parse(page, 0, 0.0).is_asleep is is_asleep
