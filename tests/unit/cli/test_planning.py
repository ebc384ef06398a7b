"""`kneewatch plan`: a plan for each result, as text, Markdown and JSON; and results that no plan may be made from."""

import json
import math
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_records import WALL_S, no_knee, result
from fake_prometheus import prometheus

from probe.cli.main import main
from probe.core.fitted_server import FittedServer
from probe.core.result import Capacity, CapacityResult, RunContext, Stopped
from probe.monitor.store import Store
from probe.report.result_json import dumps

MEASURED = Capacity("verified", 10.0, lower=9.0, upper=11.0, output_tokens_per_second=1280.0, limiting="ttft")
CONTEXT = RunContext(
    workload={"name": "short-chat", "api": "completions", "prompt_tokens": 256, "output_tokens": 128},
    objectives={"name": "chat", "ttft": {"ratio": 0.95, "within_s": 0.5}},
    engine="vllm",
    version="0.32.0",
    gpu="NVIDIA H100",
    flags={"tensor_parallel_size": "2"},
    flag_sources={"tensor_parallel_size": "pod"},
)


def _result(**values: Any) -> CapacityResult:
    one = result(model="llama", capacity=MEASURED)
    return replace(one, **{"context": CONTEXT, **values})


def _kneewatch(*arguments: str | Path) -> tuple[int, str, str]:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, pytest.raises(SystemExit) as ended:
        main(["plan", *map(str, arguments)])
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def _file(folder: Path, one: CapacityResult, name: str = "result.json") -> Path:
    file = folder / name
    file.write_text(dumps(one))
    return file


def _planned(folder: Path, one: CapacityResult, *options: str) -> str:
    status, out, err = _kneewatch(_file(folder, one), *(options or ("--peak", "40")))
    assert (status, err) == (0, "")
    return out


def _refused(*arguments: str | Path) -> str:
    status, out, err = _kneewatch(*arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    return line


def test_a_plan_says_how_many_replicas_of_which_workload_and_how_far_to_trust_it(tmp_path: Path) -> None:
    out = _planned(tmp_path, _result())
    lines = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    assert (
        lines["Replicas"].strip()
        == "7 (6 + 1 spare), for the lower end of the capacity with 20 % of it free; 6 for its upper end"
    )
    assert lines["At the peak"].strip() == "57.1 % of the capacity in use; 66.7 % with 1 lost (74.1 % of its lower end)"
    assert "10 requests/s (90 % interval 9 to 11), 1,280 output tokens/s; verified" in lines["One replica"]
    assert "workload short-chat (256 + 128 tokens) only" in lines["Valid for"]
    assert "tensor_parallel_size=2 (pod)" in lines["Flags"]
    assert "results do not record them" in lines["Not known"]


def test_a_workload_whose_lengths_vary_is_named_by_their_medians(tmp_path: Path) -> None:
    varying = {**CONTEXT.workload, "prompt_tokens": {"median": 400, "sigma": 0.5, "maximum": 2400}}
    out = _planned(tmp_path, _result(context=replace(CONTEXT, workload=varying)))
    assert "workload short-chat (median 400 + 128 tokens) only" in out
    measured = {**CONTEXT.workload, "prompt_tokens": {"tokens": [1.0, 500.0], "shares": [0.0, 1.0]}}
    out = _planned(tmp_path, _result(context=replace(CONTEXT, workload=measured)))
    assert "workload short-chat only" in out


def test_a_peak_of_tokens_is_one_of_requests_like_the_workloads(tmp_path: Path) -> None:
    out = _planned(tmp_path, _result(), "--peak-output-tokens", "5120")
    assert "5,120 output tokens/s, which are 40 requests/s of this workload" in out
    assert "7 (6 + 1 spare)" in out


def test_the_cost_is_at_the_knee_and_at_the_peak_for_the_gpus_of_a_replica(tmp_path: Path) -> None:
    written = json.loads(_planned(tmp_path, _result(), "--peak", "40", "--gpu-hour-price", "3.6", "--json"))
    assert written["schema"] == "kneewatch.plan/1"
    (plan,) = written["plans"]
    assert plan["cost"]["gpus"] == 2
    assert plan["cost"]["at_capacity"] == pytest.approx(0.002 / (1280 * 0.95) * 1e6)
    assert plan["cost"]["at_peak"] == pytest.approx(7 * 0.002 / (4 * 1280 * 0.95) * 1e6)
    assert (plan["replicas"]["count"], plan["workload"]["name"]) == (7, "short-chat")
    out = _planned(tmp_path, _result(), "--peak", "40", "--gpu-hour-price", "3.6", "--gpus", "1")
    assert "0.822 per million good output tokens at the knee, 1.44 at the peak (1 GPU a replica at 3.6 an hour" in out
    nothing = replace(MEASURED, output_tokens_per_second=None)
    assert "unknown: the result has no output tokens/s" in _planned(
        tmp_path, _result(capacity=nothing), "--peak", "40", "--gpu-hour-price", "1"
    )


def test_a_lower_bound_is_at_most_so_many_replicas(tmp_path: Path) -> None:
    out = _planned(tmp_path, _result(capacity=Capacity("forecast", 10.0, lower=9.0, reason="a lower bound: x")))
    assert "at most 7 (6 + 1 spare): the capacity with 20 % of it free is a lower bound, so fewer may do" in out
    assert "lower bound, forecast: no load has verified it" in out
    assert "is unknown: the capacity is a lower bound; set capacity.server.max_num_seqs" in out


@pytest.mark.parametrize(
    ("capacity", "words"),
    [
        (replace(MEASURED, mode="empirical"), "this capacity is from load alone, without a model of the server"),
        (MEASURED, "the result is from a version that did not store its model; measure again"),
    ],
)
def test_a_setting_is_withheld_with_its_reason(tmp_path: Path, capacity: Capacity, words: str) -> None:
    out = _planned(tmp_path, _result(capacity=capacity))
    assert f"What other settings would give is unknown: {words}" in out


def test_a_model_that_no_run_can_have_written_withholds_the_settings_only(tmp_path: Path) -> None:
    terms = {"host_s": 0.003, "per_sequence_s": 3e-5, "per_token_s": 4e-5}
    wrong = FittedServer(terms, (terms,) * 3, 4e5, 64, 2048, is_chunk_known=True, largest_batch=8.0, engines=10**9)
    out = _planned(tmp_path, _result(capacity=replace(MEASURED, fitted_server=wrong)))
    assert "7 (6 + 1 spare)" in out
    assert "unknown: the result's fitted_server cannot be simulated (engines are not between 1 and 1024" in out


def test_a_decision_record_is_markdown_with_the_servers_settings(tmp_path: Path) -> None:
    hostile = _result(model="m | <script>alert(1)</script>")
    out = _planned(tmp_path, hostile, "--peak", "40", "--markdown")
    assert out.startswith("# Replicas of m \\| &lt;script>alert(1)&lt;/script> for 40 requests/s\n")
    assert "**7 (6 + 1 spare), for the lower end of the capacity with 20 % of it free; 6 for its upper end.**" in out
    assert "| Flags | tensor_parallel_size=2 (pod) |" in out
    assert "<script>" not in out
    tables = [line for line in out.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {3}


def test_several_results_are_planned_each_by_itself(tmp_path: Path) -> None:
    other = _result(context=replace(CONTEXT, workload={**CONTEXT.workload, "name": "long-prefill"}))
    files = [_file(tmp_path, _result(), "a.json"), _file(tmp_path, other, "b.json")]
    status, out, _ = _kneewatch(*files, "--peak", "40")
    assert status == 0
    assert out.count("Replicas:") == 2
    assert out.index("short-chat") < out.index("long-prefill")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"capacity": no_knee()}, "has no capacity (no step was valid: too_few_requests)"),
        ({"stopped": Stopped("interrupt", "signal")}, "the run did not end by itself: interrupt (signal)"),
        ({"stopped": Stopped("error")}, "the run did not end by itself: error"),
        ({"capacity": replace(MEASURED, lower=-1.0)}, "the lower end of its capacity is -1 requests/s"),
        ({"capacity": replace(MEASURED, upper=0.0)}, "the upper end of its capacity is 0 requests/s"),
        ({"capacity": replace(MEASURED, output_tokens_per_second=-1.0)}, "its capacity is -1 output tokens/s"),
    ],
)
def test_a_result_that_shows_no_capacity_is_refused_in_one_line(
    tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    file = _file(tmp_path, _result(**values))
    line = _refused(file, "--peak", "40")
    assert line.startswith(f"kneewatch: {file}: {words}")
    assert line.endswith("plan with the result of a run that ended by itself")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "expected one of --peak, --peak-output-tokens and --prometheus; give one of them"),
        (("--peak", "1", "--peak-output-tokens", "1"), "give one of them"),
        (("--peak", "0"), "--peak 0: expected a number above 0, per second"),
        (("--peak", "nan"), "--peak nan: expected a number above 0, per second"),
        (("--peak", "4", "--margin", "100%"), "--margin 100%: expected a share from 0% to below 100%"),
        (("--peak", "4", "--markdown", "--json"), "--markdown, --json: expected one of them; remove the other"),
        (("--peak", "4", "--prometheus", "http://127.0.0.1:9"), "and --prometheus; give one of them"),
        (("--prometheus", "prometheus:9090"), "expected an address such as http://prometheus:9090"),
        (("--prometheus", "http://a:hidden@127.0.0.1:9"), "--prometheus (hidden): expected an address such as"),
        (("--prometheus", "http://127.0.0.1:9?token=hidden"), "--prometheus http://127.0.0.1:9: expected an address"),
        (("--peak", "1e300"), "need more than a million replicas of 9 requests/s; check the peak (--peak)"),
        (("--peak", "4", "--gpu-hour-price", "inf"), "--gpu-hour-price inf: expected a number of at least 0"),
        (("--peak", "4", "--target", "a"), "--target: needs -c FILE or --prometheus URL; give one, or remove it"),
        (("--peak", "4", "-c", "x.yml"), "expected either result files, or -c FILE; give one of them"),
    ],
)
def test_options_that_make_no_sense_are_one_line(tmp_path: Path, options: Sequence[str], words: str) -> None:
    line = _refused(_file(tmp_path, _result()), *options)
    assert words in line
    assert "hidden" not in line.replace("(hidden)", "")


def test_a_result_without_tokens_takes_no_peak_of_tokens(tmp_path: Path) -> None:
    file = _file(tmp_path, _result(capacity=replace(MEASURED, output_tokens_per_second=None)))
    assert "has no output tokens/s; use --peak with requests/s" in _refused(file, "--peak-output-tokens", "10")


def _peak_answer(**rates: float) -> dict[str, object]:
    found = [{"metric": {"of": of}, "value": [1.0, str(rate)]} for of, rate in rates.items()]
    return {"status": "success", "data": {"resultType": "vector", "result": found}}


def test_the_users_peak_is_taken_from_prometheus_by_the_larger_share(tmp_path: Path) -> None:
    file = _file(tmp_path, _result(target="llama"))
    with prometheus(_peak_answer(requests=20.0, tokens=5120.0)) as (url, queries):
        status, out, err = _kneewatch(file, "--prometheus", url, "--weeks", "2")
    assert (status, err) == (0, "")
    assert "5,120 output tokens/s, which are 40 requests/s of this workload" in out
    assert "the users' highest five minutes in 2 weeks" in out
    (query,) = queries
    assert 'target="llama"' in query
    assert "[1209600s:5m]" in query
    with prometheus(_peak_answer(requests=40.0, tokens=1280.0)) as (url, queries):
        assert "40 requests/s (the users'" in _kneewatch(file, "--prometheus", url, "--target", "b")[1]
    assert 'target="b"' in queries[0]


def test_a_peak_that_no_users_can_have_is_one_line(tmp_path: Path) -> None:
    with prometheus(_peak_answer(requests=1e308)) as (url, _):
        line = _refused(_file(tmp_path, _result()), "--prometheus", url)
    assert "need more than a million replicas" in line
    assert "check the peak (the users' highest five minutes in 4 weeks)" in line


@pytest.mark.parametrize("answer", [_peak_answer(), _peak_answer(requests=0.0, tokens=math.nan)])
def test_a_target_without_users_in_prometheus_is_one_line(tmp_path: Path, answer: dict[str, object]) -> None:
    with prometheus(answer) as (url, _):
        line = _refused(_file(tmp_path, _result()), "--prometheus", url)
    assert "no user traffic of target a in 4 weeks; name its target with --target" in line


def _config(folder: Path, *, has_store: bool = True) -> Path:
    file = folder / "kneewatch.yml"
    store = {"store": {"path": str(folder / "results.db")}} if has_store else {}
    file.write_text(yaml.safe_dump({"targets": [{"name": "a", "base_url": "http://127.0.0.1:9"}], **store}))
    return file


def _stored(folder: Path, *results: CapacityResult) -> None:
    store = Store(folder / "results.db")
    for each in results:
        store.add(each)
    store.close()


def _at(days: float, capacity: Capacity, **values: Any) -> CapacityResult:
    started = result(started_s=WALL_S + days * 86400).started
    return _result(id=f"{days}", started=started, capacity=capacity, **values)


def test_the_targets_last_measured_capacity_is_taken_from_the_store(tmp_path: Path) -> None:
    forecast = replace(MEASURED, mode="forecast", requests_per_second=20.0, lower=18.0, upper=22.0)
    voided = _at(3, replace(MEASURED, requests_per_second=1.0, lower=1.0), stopped=Stopped("interrupt"))
    _stored(tmp_path, _at(0, replace(MEASURED, lower=5.0)), _at(1, MEASURED), _at(2, forecast), voided)
    status, out, err = _kneewatch("-c", _config(tmp_path), "--peak", "40")
    assert (status, err) == (0, "")
    assert "7 (6 + 1 spare)" in out
    _stored(tmp_path, _at(4, forecast, context=replace(CONTEXT, version="0.33.0")))
    assert "forecast: no load has verified it" in _kneewatch("-c", _config(tmp_path), "--peak", "40")[1]


def test_a_store_without_a_capacity_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in _refused("-c", _config(tmp_path), "--peak", "40")
    assert not (tmp_path / "results.db").exists()
    _stored(tmp_path)
    assert "--target a:" in (line := _refused("-c", _config(tmp_path), "--target", "a", "--peak", "40"))
    assert "has no capacity of it" in line
    assert "store.path: is not set" in _refused("-c", _config(tmp_path, has_store=False), "--peak", "40")


def test_a_capacity_that_is_no_number_is_not_read_as_one(tmp_path: Path) -> None:
    file = _file(tmp_path, _result(capacity=replace(MEASURED, requests_per_second=math.inf)))
    assert "has no capacity" in _refused(file, "--peak", "40")
