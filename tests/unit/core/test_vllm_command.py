"""vLLM's flags from the command lines that people write into pods."""

import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.vllm_command import count, served_port, vllm_flags

SERVE = "vllm serve meta-llama/Llama-3.1-8B --port 8000 --max-num-seqs 64 --max_num_batched_tokens=8k"
FOUND = {"max_num_seqs": "64", "max_num_batched_tokens": "8k"}
LEADER = "bash /examples/multi-node-serving.sh leader --ray_cluster_size=2"
MODULE = ["python3", "-m", "vllm.entrypoints.openai.api_server"]


@pytest.mark.parametrize(
    ("command", "args"),
    [
        (SERVE.split(), []),
        (["vllm"], SERVE.split()[1:]),
        (["/opt/venv/bin/vllm"], SERVE.split()[1:]),
        ([], SERVE.split()[2:]),  # the image's entrypoint is `vllm serve`
        ([], ["--model=x", "--max-num-seqs=64", "--max-num-batched-tokens=8k"]),
        (MODULE, ["--max-num-seqs", "64", "--max-num-batched-tokens", "8k"]),
        (["/bin/sh", "-c"], [SERVE]),
        (["bash", "-lc", f"set -e; ulimit -n 65535 && exec {SERVE} | tee /log"], []),
        (["sh", "-c", "ray start --head --max-num-seqs 9; " + SERVE.replace(" --max-num", " \\\n  --max-num")], []),
        (["sh", "-c", f"{SERVE} --served-model-name 'a b' && echo --max-num-seqs 7"], []),
        (["sh", "-c", f"{LEADER}; {' '.join(MODULE)} --max-num-seqs 64 --max-num-batched-tokens 8k"], []),
    ],
)  # fmt: skip
def test_flags_are_found_however_the_server_is_started(command: list[str], args: list[str]) -> None:
    assert vllm_flags(command, args, {}) == FOUND


def test_short_names_and_switches_have_the_long_names() -> None:
    line = "vllm serve m -tp 4 -pp=2 -q awq --enforce-eager --no-enable-prefix-caching --async-scheduling"
    assert vllm_flags(["sh", "-c", line], [], {}) == {
        "tensor_parallel_size": "4",
        "pipeline_parallel_size": "2",
        "quantization": "awq",
        "enforce_eager": "True",
        "enable_prefix_caching": "False",
        "async_scheduling": "True",
        "max_num_seqs": "default",
    }


@pytest.mark.parametrize(("switch", "value"), [("--enable-log-requests", "True"), ("--disable-log-requests", "False")])
def test_the_log_of_requests_has_one_name(switch: str, value: str) -> None:
    assert vllm_flags(["vllm", "serve", "m", switch], [], {})["enable_log_requests"] == value


def test_a_json_value_stays_whole() -> None:
    line = ["sh", "-c", """vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""]
    assert vllm_flags(line, [], {})["speculative_config"] == '{"method": "ngram", "num_speculative_tokens": 3}'


@pytest.mark.parametrize(
    "value",
    [
        '{"method": "eagle", "model": "e", "hf_token": "sk-secret"}',
        '{"method": "eagle", "model": "e", "num_speculative_tokens": {"key": "sk-secret"}}',
        '{"method": "eagle", "model": "e", "sk-secret": 1}',
    ],
)
@pytest.mark.fault(
    "SE30",
    "A server's command line has a token within `--speculative-config`",
    area="Security",
    users_see="the method, the model and the number of tokens",
    stays="the token is in no result, page or series",
)
def test_of_a_speculative_configuration_only_what_a_capacity_depends_on_is_kept(value: str) -> None:
    found = vllm_flags(["vllm", "serve", "m", "--speculative-config", value], [], {})
    assert json.loads(found["speculative_config"]) == {"method": "eagle", "model": "e"}


@pytest.mark.parametrize("value", ["sk-secret", "[]", '"sk-secret"', "{", "[" * 1000, "9" * 900])
@pytest.mark.fault("SE30")
def test_a_speculative_configuration_that_is_none_is_left_out(value: str) -> None:
    assert "speculative_config" not in vllm_flags(["vllm", "serve", "m", f"--speculative-config={value}"], [], {})


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("", "default"),
        ("--dtype half --enforce-eager", "default"),
        ("--max-num-batched-tokens 4096", "default"),
        ("--max-num-seqs $SEQS", None),
        ("--max_num_seq=8", None),  # argparse takes an abbreviation
        ("--config /etc/vllm.yaml", None),
        ("--config=/etc/vllm.yaml", None),
        ("--config-format mistral", "default"),
        ("--max-num-scheduled-tokens 1024", "default"),
        ("--max-num-active-seqs 64", "default"),
        ("--max-num-act 64", None),  # an abbreviation of another limit
        ("--max-num-b=64", None),
        ("--spec '{}'", None),
        ("$(EXTRA_ARGS)", None),
        ("$EXTRA_ARGS --dtype half", None),
        ("`cat /flags`", None),
    ],
)
def test_a_command_line_that_states_no_max_num_seqs_has_the_default(words: str, value: str | None) -> None:
    found = vllm_flags(["sh", "-c", f"vllm serve m {words}"], [], {})
    assert found.get("max_num_seqs") == value


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--max-num-active-seqs 64", {"max_num_active_seqs": "64"}),
        ("-dcp 2 -pcp=4 -ep -asc 3", {
            "decode_context_parallel_size": "2", "prefill_context_parallel_size": "4", "enable_expert_parallel": "True",
            "api_server_count": "3",
        }),
        ("--performance-mode throughput --watermark 0.05", {"performance_mode": "throughput", "watermark": "0.05"}),
        ("--no-scheduler-reserve-full-isl", {"scheduler_reserve_full_isl": "False"}),
        ("--kv-offloading-size 64 --kv_offloading_backend=lmcache",
         {"kv_offloading_size": "64", "kv_offloading_backend": "lmcache"}),
        ("--prefill-schedule-interval 4 --stream-interval 8",
         {"prefill_schedule_interval": "4", "stream_interval": "8"}),
        ("--max-num-queued-reqs 100 --max-num-queued-tokens 64K",
         {"max_num_queued_reqs": "100", "max_num_queued_tokens": "64K"}),
        ("--kv-cache-memory-bytes 20G", {"kv_cache_memory_bytes": "20G"}),
        ("--cudagraph-capture-sizes 1 2 4 96 --dtype half", {"max_cudagraph_capture_size": "96", "dtype": "half"}),
        ("""-cc '{"cudagraph_capture_sizes": [1, 8], "mode": 3}'""", {"max_cudagraph_capture_size": "8"}),
        ("-cc.max_cudagraph_capture_size=128", {"max_cudagraph_capture_size": "128"}),
        ("--spec-method dflash --spec-tokens 7 --spec-model=org/m",
         {"speculative_config": '{"method": "dflash", "model": "org/m", "num_speculative_tokens": 7}'}),
        ("--speculative-config.method ngram -sc.num_speculative_tokens=3 -sc.hf_token sk-secret",
         {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'}),
        ("--kv-transfer-config.kv_role kv_producer", {"kv_role": "kv_producer"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("program", ["vllm", "/opt/vllm-rs"])
def test_each_way_to_state_a_flag(program: str, words: str, found: dict[str, str]) -> None:
    read = vllm_flags(["sh", "-c", f"{program} serve m {words}"], [], {})
    assert {name: value for name, value in read.items() if name != "max_num_seqs"} == found


def test_the_engine_s_flags_follow_two_dashes_of_the_rust_front_end() -> None:
    line = ["vllm-rs", "serve", "m", "--port", "9000", "--", "--max-num-seqs", "32", "-tp", "2"]
    assert vllm_flags(line, [], {}) == {"max_num_seqs": "32", "tensor_parallel_size": "2"}
    assert served_port(line) == 9000
    assert served_port([*line, "--headless"]) is None


@pytest.mark.parametrize("reference", ["$SEQS", "${SEQS}", "$(SEQS)"])
def test_variables_of_the_pod_are_filled_in(reference: str) -> None:
    line = ["vllm", "serve", "m", "--max-num-seqs", reference]
    assert vllm_flags(line, [], {"SEQS": "32"}) == {"max_num_seqs": "32"}
    assert vllm_flags(line, [], {}) == {}


def test_the_last_of_a_repeated_flag_counts_as_for_vllm() -> None:
    assert vllm_flags(["vllm", "serve", "m", "--max-num-seqs=1", "--max-num-seqs=2"], [], {}) == {"max_num_seqs": "2"}


def test_no_other_flag_is_kept() -> None:
    line = ["vllm", "serve", "m", "--api-key", "secret", "--hf-token=secret", "--max-num-seqs", "2"]
    assert "secret" not in str(vllm_flags(line, [], {}))


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ([], []),
        (["nginx", "-g", "daemon off;"], ["--max-num-seqs", "3"]),
        (["sh", "-c"], ["vllm serve 'unclosed --max-num-seqs 3"]),
        (["sh"], []),
        (["sh", "-c"], []),
        (["vllm", "bench", "--max-num-seqs", "3"], []),
        (["vllm", "serve", "m", "--max-num-seqs"], []),
    ],
)
def test_what_is_not_known_is_left_out(command: list[str], args: list[str]) -> None:
    assert vllm_flags(command, args, {}) == {}


@given(st.lists(st.text(max_size=20), max_size=8), st.lists(st.text(max_size=60), max_size=8))
def test_no_command_line_raises(command: list[str], args: list[str]) -> None:
    vllm_flags(command, args, {})
    vllm_flags(["sh", "-c", *command], args, {})


@pytest.mark.fault("SE28")
def test_a_value_that_is_missing_or_not_printable_is_left_out() -> None:
    for value in ("--api-key=secret", "-x", "fp8\0", "fp8\n\x1b[31m"):
        assert vllm_flags(["vllm", "serve", "m", "--dtype", value, "--max-num-seqs", "2"], [], {}) == {
            "max_num_seqs": "2"
        }


@pytest.mark.fault(
    "SE28",
    "A pod's command line or variables of a megabyte, which unfold to 25 GB, take long to read, or have a "
    "secret where a value is missing",
    area="Security",
    users_see="flags that are not known are left out",
    stays="memory, the event loop, secrets",
)
def test_a_pod_s_variables_do_not_unfold() -> None:
    environment = {"A": "x" * 50_000}
    tracemalloc.start()
    try:
        flags = vllm_flags(["vllm", "serve", "m", *["$(A)" * 200] * 20, "--dtype", "$(A)" * 2000], [], environment)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert len(flags["dtype"]) <= 200


@pytest.mark.parametrize(
    "line",
    [
        ["vllm", "serve", "m", *["--max-num-seqs", "3"] * 100_000],
        ["sh", "-c", "vllm serve m " + "--max-num-seqs 3 " * 100_000],
        ["sh", "-c", "(" * 1_000_000],
        ["vllm", "serve", "m", "--dtype", "$" * 1_000_000],
    ],
)
@pytest.mark.fault("SE28")
def test_a_command_line_of_megabytes_holds_up_the_event_loop_no_longer_than_a_long_one(line: list[str]) -> None:
    def takes_s(words: list[str]) -> float:
        began_s = time.thread_time()
        vllm_flags(words, [], {})
        return time.thread_time() - began_s

    long = ["sh", "-c", "vllm serve m " + "--max-num-seqs 3 " * 500]
    assert min(takes_s(line) for _ in range(3)) < 5 * max(takes_s(long) for _ in range(3)) + 0.005


@pytest.mark.fault("SE28")
def test_a_number_that_no_server_has_is_none() -> None:
    assert count("9" * 200 + "g") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("64", 64), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("1M", 1048576), ("auto", None), ("-1", None), ("", None)],
)
def test_numbers_are_read_as_vllm_reads_them(text: str, number: int | None) -> None:
    assert count(text) == number


@pytest.mark.parametrize(
    ("line", "port"),
    [
        (["vllm", "serve", "m"], 8000),
        (["python3", "/usr/bin/vllm", "serve", "m", "--port", "9000"], 9000),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--port=1", "--port=9001"], 9001),
        (["vllm", "serve", "m", "--port", "x"], None),
        (["sh", "-c", "vllm serve m --port 9000"], None),
        (["vllm", "bench", "serve", "--port", "9000"], None),
        (["VLLM::EngineCore"], None),
        ([], None),
    ],
)
def test_the_port_on_which_a_command_line_serves(line: list[str], port: int | None) -> None:
    assert served_port(line) == port


def test_of_a_kv_connector_only_its_name_and_role_are_kept() -> None:
    config = '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"password": "x"}}'
    found = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert vllm_flags(["vllm", "serve", "m", "--max-num-seqs", "", "--kv-transfer-config", config], [], {}) == found
    assert vllm_flags(["vllm", "serve", "m", "--max-num-seqs", "", f"--kv-transfer-config={config}"], [], {}) == found
    for other in ("{", "[1]", "3", '{"kv_role": 3}', "[" * 9999):
        assert vllm_flags(["vllm", "serve", "m", "--max-num-seqs", "", "--kv-transfer-config", other], [], {}) == {}
