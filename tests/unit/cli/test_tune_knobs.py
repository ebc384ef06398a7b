"""Values of settings, their place in a command, and what a twin has of them."""

import shlex
from dataclasses import replace

import pytest
from example_records import result

from probe.capacity.model.knobs import Knob
from probe.cli.tune_knobs import (
    KnobValues,
    check_base,
    filled,
    knobs_of,
    server_flags,
    still_has,
    twin_knob,
    with_settings,
)
from probe.core.errors import ConfigError
from probe.core.fitted_server import FittedServer
from probe.core.result import CapacityResult

VLLM = shlex.split("taskset -c 0 vllm serve m --max_num_seqs 16 --port {port} --enable-prefix-caching --seed 1")
STORED = FittedServer({}, (), 4e5, 16, 2048, is_chunk_known=True, largest_batch=8.0)


def test_a_knob_is_a_name_and_values_with_the_base_first() -> None:
    assert knobs_of(["max-num-seqs=128,64", "kv_cache_dtype=auto,fp8"]) == [
        KnobValues("max_num_seqs", ("128", "64")),
        KnobValues("kv_cache_dtype", ("auto", "fp8")),
    ]


def test_what_is_no_value_of_a_setting_never_gets_into_a_command() -> None:
    for wrong in (
        "max_num_seqs", "max_num_seqs=8", "max_num_seqs=8,8", "max_num_seqs=8,0", "max_num_seqs=8,$(id)",
        "gpu_memory_utilization=0.9,1.5", "gpu_memory_utilization=0.9,0", "kv_cache_dtype=auto,fp8;id",
        "kv_cache_dtype=auto,--x", "enable_prefix_caching=true,yes", "seed=1,$(id)", "seed=1,a b", "seed=1,{port}",
        "seed=1,--host", "host=127.0.0.1,0.0.0.0", "api_key=a,b", "--seed=1,2", "Seed=1,2",
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="--knob"):
            knobs_of([wrong])
    with pytest.raises(ConfigError, match="twice"):
        knobs_of(["max_num_seqs=8,16", "max_num_seqs=8,32"])


def test_a_setting_replaces_the_flag_of_the_command() -> None:
    words = with_settings(VLLM, {"max_num_seqs": "32", "enable_prefix_caching": "false"})
    assert shlex.join(words) == (
        "taskset -c 0 vllm serve m --port '{port}' --seed 1 --max-num-seqs 32 --no-enable-prefix-caching"
    )
    assert with_settings(["vllm", "--max-num-seqs=16"], {"max_num_seqs": "8"}) == ["vllm", "--max-num-seqs", "8"]


def test_a_setting_goes_where_the_command_has_its_name_and_other_braces_stay() -> None:
    words = ["sh", "-c", "run {max_num_seqs} '{\"a\": 1}'"]
    assert with_settings(words, {"max_num_seqs": "8"}) == ["sh", "-c", "run 8 '{\"a\": 1}'"]
    assert filled(["helm", "--set", "a={value}"], {"max_num_seqs": "8"}) == ["helm", "--set", "a=8"]
    two = {"max_num_seqs": "8", "kv_cache_dtype": "fp8"}
    assert filled(["helm", "a={max_num_seqs},b={kv_cache_dtype}"], two) == ["helm", "a=8,b=fp8"]
    with pytest.raises(ConfigError, match="shell script"):
        with_settings(["bash", "-c", "vllm serve m"], {"max_num_seqs": "8"})


def test_any_flag_of_the_engine_is_a_setting() -> None:
    (knob,) = knobs_of(["tensor-parallel-size=1,2,4"])
    assert knob == KnobValues("tensor_parallel_size", ("1", "2", "4"))
    for stated in (["-tp", "2"], ["--tensor-parallel-size=2"], ["--tensor_parallel_size", "2"]):
        words = with_settings(["vllm", "serve", "m", *stated, "--seed", "1"], {"tensor_parallel_size": "4"})
        assert words == ["vllm", "serve", "m", "--seed", "1", "--tensor-parallel-size", "4"]
    chunked = ["vllm", "serve", "m", "--enable-chunked-prefill", "--seed", "1"]
    assert with_settings(chunked, {"enable_chunked_prefill": "false"})[3:] == [
        "--seed",
        "1",
        "--no-enable-chunked-prefill",
    ]
    assert with_settings(chunked, {"enable_chunked_prefill": "default"})[3:] == ["--seed", "1"]
    assert with_settings(["vllm", "--quantization", "fp8", "m"], {"quantization": "default"}) == ["vllm", "m"]
    assert server_flags({"quantization": "default", "enable_chunked_prefill": "false"}) == {
        "enable_chunked_prefill": "False"
    }
    assert twin_knob("block_size", "16", "32", STORED).reason == "its effect is not simulated"


def test_the_base_of_any_flag_is_what_the_command_states() -> None:
    words = shlex.split("vllm serve m --block-size 32 -tp 2 --no-enable-chunked-prefill --async-scheduling")
    for right in (
        "block_size=32,16",
        "tensor_parallel_size=2,4",
        "enable_chunked_prefill=false,true",
        "seed=default,1",
    ):
        check_base(words, knobs_of([right]))
    check_base(words, knobs_of(["async_scheduling=true,false"]))
    for wrong in (
        "block_size=16,32",
        "tensor_parallel_size=1,2",
        "enable_chunked_prefill=true,false",
        "block_size=default,8",
    ):
        with pytest.raises(ConfigError, match="the first value is the base"):
            check_base(words, knobs_of([wrong]))


def test_two_settings_together_are_every_pair_with_the_two_bases_first() -> None:
    (pair,) = knobs_of(["max_num_seqs=128,256", "max_num_batched_tokens=2048,8192"], together=True)
    assert pair.names == ["max_num_seqs", "max_num_batched_tokens"]
    assert pair.values == ("128+2048", "128+8192", "256+2048", "256+8192")
    with pytest.raises(ConfigError, match="expected two --knob, got 1"):
        knobs_of(["max_num_seqs=8,16"], together=True)
    with pytest.raises(ConfigError, match="25 pairs of values"):
        knobs_of(["max_num_seqs=1,2,3,4,5", "seed=1,2,3,4,5"], together=True)
    with pytest.raises(ConfigError, match="--knob max_num_seqs: the first value is the base, and --start states 16"):
        check_base(VLLM, [pair])


def test_the_base_is_what_the_command_states() -> None:
    check_base(VLLM, knobs_of(["max_num_seqs=16,8", "enable_prefix_caching=true,false", "kv_cache_dtype=auto,fp8"]))
    for placed in ("--max-num-seqs {max_num_seqs}", "--max-num-seqs={max_num_seqs}", "--max-num-seqs {value}"):
        check_base(shlex.split(f"vllm serve m {placed}"), knobs_of(["max_num_seqs=8,16"]))
    with pytest.raises(ConfigError, match="--start states 16; put it first"):
        check_base(VLLM, knobs_of(["max_num_seqs=8,16"]))


def test_a_twin_has_the_settings_that_it_knows() -> None:
    assert twin_knob("max_num_seqs", "16", "32", STORED) == Knob("max_num_seqs", 16, 32)
    assert twin_knob("enable_prefix_caching", "true", "false", STORED) == Knob("prefix_cache", 1, 0)
    assert twin_knob("kv_cache_dtype", "auto", "fp8", STORED) == Knob("kv_cache", 4e5, 8e5)
    assert "nvfp4 are not known" in str(twin_knob("kv_cache_dtype", "auto", "nvfp4", STORED).reason)
    assert "how much" in str(twin_knob("gpu_memory_utilization", "0.9", "0.95", STORED).reason)
    assert twin_knob("kv_cache_dtype", "auto", "fp8", replace(STORED, kv_tokens=None)).after is None


def test_a_lower_limit_of_the_same_stays_in_effect() -> None:
    flags = {"max_num_active_seqs": "24", "max_num_scheduled_tokens": "1K"}
    assert twin_knob("max_num_seqs", "32", "64", STORED, flags) == Knob("max_num_seqs", 24, 24)
    assert twin_knob("max_num_batched_tokens", "2048", "512", STORED, flags) == Knob(
        "max_num_batched_tokens", 1024, 512
    )
    refused = twin_knob("max_num_seqs", "32", "16", STORED, flags)
    assert (refused.after, refused.reason) == (None, "vLLM would not start: max_num_active_seqs is 24")


def test_settings_are_flags_of_a_result() -> None:
    assert server_flags({"enable_prefix_caching": "false", "max_num_seqs": "8"}) == {
        "enable_prefix_caching": "False",
        "max_num_seqs": "8",
    }


def test_a_server_that_still_has_another_value_is_noticed_where_its_metrics_show_the_setting() -> None:
    def shown(source: str = "metrics", **flags: str) -> CapacityResult:
        found = result()
        context = replace(found.context, flags=flags, flag_sources=dict.fromkeys(flags, source))
        return replace(found, context=context)

    share, prefix, dtype = knobs_of(
        ["gpu_memory_utilization=0.9,0.95", "enable_prefix_caching=true,false", "kv_cache_dtype=auto,fp8"]
    )
    old = shown(gpu_memory_utilization="0.90", enable_prefix_caching="True", kv_cache_dtype="auto")
    assert still_has(share, "0.95", old) == "gpu_memory_utilization 0.90"
    assert still_has(prefix, "false", old) == "enable_prefix_caching true"
    assert still_has(dtype, "fp8", old) == "kv_cache_dtype auto"
    new = shown(gpu_memory_utilization="0.95", enable_prefix_caching="False", kv_cache_dtype="fp8_e4m3")
    assert [still_has(share, "0.95", new), still_has(prefix, "false", new), still_has(dtype, "fp8", new)] == [None] * 3
    assert still_has(share, "0.95", shown("configuration", gpu_memory_utilization="0.9")) is None
